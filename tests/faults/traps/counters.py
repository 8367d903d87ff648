"""Counters and averages that are right."""

from __future__ import annotations

from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import trap
from tests.faults.traps.trainings import train


class CountsOneMore(Loop):
    """Reports the scheduler's _step_count as its step."""

    def step(self, window: Window) -> None:
        super().step(window)
        assert self.scheduler is not None
        self.audit.report(global_step=self.scheduler._step_count)


@trap("T26", on="torch", tempts=("ACC301", "ACC303", "ACC801", "ACC804"))
def step_count_of_the_schedule(folder: str) -> None:
    """A scheduler's _step_count is one more than its updates, from its making on."""
    train(folder, "plain", own=[CountsOneMore])


@trap(
    "T26",
    on="Accelerate",
    processes=2,
    tempts=("ACC301", "ACC303", "ACC801", "ACC804"),
    unjudged={"ACC804": "`"},
)
def step_count_under_accelerate(folder: str) -> None:
    """accelerate's scheduler counts calls in _step_count, updates times ranks in last_epoch."""
    from tests.runtimes.accelerate import train as accelerated
    from tests.runtimes.rows import EQUAL

    accelerated(folder, valid=(EQUAL, EQUAL), epochs=6)


@trap("T27", on="torch", tempts=("ACC805",))
def average_of_updates(folder: str) -> None:
    """A moving average takes every update in, however many micro-steps each has."""
    train(folder, "average-of-updates")


@trap("T27", on="torch", tempts=("ACC805", "ACC302"))
def average_held_on_skips(folder: str) -> None:
    """It waits where the scaler skips an update."""
    train(folder, "average-held-on-skips")


@trap("T27", on="torch", tempts=("ACC805",))
def average_with_rising_decay(folder: str) -> None:
    """The loop keeps it by hand, at a decay that rises with the updates."""
    train(folder, "average-by-hand")
