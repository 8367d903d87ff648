"""Recognises steps that count thousandths of an epoch, as MAE and its kin write them to event files.

They log floor(1000 * (epoch + batch / batches)), once for each update: the curves of runs with different
batches then lie on one another, and no step is a number of updates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

EPOCH: Final = 1000
"""The steps of one epoch."""

ROUNDED: Final = 1
"""What the rounding may add to a step or take from it."""

FEWEST: Final = 3
"""Updates of an epoch from which on its steps make a pattern."""


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of one epoch, which all epochs repeat."""

    pattern: tuple[int, ...]

    def attempt(self, step: int) -> int:
        """The number of the update that was logged with a step, from 1."""
        epoch, place = divmod(step, EPOCH)
        return epoch * len(self.pattern) + bisect_left(self.pattern, place - ROUNDED) + 1


def find(steps: Sequence[int]) -> EpochSteps | None:
    """The pattern, where the steps prove it: each epoch repeats it, and they grow by no fixed number.

    One whole epoch and the beginning of the next are needed; where an epoch has a number of updates that
    divides 1000 nothing tells such steps from numbers of updates.
    """
    epochs = [
        (epoch, tuple(step % EPOCH for step in group))
        for epoch, group in groupby(steps, lambda s: s // EPOCH)
    ]
    if len(epochs) < 2 or len(epochs[0][1]) < FEWEST:
        return None
    pattern = epochs[0][1]
    follows = all(later == earlier + 1 for (earlier, _), (later, _) in pairwise(epochs))
    repeats = all(
        (len(places) == len(pattern) or (epoch == epochs[-1][0] and len(places) < len(pattern)))
        and all(abs(one - other) <= ROUNDED for one, other in zip(places, pattern, strict=False))
        for epoch, places in epochs
    )
    return EpochSteps(pattern) if follows and repeats and _uneven(steps, len(pattern)) else None


def _uneven(steps: Sequence[int], count: int) -> bool:
    """Whether even steps within an epoch do not go on evenly into the next."""
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    inner, across = gaps[: count - 1], gaps[count - 1]
    return (
        max(inner) - min(inner) <= 2 * ROUNDED
        and across >= min(inner) - ROUNDED
        and len(set(gaps[count - 1 :])) > 1
    )
