"""What all tests share: one pair of training processes for each worker of the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.processes import Pair

# Before torch is loaded: the trainings are small, and the workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """Two processes of one gloo group, which run functions on demand and end with the session."""
    from tests.processes import Pair

    processes = Pair()
    yield processes
    processes.close()
