"""Sees a scheduler step by looking at it: no attribute is set on it, so its state_dict stays its own."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

COUNTERS: Final = ("last_epoch", "last_batch_iteration")
"""Names under which schedulers keep their own count of steps."""


def counter_of(scheduler: object) -> str:
    """The one that this scheduler has."""
    return next((name for name in COUNTERS if hasattr(scheduler, name)), COUNTERS[0])


class ScheduleWatch:
    """One optimizer's scheduler and first learning rate, as last seen."""

    def __init__(self, optimizer: Optimizer, scheduler: Any = None) -> None:
        self._optimizer = optimizer
        self.scheduler: Any = None
        self.follow(scheduler)

    def follow(self, scheduler: Any) -> None:
        """Watch another scheduler, made or given later; its past steps are none of this run's."""
        self.scheduler = scheduler
        self._counter = counter_of(scheduler)
        self._epoch = getattr(scheduler, self._counter, None)
        self._rates = getattr(scheduler, "_last_lr", None)
        self._rate = self._first_rate()

    @property
    def state(self) -> tuple[int | None, float | Tensor | None]:
        """`last_epoch` and the first rate that the scheduler gives; None where it has none."""
        epoch = getattr(self.scheduler, self._counter, None)
        rates = getattr(self.scheduler, "_last_lr", None)
        return (epoch if isinstance(epoch, int) else None), (rates[0] if rates else None)

    def look(self) -> tuple[int, bool]:
        """Scheduler steps since the last look, and whether the rate was changed past the scheduler.

        Every scheduler of torch makes a new list of rates in `step`, even those that keep no
        `last_epoch`; schedulers of users may keep nothing else than `last_epoch`.
        """
        steps = 0
        if (scheduler := self.scheduler) is not None:
            epoch, rates = getattr(scheduler, self._counter, None), getattr(scheduler, "_last_lr", None)
            if rates is not self._rates or epoch != self._epoch:
                steps = self._steps(epoch, rates)
        groups = self._optimizer.param_groups
        rate = groups[0]["lr"] if groups else None
        if rate is self._rate:
            return steps, False
        if isinstance(rate, Tensor):
            rate = id(rate), rate._version
        changed, self._rate = rate != self._rate, rate
        return steps, changed and not (steps and self._is_scheduled(rate))

    def _steps(self, epoch: Any, rates: Any) -> int:
        moved = epoch - self._epoch if isinstance(epoch, int) and isinstance(self._epoch, int) else 0
        self._epoch, self._rates = epoch, rates
        return max(1, moved)

    def _is_scheduled(self, rate: object) -> bool:
        """Whether the optimizer's rate is the one that the scheduler gives, as far as plain numbers tell."""
        given = self.state[1]
        return isinstance(rate, tuple) or not isinstance(given, (int, float)) or rate == given

    def _first_rate(self) -> object:
        groups = self._optimizer.param_groups
        rate = groups[0]["lr"] if groups else None
        return (id(rate), rate._version) if isinstance(rate, Tensor) else rate


def moves_unseen(scheduler: object) -> bool:
    """Whether looking at a scheduler cannot tell its steps: its class is patched then."""
    return (
        scheduler is not None and not hasattr(scheduler, "last_epoch") and not hasattr(scheduler, "_last_lr")
    )
