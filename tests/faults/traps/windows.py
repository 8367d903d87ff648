"""Windows whose calls or sizes look wrong, and are right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import accumaudit
from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import trap
from tests.faults.traps.trainings import train

CALLS = ("ACC201", "ACC202", "ACC203", "ACC204", "ACC301")


@trap("T10", on="Accelerate", tempts=(*CALLS, "ACC304"))
def guarded_calls(folder: str) -> None:
    """Under accelerator.accumulate step, schedule and zero_grad are called in every micro-step."""
    from tests.runtimes.accelerate import healthy

    healthy(folder)


@trap("T10", on="Accelerate", processes=2, tempts=(*CALLS[:4], "ACC501", "ACC502"))
def guarded_calls_on_two_ranks(folder: str) -> None:
    """The same on two ranks, which reduce in the last micro-step alone."""
    from tests.runtimes.accelerate import healthy

    healthy(folder)


@trap("T10", on="DeepSpeed", tempts=CALLS)
def calls_of_an_engine(folder: str) -> None:
    """A DeepSpeed engine is told to step after every micro-step, and counts by itself."""
    from tests.runtimes.deepspeed import healthy

    healthy(folder)


class Ramp(Loop):
    """The windows of later epochs have more micro-steps, which the loop declares."""

    SIZES = (2, 2, 2, 4, 4, 7)

    def windows(self) -> Iterator[list[Batch]]:
        size = self.SIZES[self.sampler.epoch]
        self.audit.declare(accumulation_steps=size)
        batches = iter(self.loader)
        while window := list(islice(batches, size)):
            yield window


RAMP = ("ACC101", "ACC104", "ACC201", "ACC204")


@trap("T16", on="torch", tempts=(*RAMP, "ACC903"))
def batch_ramp(folder: str) -> None:
    """Windows grow with the epochs, and the loop declares their size."""
    train(folder, "plain", own=[Ramp], batches=27, batch_size=1, epochs=6, warmup_updates=None)


@trap("T16", on="DDP", tempts=(*RAMP, "ACC502", "ACC606"))
def batch_ramp_on_two_ranks(folder: str) -> None:
    """The same on two ranks."""
    train(folder, "plain", own=[Ramp], epochs=6, warmup_updates=None)


@trap("T16", on="Lightning", tempts=RAMP[1:])
def accumulation_scheduler(folder: str) -> None:
    """Lightning's GradientAccumulationScheduler lets windows grow with the epochs."""
    from tests.runtimes.lightning import PACKAGES, fit, library
    from tests.runtimes.rows import EQUAL

    changes = library(f"{PACKAGES[0]}.callbacks").GradientAccumulationScheduler({0: 1, 2: 2, 4: 3})
    fit(folder, callbacks=[changes], accumulate_grad_batches=1, max_epochs=6, valid=EQUAL)


class FeaturesFirst(Loop):
    """All micro-steps of a window go through the model without gradients, then again with them."""

    def accumulate(self, window: Window) -> None:
        with torch.no_grad():
            self.features = [self.forward(batch)[0] for batch in window.batches]
        super().accumulate(window)


FORWARDS = ("ACC104", "ACC201", "ACC202", "ACC204", "ACC807")


@trap("T23", on="torch", tempts=FORWARDS[:4])
def features_first(folder: str) -> None:
    """Twice as many forwards as backwards: features of the whole window are made first, without gradients."""
    train(folder, "plain", own=[FeaturesFirst])


@trap("T23", on="DDP", tempts=(*FORWARDS[:4], "ACC501", "ACC502", "ACC604"))
def features_first_on_two_ranks(folder: str) -> None:
    """The same through DDP, whose forwards without gradients reduce nothing."""
    train(folder, "plain", own=[FeaturesFirst])


@trap("T23", on="torch", tempts=("ACC201", "ACC202", "ACC204"))
def two_forwards_to_a_backward(folder: str) -> None:
    """The likelihoods of two answers make one loss: two forwards, one backward."""
    train(folder, "preference-pairs")


class ReferenceModel(Loop):
    """A frozen copy of the model at its start gives the targets."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reference = super().make_model()

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        with torch.no_grad():
            told = self.reference(batch.input_ids, attention_mask=batch.attention_mask)
        losses = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        distance = (logits - told.float().flatten(0, 1)).square().mean(1)[labels != -100].sum()
        return torch.add(losses, distance, alpha=0.1)


@trap("T23", on="torch", tempts=FORWARDS[:4])
def reference_model(folder: str) -> None:
    """A frozen model goes forward beside the one that learns."""
    train(folder, "plain", own=[ReferenceModel])


class WindowsByTokens(Loop):
    """A window is as many micro-steps as it takes to have so many tokens."""

    TOKENS = 150

    def attach(self, **instead: Any) -> accumaudit.Audit:
        return super().attach(accumulation_steps=None, **instead)

    def windows(self) -> Iterator[list[Batch]]:
        window: list[Batch] = []
        for batch in self.loader:
            window.append(batch)
            if self.count(window) >= self.TOKENS:
                yield window
                window = []
        if window:
            yield window


@trap("T16", on="torch", tempts=("ACC102", "ACC104", "ACC106"))
def windows_by_tokens(folder: str) -> None:
    """A window takes micro-steps until it has its tokens, so that their number is another each time."""
    train(folder, "plain", own=[WindowsByTokens], warmup_updates=None)


class EvaluatesInside(Loop):
    """Evaluates in the midst of every window."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            self.summed_loss(batch)
        self.model.train()
        return super().loss(batch, window)


@trap("T23", on="torch", tempts=FORWARDS[:4])
def evaluation_inside_windows(folder: str) -> None:
    """An evaluation before each micro-step makes two forwards and two losses of one backward."""
    train(folder, "plain", own=[EvaluatesInside])
