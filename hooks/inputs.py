"""What a forward was given: samples, positions and a digest of the data, without reading a value."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from accumaudit.hooks.digest import digest
from accumaudit.hooks.window import Forward

_MASKS = ("attention_mask", "padding_mask", "mask")
_LABELS = ("labels", "targets", "target", "y")


def argument_names(module: nn.Module) -> list[str]:
    """Names of the arguments of a module's forward, in order."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def describe(letter: str, names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Forward:
    """A forward and its first input: the token ids where there are any, else the first tensor."""
    forward = Forward(letter)
    named = {name: value for name, value in _tensors(names, args, kwargs) if name not in _LABELS}
    mask = next((named[name] for name in _MASKS if name in named), None)
    inputs = [tensor for name, tensor in named.items() if name not in _MASKS]
    ids = next((tensor for tensor in inputs if tensor.dim() > 1 and _is_integer(tensor)), None)
    first = ids if ids is not None else next((tensor for tensor in inputs if tensor.dim() > 0), None)
    if first is None:
        return forward
    forward.samples = first.shape[0]
    if ids is not None:
        forward.input_positions = ids.numel()
        if mask is not None and mask.numel() == ids.numel():
            forward.attended_positions = (mask != 0).sum()
    if first.numel() and not first.is_sparse:
        with torch.no_grad():
            forward.digest = digest(first)
    return forward


def first_differentiable(output: Any, depth: int = 3) -> Tensor | None:
    """The first tensor in a model's output that has a graph."""
    if isinstance(output, Tensor):
        return output if output.grad_fn is not None else None
    if depth == 0 or output is None or isinstance(output, (str, bytes)):
        return None
    entries = (
        output.values()
        if isinstance(output, Mapping)
        else output
        if isinstance(output, (list, tuple))
        else ()
    )
    found = (first_differentiable(entry, depth - 1) for entry in entries)
    return next((tensor for tensor in found if tensor is not None), None)


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


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
