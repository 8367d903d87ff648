"""A schedule that is made anew at a resume takes the rate that has already decayed for its peak."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from accumaudit.demo.checkpoints import State
from accumaudit.demo.registry import against_advice
from accumaudit.demo.variants.resumption import Resumed
from tests.faults.registry import OWN_LINES, VARIANTS, Fault
from tests.trainings import environment, make_loop

FAULT = Fault(
    kind="K13",
    code="ACC306",
    reports=("huggingface/nanotron#233",),
    elsewhere={
        "Trainer": "it makes the schedule before it loads the states of optimizer and schedule",
        "Accelerate": OWN_LINES,
        "Lightning": "it makes the schedule before it loads the states of optimizer and schedule",
        "DeepSpeed": "the engine has its schedule before it loads the states; one apart: not trained",
    },
)


class OlderCheckpoint(Resumed):
    """The first launch ends an epoch after its last checkpoint, and the second does that epoch again."""

    def train(self) -> None:
        resumes = self.checkpoint.exists()
        with self.attach() as self.audit:
            if resumes:
                self.restore(torch.load(self.checkpoint, weights_only=True))
                self.train_epochs(range(1, self.settings.epochs))
            else:
                self.train_epochs([0])
                self.save()
                self.train_epochs([1])


class DecayedForPeak(OlderCheckpoint):
    """The schedule goes on from its place, over the rate of the checkpoint instead of the peak."""

    def restore_schedule(self, state: State) -> None:
        super().restore_schedule(state)
        assert self.scheduler is not None
        self.scheduler.base_lrs = [group["lr"] for group in self.optimizer.param_groups]


def train(folder: str, honest: bool, runtime: str) -> None:
    """Both launches of either loop."""
    loop = OlderCheckpoint if honest else DecayedForPeak
    for launch in range(2):
        with environment(TORCHELASTIC_RESTART_COUNT=str(launch)), against_advice():
            make_loop(["resumed", *VARIANTS.get(runtime, ())], Path(folder), {}, loop).train()


expected = partial(FAULT.on, first=2, notes={"ACC806"}, also={"ACC806"})


@expected("torch")
def alone(folder: str, honest: bool) -> None:
    train(folder, honest, "torch")


@expected("DDP")
def ddp(folder: str, honest: bool) -> None:
    train(folder, honest, "DDP")


@expected("FSDP1")
def fsdp1(folder: str, honest: bool) -> None:
    train(folder, honest, "FSDP1")


@expected("FSDP2")
def fsdp2(folder: str, honest: bool) -> None:
    train(folder, honest, "FSDP2")
