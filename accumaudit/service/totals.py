"""What the service counts in its own work, over all its processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

LAG_BOUNDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the seconds between a record's own time and its reading."""

NO_LAG: Final = 24 * 3600.0
"""Seconds beyond which the difference tells of a clock that is wrong, or of a file that was copied."""


@dataclass(slots=True)
class Lag:
    """How old records are when they are read, once the service has caught up."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LAG_BOUNDS) + 1))
    """By the first bound that is not exceeded."""
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one record; one of a clock that is ahead is not old."""
        if seconds < NO_LAG:
            seconds = max(seconds, 0.0)
            self.counts[bisect_left(LAG_BOUNDS, seconds)] += 1
            self.total += seconds

    @property
    def count(self) -> int:
        """Records."""
        return sum(self.counts)

    @property
    def buckets(self) -> dict[float, int]:
        """Records up to each bound."""
        sums = [sum(self.counts[: place + 1]) for place in range(len(LAG_BOUNDS))]
        return dict(zip(LAG_BOUNDS, sums, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Numbers that only grow."""

    read_errors: int = 0
    state_write_errors: int = 0
    judgements: int = 0
    judgement_seconds: float = 0.0
    failed_judgements: int = 0
    internal_errors: int = 0
    lag: Lag = field(default_factory=Lag)

    def plus(self, more: Totals) -> Totals:
        """The sum of both."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in _NUMBERS}
        counts = [a + b for a, b in zip(self.lag.counts, more.lag.counts, strict=True)]
        return Totals(**sums, lag=Lag(counts, self.lag.total + more.lag.total))

    def shown(self) -> dict[str, Any]:
        """As fields of Intake."""
        lag = {"lag_buckets": self.lag.buckets, "lag_sum": self.lag.total, "lag_count": self.lag.count}
        return {**{name: getattr(self, name) for name in _NUMBERS}, **lag}

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Totals:
        """Those that were saved, if any were."""
        if not saved:
            return cls()
        lag = saved["lag"]
        counts: Sequence[int] = lag["counts"]
        if len(counts) != len(LAG_BOUNDS) + 1:
            raise ValueError("the bounds of the lag are others")
        return cls(**{**saved, "lag": Lag(list(counts), lag["total"])})


_NUMBERS: Final = tuple(one.name for one in fields(Totals) if one.name != "lag")
