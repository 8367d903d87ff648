"""Digests: equal for equal bits, different where an element or its place differs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from accumaudit.hooks import digest as digests
from accumaudit.hooks.digest import digest, digest_all, hexadecimal, input_digest


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4),
        torch.randn(3, 4),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.randn(4, 3, dtype=torch.float64).t(),
        torch.tensor([True, False, True]),
        torch.tensor([1 + 2j, 3 - 1j]),
        torch.tensor(3.0),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_places_and_values_count(tensor: Tensor) -> None:
    """A copy has the same digest; a changed or moved element another."""
    value = int(digest(tensor))
    assert int(digest(tensor.clone())) == value
    if tensor.dim():
        moved = tensor.flatten().roll(1).reshape(tensor.shape)
        assert int(digest(moved)) != value
    other = ~tensor if tensor.dtype == torch.bool else tensor + 1
    assert int(digest(other)) != value


def test_large_tensors_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements count in their places within a chunk and between chunks, in both halves of a word."""
    monkeypatch.setattr(digests, "CHUNK", 64)
    for tensor in (torch.randint(-(2**62), 2**62, (1000,)), torch.randn(2000)):
        whole = int(digest(tensor))
        assert int(digest(tensor.clone())) == whole
        for one, other in ((3, 700), (3, 4), (64, 192)):
            swapped = tensor.clone()
            swapped[[one, other]] = swapped[[other, one]]
            assert int(digest(swapped)) != whole


def test_batches_of_small_numbers_do_not_meet() -> None:
    """Weighed with numbers in a row, batches would be equal as soon as two sums are."""
    ids = torch.zeros(3, 8, dtype=torch.int64)
    ids[1, :3] = torch.tensor([1, 0, 1])
    ids[2, :3] = torch.tensor([0, 2, 0])
    assert len({int(digest(row)) for row in ids}) == 3
    torch.manual_seed(0)
    batches = torch.randint(0, 4, (2000, 4, 8))
    assert len({int(digest(batch)) for batch in batches}) == len(batches.flatten(1).unique(dim=0))


def test_signs_count_where_they_stand() -> None:
    """The upper bits of a word, too."""
    signs = [torch.tensor([0.5, a, 0.5, b]) for a, b in ((1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, 1.0))]
    assert len({int(digest(tensor)) for tensor in signs}) == 4


@pytest.mark.parametrize("size", [8, 5000])
def test_inputs_are_told_apart(size: int) -> None:
    """Small ones are hashed where they lie, large ones and views by torch."""
    ids = torch.arange(size).reshape(2, -1)
    known = {number(input_digest(ids)), number(input_digest(ids + 1)), number(input_digest(ids.flip(1)))}
    assert len(known) == 3
    assert number(input_digest(ids.clone())) in known
    assert number(input_digest(ids.t())) == number(input_digest(ids.t()))


def number(value: torch.Tensor | int) -> int:
    """As a number."""
    return int(value)


def test_several_tensors_count_in_their_order() -> None:
    """Two parameters that change places change the digest."""
    one, two = torch.randn(3), torch.randn(3)
    first, second = digest_all([one, two]), digest_all([two, one])
    assert first is not None
    assert second is not None
    assert int(first) != int(second)
    assert digest_all([]) is None
    assert digest_all([torch.empty(0)]) is None


def test_hexadecimal_has_sixteen_digits() -> None:
    """Negative numbers are taken modulo 2**64."""
    assert (hexadecimal(-1), hexadecimal(255)) == ("f" * 16, "00000000000000ff")
