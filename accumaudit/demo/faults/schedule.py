"""Rates that are not those of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accumaudit
from accumaudit.demo.checkpoints import State
from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import against_advice, fault
from accumaudit.demo.variants.resumption import Reporting, Resumed
from accumaudit.demo.variants.scaling import SCALED, Overflowing


@fault("ACC301")
class SchedulePerMicroStep(Loop):
    """The schedule advances with every micro-step: a warm-up of three updates is over within one."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if not window.ends_with(number):
            with against_advice():
                self.advance_schedule(window)
        return loss


@fault("ACC302", settings=SCALED)
class ScheduleAdvancedOnSkip(Overflowing):
    """The schedule moves on although the scaler has skipped the update."""

    OVERFLOWS = (2, 3, 7)

    def step(self, window: Window) -> None:
        self.updates += self.apply()
        with against_advice():
            self.advance_schedule(window)


@fault("ACC303")
class ScheduleDrift(Loop):
    """The schedule advances after whole windows alone, and falls behind by one at every tail."""

    def advance_schedule(self, window: Window) -> None:
        if len(window.batches) == self.settings.accumulation_steps:
            super().advance_schedule(window)


@fault("ACC304")
class ScheduleBeforeOptimizer(Loop):
    """The schedule advances before the optimizer steps: every update runs at the rate of the next."""

    def step(self, window: Window) -> None:
        with against_advice():
            self.advance_schedule(window)
        self.apply()


@fault("ACC307")
class DetachedSchedule(Loop):
    """The optimizer is made anew after the schedule, which goes on to set the rate of the old one."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.optimizer = self.make_optimizer()

    def advance_schedule(self, window: Window) -> None:
        with against_advice():
            super().advance_schedule(window)


@fault("ACC305", settings=Settings(epochs=8))
class ScheduleHorizonMismatch(Loop):
    """The schedule is planned for the micro-batches of the run, four times its updates."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(min_learning_rate=0.0)
        return audit

    def rate(self, update: int) -> float:
        warmup = self.settings.warmup_updates or 0
        planned = self.settings.batches * self.settings.epochs
        return super().rate(update) if update < warmup else (planned - update) / (planned - warmup)


@fault("ACC306", launches=2)
class RateBreakAtResume(Resumed):
    """The second launch restores everything but the schedule, which warms up a second time."""

    def restore_schedule(self, state: State) -> None:
        pass


@fault("ACC308")
class FirstUpdateAtPeak(Reporting):
    """A warm-up is declared, and the schedule begins where it would end."""

    def rate(self, update: int) -> float:
        return super().rate(update + (self.settings.warmup_updates or 0))


@fault("ACC310", launches=2)
class WeightDecayBreak(Resumed):
    """The second launch sets the weight decay of its own configuration, where another was trained with."""

    def restore(self, state: State) -> None:
        super().restore(state)
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1


@fault("ACC311")
class RateOutsideBounds(Reporting):
    """The rate is scaled up with the number of micro-steps, above the peak that was declared."""

    def rate(self, update: int) -> float:
        return super().rate(update) * self.settings.accumulation_steps
