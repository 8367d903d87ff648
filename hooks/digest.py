"""Digests of tensors: 64 bits over the raw bits, in which every element's position counts.

The bits are read as 64-bit words. The digest is the sum of the words, each times an odd number of its
position, modulo 2**64: equal tensors have equal digests on any device, and a XOR of elements would not
tell where they stand. Such a product says little of where the upper bits of a word stand, and with short
elements those are an element of their own: they are added to the lower bits first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

CHUNK: Final = 1 << 20
"""Words that are multiplied at a time, so that a large parameter needs no copy of its own."""

SMALL: Final = 4096
"""Elements up to which tensors are put together: a call of torch costs more than they do."""

_MIXER: Final = 0x1E3779B97F4A7C15
"""An odd constant, so that small values reach the high bits."""


def digest(tensor: Tensor) -> Tensor:
    """The digest of one tensor: 0-d, int64, on the tensor's device."""
    words = _words(tensor)
    paired = tensor.dtype != torch.int64
    if words.numel() <= CHUNK:
        return _chunk_digest(words, 0, paired)
    starts = range(0, words.numel(), CHUNK)
    return torch.stack([_chunk_digest(words[start : start + CHUNK], start, paired) for start in starts]).sum()


def digest_all(tensors: Sequence[Tensor]) -> Tensor | None:
    """The digest of several tensors in their order; None where there is no element."""
    with torch.no_grad():
        digests = [digest(part) for part in _parts([tensor for tensor in tensors if tensor.numel()])]
    if not digests:
        return None
    # To the accelerator where there is one: the other way would have to be waited for.
    device = max((entry.device for entry in digests), key=lambda device: device.type != "cpu")
    return digest(torch.stack([entry.to(device, non_blocking=True) for entry in digests]))


def hexadecimal(value: int) -> str:
    """16 hex digits."""
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def _parts(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Small tensors of a kind put together, the others as they are."""
    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() > SMALL or tensor.layout != torch.strided:
            yield tensor
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in small.values():
        yield _flatten_dense_tensors(group)


def _words(tensor: Tensor) -> Tensor:
    """The bits as 64-bit integers in one row, filled up with zeros."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype == torch.int64:
        return flat
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    in_a_word = 8 // flat.element_size()
    if missing := -flat.numel() % in_a_word:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    elif flat.storage_offset() % in_a_word:
        flat = flat.clone()
    return flat.view(torch.int64)


def _chunk_digest(words: Tensor, start: int, paired: bool) -> Tensor:
    if paired:
        words = words + (words >> 32)
    length = words.numel()
    numbers = _odd_numbers(1 << max(10, (length - 1).bit_length()), words.device)[:length]
    # Only the CPU has a product of integer vectors; elsewhere the sum is taken over a copy.
    weighed = torch.dot(words, numbers) if words.is_cpu else (words * numbers).sum()
    return weighed + words.sum() * _signed(2 * start * _MIXER) if start else weighed


def _signed(value: int) -> int:
    """A whole number modulo 2**64, as int64 holds it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@lru_cache(maxsize=16)
def _odd_numbers(length: int, device: torch.device) -> Tensor:
    """Kept for a few lengths, the powers of two: together twice the largest."""
    return torch.arange(1, 2 * length, 2, dtype=torch.int64, device=device) * _MIXER
