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
    small: dict[torch.dtype, list[Tensor]] = {}
    parts: list[Tensor] = []
    for gradient in gradients:
        if not gradient.is_cpu or gradient.layout is not torch.strided:
            return _elsewhere(gradients)
        if gradient.numel() > SMALL:
            parts.append(gradient)
        elif gradient.dtype in small:
            small[gradient.dtype].append(gradient)
        else:
            small[gradient.dtype] = [gradient]
    with torch.no_grad():
        parts.extend(map(_flatten_dense_tensors, small.values()))
        return _norm([torch.linalg.vector_norm(part) for part in parts])


def _norm(norms: list[Tensor]) -> Tensor | None:
    if len(norms) < 2:
        return norms[0] if norms else None
    if len({norm.dtype for norm in norms}) > 1:
        norms = [norm.double() for norm in norms]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _elsewhere(gradients: Sequence[Tensor]) -> Tensor | None:
    kinds = {(gradient.layout, gradient.device.type) for gradient in gradients}
    if len(kinds) != 1 or gradients[0].layout is not torch.strided:
        return None  # from one kind of device to another a norm would have to be waited for
    with torch.no_grad():
        return torch.nn.utils.get_total_norm(list(gradients))
