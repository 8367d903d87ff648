"""Divisors that look wrong and are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import trap
from tests.faults.traps.trainings import train

DIVISORS = ("ACC101", "ACC102", "ACC104", "ACC106")


@trap("T09", on="Trainer", tempts=DIVISORS)
def divided_by_trainer_and_accelerator(folder: str) -> None:
    """Trainer divides the loss and so does accelerate's backward, which was told of a single step."""
    from tests.runtimes import hf

    with hf.quiet():
        recording = hf.recording(Path(folder))
        hf.make_trainer(Path(folder), model=hf.Plain, callbacks=[recording], valid=6).train()


@trap("T09", on="Trainer", processes=2, tempts=(*DIVISORS, "ACC103"))
def divided_by_the_tokens_of_all(folder: str) -> None:
    """On two ranks the model divides by the tokens of both, and nothing else divides."""
    from tests.runtimes.hf import train as by_trainer

    by_trainer("default", folder)


@trap("T13", on="torch", tempts=(*DIVISORS, "ACC810"))
def divided_by_the_window(folder: str) -> None:
    """Each micro-step's loss is divided by the tokens of the whole window; the sum is logged."""
    train(folder, "loss-logged")


@trap("T13", on="torch", tempts=(*DIVISORS, "ACC810"))
def own_loss_logged(folder: str) -> None:
    """What is logged is the mean of the last micro-step, which is no sum of the window's losses."""
    train(folder, "loss-of-last-micro-step")


@trap("T14", on="torch", tempts=DIVISORS[:2], notes=("ACC104",))
def constant_divisor(folder: str) -> None:
    """Losses are divided by a constant, larger than the tokens of any window, on purpose."""
    train(folder, "constant-divisor")


class MaskedKept(Loop):
    """One sample of each window is masked as a whole; its tokens stay in the divisor."""

    def windows(self) -> Any:
        for batches in super().windows():
            first = batches[0].labels[0]
            self.masked = int((first != IGNORED).sum())
            first.fill_(IGNORED)
            yield batches

    def count(self, batches: list[Batch]) -> int:
        return super().count(batches) + self.masked


@trap("T14", on="torch", tempts=("ACC101", "ACC102", "ACC106"), notes=("ACC104",))
def masked_tokens_kept(folder: str) -> None:
    """A sample without labels stays in the divisor with the tokens that it had, on purpose."""
    train(folder, "plain", own=[MaskedKept])


class MaskedPositionsKept(MaskedKept):
    """The same with all positions of the sample."""

    def count(self, batches: list[Batch]) -> int:
        return Loop.count(self, batches) + len(batches[0].labels[0])


@trap("T14", on="torch", tempts=("ACC101", "ACC102", "ACC106"), notes=("ACC110",))
def masked_positions_kept(folder: str) -> None:
    """A sample without labels stays in the divisor with all its positions, on purpose."""
    train(folder, "plain", own=[MaskedPositionsKept])


@trap("T24", on="torch", tempts=(*DIVISORS, "ACC105", "ACC109"))
def micro_step_without_tokens(folder: str) -> None:
    """The last micro-step of each window has no token with a loss."""
    train(folder, "zero-token-micro-step")


@trap("T24", on="DDP", tempts=(*DIVISORS, "ACC103", "ACC105", "ACC109"))
def rank_without_tokens(folder: str) -> None:
    """A rank has no token with a loss in one window."""
    train(folder, "zero-token-rank")


@trap("T25", on="torch", tempts=("ACC104", "ACC204", "ACC901", "ACC903"))
def other_layouts_of_a_batch(folder: str) -> None:
    """Two runs have the same batches in other layouts, and slightly different curves."""
    for run, (rows, steps) in enumerate(((1, 2), (2, 1))):
        train(
            str(Path(folder, f"run-{run}")),
            "plain",
            batch_size=rows,
            accumulation_steps=steps,
            batches=6 // rows,
            epochs=26,
            warmup_updates=None,
        )


class DividedByHand(Loop):
    """The window's size is known before it begins, and divides: all micro-steps have as many tokens."""

    def loss(self, batch: Batch, window: Window) -> Any:
        return self.summed_loss(batch) / batch.valid_tokens / len(window.batches)


@trap("T29", on="torch", tempts=("ACC101", "ACC104", "ACC201", "ACC205", "ACC206"))
def tail_flushed(folder: str) -> None:
    """An epoch's last window is short, is applied, and divided by what it has."""
    train(folder, "plain")


@trap("T29", on="torch", tempts=("ACC101", "ACC102", "ACC104", "ACC201"))
def tail_of_means_flushed(folder: str) -> None:
    """Means over micro-steps of one length are divided by the micro-steps that the window really has."""
    train(folder, "plain", own=[DividedByHand], answer_length=24)


@trap("T29", on="Trainer", tempts=("ACC101", "ACC104", "ACC201", "ACC205", "ACC206"))
def tail_of_the_trainer(folder: str) -> None:
    """Trainer applies an epoch's last window of two micro-steps, where the others have three."""
    from tests.runtimes.hf import train as by_trainer

    by_trainer("default", folder)
