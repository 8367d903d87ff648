"""What a forward was given: samples, positions and a digest of the data, without reading a value."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from accumaudit.hooks.digest import input_digest
from accumaudit.hooks.shards import is_distributed
from accumaudit.hooks.window import Forward

_MASKS = ("attention_mask", "padding_mask", "mask")
_ENTRIES = 256  # of one container, that are looked at
_LABELS = ("labels", "targets", "target", "y")
_OTHERS = [[name] for name in (*_MASKS, *_LABELS)]
_INTEGERS = {
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
}


def argument_names(module: nn.Module) -> list[str]:
    """Names of the arguments of a module's forward, in order."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def describe(
    forward: Forward, names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Note a forward's first input: the token ids where there are any, else the first tensor."""
    if not kwargs and len(args) == 1 and isinstance(args[0], Tensor) and names[:1] not in _OTHERS:
        inputs, mask = [args[0]], None
    else:
        named = {name: value for name, value in _tensors(names, args, kwargs) if name not in _LABELS}
        mask = named.get("attention_mask")  # others mean now what is attended, now what is not
        inputs = [tensor for name, tensor in named.items() if name not in _MASKS]
    inputs = [tensor for tensor in inputs if not is_distributed(tensor)]
    first = ids = None
    for tensor in inputs:
        if first is None and tensor.dim():
            first = tensor
        if tensor.dim() > 1 and tensor.dtype in _INTEGERS:
            first = ids = tensor
            break
    if first is None:
        return
    forward.samples = first.size(0)
    if ids is not None:
        forward.input_positions = ids.numel()
        if mask is not None and mask.numel() == ids.numel():
            forward.attended_positions = torch.count_nonzero(mask.detach())
    if first.layout is torch.strided and not first.is_nested and first.numel():
        forward.digest = input_digest(first)


def differentiable(output: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in a model's output that have a graph."""
    if isinstance(output, Tensor):
        if output.grad_fn is not None:
            yield output
    elif depth:
        for entry in islice(_entries(output), _ENTRIES):
            yield from differentiable(entry, depth - 1)


def _entries(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, (list, tuple)):
        return output
    if is_dataclass(output):
        return [getattr(output, field.name) for field in fields(output)]
    return vars(output).values() if hasattr(output, "__dict__") else ()


def lasting(tensor: Tensor) -> Tensor:
    """The tensor itself, or the one that it is a view of.

    A view's own node leaves the graph when the view is changed in place; that of its base stays.
    """
    base = tensor._base
    return tensor if base is None or base.grad_fn is None else base


def _tensors(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    for place, value in enumerate(args):
        name = names[place] if place < len(names) else str(place)
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _tensors((), (), value)
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}.{i}", entry) for i, entry in enumerate(value) if isinstance(entry, Tensor))
    yield from ((name, value) for name, value in kwargs.items() if isinstance(value, Tensor))
