"""Digests: equal for equal bits, different where an element or its place differs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from accumaudit.hooks import digest as digests
from accumaudit.hooks.digest import digest, digest_all, hexadecimal


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
    """The digest does not depend on where the chunks end."""
    tensor = torch.randint(-(2**62), 2**62, (1000,))
    whole = int(digest(tensor))
    monkeypatch.setattr(digests, "CHUNK", 64)
    assert int(digest(tensor)) == whole
    swapped = tensor.clone()
    swapped[[3, 700]] = swapped[[700, 3]]
    assert int(digest(swapped)) != whole


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
