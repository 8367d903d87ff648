"""How the ranks of a run agree in one attempt, and which of them stand apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from accumaudit.service.snapshot import RANK_FIELDS, RankView

SHOWN: Final = 8
"""Outliers of a field that are named."""
FAR: Final = 6.0
"""Standard deviations from the median, estimated by the median deviation, that make an outlier."""
DEVIATIONS: Final = 1.4826
"""A normal distribution's standard deviation in median deviations."""
EQUAL: Final = 1e-6
"""Relative difference below which two values are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One field of one optimizer over the ranks that are at the same attempt."""

    optimizer: int
    field: str
    minimum: float
    median: float
    maximum: float
    outliers: int
    worst: tuple[tuple[int, float], ...]
    """Rank and value of the outliers that are furthest from the median."""

    @property
    def spread_ratio(self) -> float | None:
        """Highest less lowest by the size of the median; None where that is 0 and they differ."""
        spread = self.maximum - self.minimum
        if spread == 0:
            return 0.0
        return spread / abs(self.median) if self.median else None


def agreements(ranks: Sequence[RankView]) -> Iterator[Agreement]:
    """Each field that two ranks or more have in the attempt at which most of them are."""
    by_optimizer: dict[int, list[RankView]] = defaultdict(list)
    for view in ranks:
        by_optimizer[view.optimizer].append(view)
    for optimizer, views in sorted(by_optimizer.items()):
        counts = Counter(view.attempt_id for view in views)
        attempt = max(counts, key=lambda one: (counts[one], one))
        together = [view for view in views if view.attempt_id == attempt]
        for field in RANK_FIELDS:
            found = _agreement(optimizer, field, together)
            if found is not None:
                yield found


@np.errstate(all="ignore")
def _agreement(optimizer: int, field: str, views: Sequence[RankView]) -> Agreement | None:
    given = [(view.rank, value) for view, value in zip(views, map(attrgetter(field), views), strict=True)]
    known = [(rank, value) for rank, value in given if value is not None]
    if len(known) < 2:
        return None
    numbers = np.array([rank for rank, _ in known])
    values = np.array([value for _, value in known], dtype=np.float64)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    median = float(np.median(finite))
    distances = np.where(np.isfinite(values), np.abs(values - median), np.inf)
    deviation = float(np.median(distances[np.isfinite(values)])) * DEVIATIONS
    far = distances > max(FAR * deviation, EQUAL * abs(median))
    order = np.flatnonzero(far)
    order = order[np.argsort(-distances[order], kind="stable")][:SHOWN]
    return Agreement(
        optimizer=optimizer,
        field=field,
        minimum=float(finite.min()),
        median=median,
        maximum=float(finite.max()),
        outliers=int(far.sum()),
        worst=tuple((int(numbers[index]), float(values[index])) for index in order),
    )
