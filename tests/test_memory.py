"""A recorded training holds as much after hundreds of updates as after a few."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accumaudit.hooks.session import session
from tests.growth import Kept, train

UPDATES = 500
MEMORY = 4 << 20
"""Bytes that the allocator may add; 8 KiB an update would already be as much."""

OBJECTS = 60
"""Objects that may come and go; one in every eight updates would be as many."""
TENSORS = 4
"""Tensors that may come and go."""


def grows(held: list[Kept]) -> list[str]:
    """What is more at the end than at the beginning."""
    first, last = held[0], held[-1]
    found = {
        "memory": last.memory - first.memory > MEMORY,
        "objects": last.objects - first.objects > OBJECTS,
        "tensors": last.tensors - first.tensors > TENSORS,
    }
    return [name for name, more in found.items() if more]


@pytest.mark.slow
def test_hundreds_of_updates_leave_nothing_behind(tmp_path: Path) -> None:
    """Memory, objects and tensors are what they were."""
    assert grows(train(UPDATES, tmp_path)) == []


@pytest.mark.slow
def test_a_leak_is_noticed(tmp_path: Path) -> None:
    """One small tensor an update, and a buffer larger than what earlier tests may give back meanwhile."""
    leaked: list[object] = []

    def leak() -> None:
        window = session.recorders[0].tracks[0].window
        leaked.append((window.gradient, torch.ones(2**17)))

    assert grows(train(UPDATES, tmp_path, leak)) == ["memory", "objects", "tensors"]
