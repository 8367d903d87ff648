"""The norm of all gradients, just before a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

SMALL: Final = 4096
"""Elements up to which gradients on the CPU are put together: a call of torch costs more than they do."""


def total_norm(gradients: Sequence[Tensor]) -> Tensor | None:
    """The 2-norm over all gradients, on their device; None where they are not of one kind of device."""
    if not gradients:
        return None
    kinds = {(gradient.layout, gradient.device.type) for gradient in gradients}
    if len(kinds) != 1 or gradients[0].layout != torch.strided:
        return None  # from one kind of device to another a norm would have to be waited for
    with torch.no_grad():
        if gradients[0].is_cpu:
            return _on_cpu(gradients)
        return torch.nn.utils.get_total_norm(list(gradients))


def _on_cpu(gradients: Sequence[Tensor]) -> Tensor:
    """What `get_total_norm` computes, in fewer calls."""
    small: dict[torch.dtype, list[Tensor]] = {}
    parts: list[Tensor] = []
    for gradient in gradients:
        if gradient.numel() > SMALL:
            parts.append(gradient)
        else:
            small.setdefault(gradient.dtype, []).append(gradient)
    parts.extend(_flatten_dense_tensors(group) for group in small.values())
    norms = [torch.linalg.vector_norm(part) for part in parts]
    if len({norm.dtype for norm in norms}) > 1:
        norms = [norm.double() for norm in norms]
    whole: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return whole
