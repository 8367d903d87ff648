"""Counts and records that mean something else than they say."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from accumaudit.demo.checkpoints import CheckpointedLoop
from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import fault
from accumaudit.demo.variants.averages import Averaging
from accumaudit.demo.variants.resumption import Reporting


@fault("ACC801", ranks=(1,))
class UpdateIdBreak(CheckpointedLoop):
    """In the midst of a launch the loop goes back to an older state, and counts from there again."""

    def update(self, window: Window) -> None:
        super().update(window)
        if len(self.losses) == 3:
            self.older_state = self.state()
        if len(self.losses) == 6:
            self.restore(self.older_state)


@fault("ACC802", ranks=(2,))
class TokenCountMismatch(Loop):
    """The reported tokens are those of one rank times the number of ranks."""

    def step(self, window: Window) -> None:
        super().step(window)
        self.audit.report(global_valid_tokens=self.count(window.batches) * self.world_size)


@fault("ACC803", settings=Settings(batches=4, epochs=1))
class NonFiniteUpdate(Loop):
    """A penalty whose gradient is 0/0 at a bias of zero; the norm is looked at when it is too late."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        biases = [weight for weight in self.model.parameters() if not weight.any()]
        penalty = sum((bias.square().sum().sqrt() for bias in biases), torch.zeros(()))
        return super().loss(batch, window) + penalty


@fault("ACC804")
class AmbiguousStepCounter(Loop):
    """The reported step counts micro-steps."""

    def step(self, window: Window) -> None:
        super().step(window)
        self.micro_steps = getattr(self, "micro_steps", 0) + len(window.batches)
        self.audit.report(global_step=self.micro_steps)


@fault("ACC806")
class DuplicatedRecords(Loop):
    """A backup of the ledger was put into the run's own folder, and every record is there twice."""

    def train(self) -> None:
        super().train()
        for ledger in self.log_dir.glob(f"rank-*/{self.rank:05}.*.jsonl"):
            shutil.copy(ledger, ledger.with_name(f"backup-of-{ledger.name}"))


@fault("ACC808")
class RunStoppedShort(Reporting):
    """The plan counts all epochs, and the loop counts them from 1 and leaves the last one out."""

    def train_epochs(self, epochs: Iterable[int]) -> None:
        super().train_epochs([epoch for epoch in epochs if epoch > 0])


@fault("ACC807")
class TokensMeanSomethingElse(Loop):
    """The reported tokens are all that were attended to, with or without a loss."""

    def step(self, window: Window) -> None:
        super().step(window)
        attended = sum(int(batch.attention_mask.sum()) for batch in window.batches)
        self.audit.report(global_valid_tokens=self.sum_over_ranks(attended))


@fault("ACC805")
class EmaCadence(Averaging):
    """The moving average is updated after every micro-step, and forgets four times as fast."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if not window.ends_with(number):
            self.update_average()
        return loss


@fault("ACC809")
class CheckpointNamedByAnotherCount(Loop):
    """Checkpoints are named by the number of micro-steps."""

    micro_steps = 0

    def step(self, window: Window) -> None:
        super().step(window)
        self.micro_steps += len(window.batches)
        if self.updates % 4 == 0:
            self.audit.mark("checkpoint", name=f"checkpoint-{self.micro_steps}")


@fault("ACC810")
class ReportedLossScaled(Loop):
    """The loss that is logged has been divided by the micro-steps once more."""

    def step(self, window: Window) -> None:
        super().step(window)
        loss = self.mean_over_ranks(self.losses[-1])
        self.audit.report(loss=loss / self.settings.accumulation_steps)


@fault("ACC811")
class RepeatedData(Loop):
    """A short last window is filled up with the first batches of the epoch, which are seen a second time."""

    def windows(self) -> Iterator[list[Batch]]:
        first: list[Batch] = []
        for batches in super().windows():
            first = first or batches
            yield batches + first[: self.settings.accumulation_steps - len(batches)]
