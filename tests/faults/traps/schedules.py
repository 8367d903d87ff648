"""Schedules that move, begin or end otherwise than one expects, and are right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, StepLR

import accumaudit
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.registry import against_advice
from tests.faults.registry import trap
from tests.faults.traps.trainings import Table, train, without_hooks

CADENCE = ("ACC301", "ACC303", "ACC304", "ACC305")


def _accelerate_to_the_end(folder: str, split: bool) -> None:
    """Whole windows, at a rate that falls to 0 in as many steps as accelerate makes of them."""
    from accelerate.utils import DataLoaderConfiguration  # type: ignore[import-untyped]  # it ships no types
    from torch.utils.data import DataLoader

    from tests.runtimes.accelerate import Loop as Accelerated
    from tests.runtimes.accelerate import fresh
    from tests.runtimes.rows import BATCH, EQUAL, STEPS, rows

    epochs = 12
    updates = epochs * len(EQUAL) // STEPS
    config = DataLoaderConfiguration(split_batches=split)
    with fresh(gradient_accumulation_steps=STEPS, dataloader_config=config) as accelerator:
        ranks = accelerator.num_processes
        data: Any = DataLoader(rows(EQUAL * ranks), batch_size=BATCH * ranks if split else BATCH)  # type: ignore[arg-type]  # its rows
        steps = updates if split else updates * ranks
        training = Accelerated(accelerator, Path(folder, "run"), data=data, epochs=epochs, planned=updates)
        training.scheduler.scheduler.lr_lambdas = [lambda step: max(0.0, 1 - step / steps)]
        training.train()


@trap("T01", on="Accelerate", processes=2, tempts=CADENCE[:3])
def steps_of_all_ranks(folder: str) -> None:
    """accelerate's scheduler moves once for each rank in an update, over a horizon that counts so too."""
    _accelerate_to_the_end(folder, split=False)


@trap("T01", on="Accelerate", processes=2, tempts=CADENCE)
def split_batches(folder: str) -> None:
    """With split_batches it moves once for each update."""
    _accelerate_to_the_end(folder, split=True)


@trap("T02", on="Trainer", processes=2, tempts=CADENCE)
def one_step_of_the_trainer(folder: str) -> None:
    """Trainer runs on accelerate, and moves its schedule once for each update."""
    from tests.runtimes.hf import make_trainer, quiet, recording

    with quiet():
        callbacks: list[Any] = [recording(Path(folder))]
        make_trainer(Path(folder), callbacks=callbacks, batches=6, num_train_epochs=12).train()


class WarmsUpFromZero(Loop):
    """Says what it plans; the first update runs at a rate of 0."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(
            planned_updates=self.settings.updates,
            warmup_updates=self.settings.warmup_updates,
            peak_learning_rate=self.settings.learning_rate,
        )
        return audit

    def rate(self, update: int) -> float:
        warmup = self.settings.warmup_updates or 0
        return update / warmup if update < warmup else super().rate(update)


@trap("T03", on="torch", tempts=("ACC301", "ACC303", "ACC307", "ACC308", "ACC311", "ACC404"))
def warmup_from_zero(folder: str) -> None:
    """The warm-up begins at 0: the first update changes nothing."""
    train(folder, "plain", own=[WarmsUpFromZero])


@trap("T03", on="Trainer", tempts=("ACC307", "ACC308"))
def warmup_of_the_trainer(folder: str) -> None:
    """Trainer's linear warm-up begins at 0."""
    from tests.runtimes.hf import healthy

    healthy(folder)


class EpochsOfOneWindow(Loop):
    """The schedule counts epochs, each of which has a single window."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return StepLR(optimizer, 1, 0.5)

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(schedule_unit="epoch")
        return audit

    def advance_schedule(self, window: Window) -> None:
        pass

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            super().train_epochs([epoch])
            with against_advice():
                super().advance_schedule(Window([], 0))


@trap("T06", on="torch", tempts=("ACC301", "ACC302", "ACC304"))
def order_warning_after_a_skip(folder: str) -> None:
    """A schedule of epochs moves after the first, whose only update was skipped: torch warns of the order."""
    train(folder, "first-steps-skipped", own=[EpochsOfOneWindow], batches=4, epochs=6)


@trap("T06", on="torch", tempts=("ACC301", "ACC303", "ACC304", "ACC306"))
def order_warning_at_a_resume(folder: str) -> None:
    """A resumed schedule is stepped to where it was before the first update: torch warns of the order."""
    train(folder, "schedule-fast-forwarded")


class NextRateLogged(Loop):
    """Writes a line for each update, after the schedule has moved."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        self.table = Table(
            self.log_dir,
            learning_rate=self.settings.learning_rate,
            gradient_accumulation_steps=self.settings.accumulation_steps,
            warmup_steps=self.settings.warmup_updates,
            max_steps=self.settings.updates,
        )
        return super().attach(**instead)

    def step(self, window: Window) -> None:
        super().step(window)
        assert self.scheduler is not None
        self.table.write(
            optimizer_update_id=self.updates,
            step=self.updates,
            loss=self.losses[-1],
            learning_rate=self.scheduler.get_last_lr()[0],
        )


@trap("T17", on="torch", tempts=("ACC305", "ACC309"), log=True)
def rate_of_the_next_update(folder: str) -> None:
    """A log tells the rate of the next update, read when the schedule has moved; the last line says 0."""
    without_hooks(folder, "plain", own=[NextRateLogged], epochs=12)


class Linear(WarmsUpFromZero):
    """The rate falls along a line, so that it would be 0 after the last update."""

    def rate(self, update: int) -> float:
        return max(0, self.settings.updates - update) / self.settings.updates


@trap("T18", on="torch", tempts=("ACC303", "ACC305"))
def last_update_above_zero(folder: str) -> None:
    """A line ends at the peak over the number of updates; 0 comes after the last."""
    train(folder, "plain", own=[Linear], warmup_updates=0, epochs=8)


@trap("T18", on="Trainer", tempts=("ACC305", "ACC309"), log=True)
def last_update_of_the_trainer(folder: str) -> None:
    """The state of a Trainer whose linear schedule ran to its end."""
    from tests.runtimes.hf import make_trainer, quiet

    with quiet():
        trainer = make_trainer(Path(folder), batches=6, num_train_epochs=12)
        trainer.train()
        trainer.save_state()


@trap("T19", on="torch", tempts=("ACC302", "ACC303", "ACC305"))
def shorter_by_the_skips(folder: str) -> None:
    """The schedule waits for skipped updates, and so ends before its end by as many."""
    train(folder, "first-steps-skipped", own=[Linear], warmup_updates=0, epochs=8)


class SteppedBack(Loop):
    """The schedule moves after every attempt, and one step back where the scaler skipped it."""

    def apply(self) -> bool:
        assert self.scheduler is not None
        before = deepcopy(self.scheduler.state_dict())
        applied = super().apply()
        with against_advice():
            self.scheduler.step()
        if not applied:
            self.scheduler.load_state_dict(before)
            for group, rate in zip(self.optimizer.param_groups, before["_last_lr"], strict=True):
                group["lr"] = rate
        return applied

    def advance_schedule(self, window: Window) -> None:
        pass


@trap("T20", on="torch", tempts=("ACC302", "ACC303", "ACC305"))
def stepped_back_after_a_skip(folder: str) -> None:
    """The schedule moves after a skipped attempt too, and is set back before the next: each rate is right."""
    train(folder, "overflow-skipped", own=[SteppedBack], epochs=8)


@trap("T21", on="torch", tempts=("ACC303", "ACC306", "ACC310", "ACC311"))
def second_stage(folder: str) -> None:
    """A second stage takes the parameters up at a tenth of the rate, and declares its schedule."""
    train(folder, "second-stage")


class FloorReached(WarmsUpFromZero):
    """A cosine that reaches a tenth of the peak after two thirds of the run, and stays there."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(min_learning_rate=self.settings.learning_rate / 10)
        return audit

    def rate(self, update: int) -> float:
        fallen = min(1.0, 1.5 * update / self.settings.updates)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * fallen))


@trap("T18", on="torch", tempts=("ACC303", "ACC311"))
def floor_reached_before_the_end(folder: str) -> None:
    """The last third of the run has the least rate, on purpose."""
    train(folder, "plain", own=[FloorReached], warmup_updates=0, epochs=8)


class RatesByFraction(Loop):
    """A cosine that begins anew in each epoch, moved to the part of the epoch that is done."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingWarmRestarts(optimizer, 1)

    def clear(self) -> None:
        super().clear()
        assert isinstance(self.scheduler, CosineAnnealingWarmRestarts)
        self.scheduler.step(self.updates / 4)

    def advance_schedule(self, window: Window) -> None:
        pass


@trap("T18", on="torch", tempts=("ACC301",))
def restarts_by_fraction(folder: str) -> None:
    """The schedule counts epochs, and is moved by fractions of them; the rate rises again in each."""
    train(folder, "plain", own=[RatesByFraction], epochs=6)


class TakenBack(Loop):
    """After the eighth update the loop goes back to what it had after the fifth, in the same launch."""

    def clear(self) -> None:
        super().clear()
        assert self.scheduler is not None
        parts: list[Any] = [self.model, self.optimizer, self.scheduler]
        if self.updates == 5:
            self.kept = deepcopy([part.state_dict() for part in parts])
        elif self.updates == 8:
            for part, state in zip(parts, self.kept, strict=True):
                part.load_state_dict(state)


@trap("T20", on="torch", tempts=("ACC301", "ACC304", "ACC801"))
def taken_back(folder: str) -> None:
    """Parameters, optimizer and schedule go back to an earlier state in the midst of a launch."""
    train(folder, "plain", own=[TakenBack], epochs=4)
