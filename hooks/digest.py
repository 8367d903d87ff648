"""Digests of tensors: 64 bits over the raw bits, in which every element's position counts.

The digest is the sum of the elements' bits as integers, each times an odd number of its position,
modulo 2**64: equal tensors have equal digests on any device, and a XOR of elements would not tell
where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 1 << 20
"""Elements that are widened to 64 bits at a time, so that a large parameter needs no copy of its own."""

_MIXER: Final = 0x1E3779B97F4A7C15
"""An odd constant, so that small values reach the high bits."""

_BITS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensor: Tensor) -> Tensor:
    """The digest of one tensor: 0-d, int64, on the tensor's device."""
    flat = _bits(tensor).reshape(-1)
    parts = [_chunk_digest(flat[start : start + CHUNK], start) for start in range(0, flat.numel(), CHUNK)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def digest_all(tensors: Sequence[Tensor]) -> Tensor | None:
    """The digest of several tensors in their order; None where there is no element."""
    digests = [digest(tensor) for tensor in tensors if tensor.numel()]
    if not digests:
        return None
    # To the accelerator where there is one: the other way would have to be waited for.
    device = max((entry.device for entry in digests), key=lambda device: device.type != "cpu")
    return digest(torch.stack([entry.to(device, non_blocking=True) for entry in digests]))


def hexadecimal(value: int) -> str:
    """16 hex digits."""
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def _bits(tensor: Tensor) -> Tensor:
    """The elements as integers of the same width."""
    plain = tensor.detach()
    if plain.dtype == torch.bool:
        return plain.to(torch.int8)
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.contiguous().view(_BITS[plain.element_size()])


def _chunk_digest(values: Tensor, start: int) -> Tensor:
    wide = values.to(torch.int64)
    room = 1 << max(10, (wide.numel() - 1).bit_length())
    weighed = (wide * _odd_numbers(room, wide.device)[: wide.numel()]).sum()
    return weighed + wide.sum() * _signed(2 * start * _MIXER) if start else weighed


def _signed(value: int) -> int:
    """A whole number modulo 2**64, as int64 holds it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@lru_cache(maxsize=16)
def _odd_numbers(length: int, device: torch.device) -> Tensor:
    """Kept for a few lengths, the powers of two: together twice the largest."""
    return torch.arange(1, 2 * length, 2, dtype=torch.int64, device=device) * _MIXER
