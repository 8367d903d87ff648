"""Digests of tensors: 64 bits over the raw bits, in which every element's position counts.

The bits are read as 64-bit words. The digest is the sum of the words, each times an odd random number of
its position, modulo 2**64: equal tensors have equal digests on any device. A XOR of elements would not
tell where they stand, and numbers in a row would tell little more than two sums. Such a product says
little of where the upper bits of a word stand, and with short elements those are an element of their own:
they are added to the lower bits first.
"""

from __future__ import annotations

import ctypes
import hashlib
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

BYTES: Final = 1 << 14
"""Size up to which an input on the CPU is hashed as it lies there."""

_STEP: Final = 0x9E3779B97F4A7C15
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Of the generator splitmix64."""


def input_digest(tensor: Tensor) -> Tensor | int:
    """The digest of a forward's input: at once where it is small and on the CPU.

    It is then of another kind, which does not compare with that of the same input on a device.
    """
    if type(tensor) is Tensor and tensor.is_cpu and tensor.is_contiguous():
        size = tensor.numel() * tensor.element_size()
        if size <= BYTES and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            data = ctypes.string_at(tensor.data_ptr(), size)
            return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    return digest(tensor)


def digest(tensor: Tensor) -> Tensor:
    """The digest of one tensor: 0-d, int64, on the tensor's device."""
    words = tensor.reshape(-1) if tensor.dtype == torch.int64 else _words(tensor)
    paired = tensor.dtype != torch.int64
    if words.numel() <= CHUNK:
        return _chunk_digest(words, paired)
    starts = range(0, words.numel(), CHUNK)
    parts = [_chunk_digest(words[start : start + CHUNK], paired) for start in starts]
    return _chunk_digest(torch.stack(parts), paired=True)


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
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    in_a_word = 8 // flat.element_size()
    if missing := -flat.numel() % in_a_word:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    elif flat.storage_offset() % in_a_word:
        flat = flat.clone()
    return flat.view(torch.int64)


def _chunk_digest(words: Tensor, paired: bool) -> Tensor:
    if paired:
        words = (words >> 32).add_(words)
    numbers = _numbers(words.numel(), words.device)
    # Only the CPU has a product of integer vectors; elsewhere the sum is taken over a copy.
    return torch.dot(words, numbers) if words.is_cpu else (words * numbers).sum()


@lru_cache(maxsize=64)
def _numbers(length: int, device: torch.device) -> Tensor:
    """As many odd numbers as asked for; what is kept are views."""
    return _odd_numbers(1 << max(10, (length - 1).bit_length()), device)[:length]


@lru_cache(maxsize=16)
def _odd_numbers(length: int, device: torch.device) -> Tensor:
    """Kept for a few lengths, the powers of two: together twice the largest."""
    mixed = torch.arange(1, length + 1, dtype=torch.int64, device=device) * _signed(_STEP)
    for shift, mixer in _MIXERS:
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(mixer)
    return (mixed ^ _shifted(mixed, 31)) | 1


def _shifted(values: Tensor, shift: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (values >> shift) & ((1 << (64 - shift)) - 1)


def _signed(value: int) -> int:
    """A whole number modulo 2**64, as int64 holds it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
