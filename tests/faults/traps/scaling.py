"""Loss scales that settle, and what is logged meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumaudit.demo.variants.scaling import Overflowing
from tests.faults.registry import trap
from tests.faults.traps.trainings import train

SKIPS = ("ACC302", "ACC303", "ACC704", "ACC803")


@trap("T04", on="torch", tempts=SKIPS)
def first_scale_too_large(folder: str) -> None:
    """The first attempts are skipped, until the scale has come down to where nothing overflows."""
    train(folder, "half-precision", loss_scale=2.0**32, epochs=8)


class TwoLater(Overflowing):
    """Three attempts overflow at the beginning, and two far behind."""

    OVERFLOWS = (1, 2, 3, 30, 31)


@trap("T04", on="torch", tempts=SKIPS)
def skips_come_back(folder: str) -> None:
    """After a settled scale, two more attempts overflow far behind."""
    train(folder, "first-steps-skipped", own=[TwoLater], epochs=12)


@trap("T04", on="DeepSpeed", tempts=("ACC302", "ACC704", "ACC803"), notes=("ACC804",))
def first_scale_of_the_engine(folder: str) -> None:
    """DeepSpeed's scale comes down from its first power, and the first steps are skipped."""
    from tests.runtimes.deepspeed import train as by_engine
    from tests.runtimes.rows import EQUAL

    by_engine(
        folder,
        1,
        valid=(EQUAL,),
        epochs=8,
        precision="fp16",
        fp16={"initial_scale_power": 26, "hysteresis": 2},
    )


@trap("T05", on="Trainer", tempts=("ACC305", "ACC902", "ACC904"), notes=("ACC309",), log=True)
def rate_of_zero_until_a_step(folder: str) -> None:
    """A Trainer logs a rate of 0 until an update was applied; the first ones are skipped."""
    import itertools

    import torch
    from torch import nn
    from transformers import Trainer

    from tests.runtimes import hf

    class Early(Trainer):  # as it was before it asked whether a step was made
        def _get_learning_rate(self) -> float:
            prepared: Any = self.optimizer
            applied = any(prepared.optimizer.state.values())
            return float(super()._get_learning_rate()) if applied else 0.0

    with hf.quiet():
        trainer = hf.make_trainer(
            Path(folder), trainer=Early, batches=6, num_train_epochs=18, warmup_steps=3, optim="adamw_torch"
        )
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "fp16"
        forwards = itertools.count()

        def overflow(_module: nn.Module, _args: object, logits: torch.Tensor) -> None:
            if next(forwards) < 2 * hf.STEPS:
                logits.register_hook(lambda gradient: torch.full_like(gradient, float("inf")))

        trainer.model.lm_head.register_forward_hook(overflow)
        trainer.train()
        trainer.save_state()
