"""Ways to reduce gradients over the ranks that are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import trap
from tests.faults.traps.trainings import train


@trap("T11", on="DDP", tempts=("ACC501", "ACC502"), notes=("ACC504",))
def sync_every_micro_step(folder: str) -> None:
    """Gradients are reduced in every micro-step: right, and as many times the communication."""
    train(folder, "sync-every-micro-step")


@trap("T11", on="DDP", tempts=("ACC501", "ACC502", "ACC505", "ACC604"), notes=("ACC503",))
def no_sync_around_backward_only(folder: str) -> None:
    """no_sync holds the backward alone, which does nothing: every micro-step is reduced, and right."""
    train(folder, "no-sync-around-backward-only")


@trap("T11", on="Accelerate", processes=2, tempts=("ACC501", "ACC502", "ACC505"), notes=("ACC504",))
def sync_each_batch(folder: str) -> None:
    """accelerate's sync_each_batch reduces every micro-step, to save memory."""
    from tests.runtimes.accelerate import train as accelerated
    from tests.runtimes.rows import EQUAL

    accelerated(folder, plugin={"sync_each_batch": True}, valid=(EQUAL, EQUAL))


class AverageUndone(Loop):
    """Losses are divided by the tokens of all ranks, gradients multiplied by the number of ranks."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch) / window.tokens

    def unscale(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= self.world_size


@trap("T12", on="DDP", tempts=("ACC103", "ACC104", "ACC604"))
def gradients_times_ranks(folder: str) -> None:
    """Gradients are multiplied by the number of ranks, which undoes the average that DDP takes."""
    train(folder, "plain", own=[AverageUndone])


@trap("T12", on="DDP", tempts=("ACC103", "ACC104", "ACC604"))
def gradients_times_ranks_per_token(folder: str) -> None:
    """Summed losses; gradients are multiplied by the number of ranks over the tokens of all of them."""
    train(folder, "gradients-rescaled")


class SeedOfEachRank(Loop):
    """Every rank makes its model from a seed of its own; DDP hands the first one's parameters out."""

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.settings.seed + self.rank)
        return super().make_model()


@trap("T22", on="DDP", tempts=("ACC604", "ACC605", "ACC609"))
def seed_of_each_rank(folder: str) -> None:
    """Ranks make different models, and DDP hands the first one's parameters out when it wraps them."""
    train(folder, "plain", own=[SeedOfEachRank])


class PastTheWrapper(Loop):
    """All micro-steps but a window's last go past DDP, which is to reduce in the last alone."""

    past = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.past = True
        yield
        self.past = False

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model, DistributedDataParallel)
        model = self.model.module if self.past else self.model
        logits = model(batch.input_ids, attention_mask=batch.attention_mask)
        return logits.flatten(0, 1), batch.labels.flatten()


@trap("T28", on="DDP", tempts=("ACC501", "ACC505", "ACC604", "ACC605"))
def last_forward_by_the_wrapper(folder: str) -> None:
    """All forwards but a window's last go to the inner module, as under no_sync; the last one reduces."""
    train(folder, "plain", own=[PastTheWrapper])


@trap("T28", on="DDP", tempts=("ACC103", "ACC104", "ACC604", "ACC605"))
def inner_module_reduced_by_hand(folder: str) -> None:
    """The model is never wrapped, and the loop reduces the whole gradients itself."""
    train(folder, "each-gradient-reduced")
