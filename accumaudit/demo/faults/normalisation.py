"""Losses divided by the wrong number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import fault


@fault("ACC101")
class FixedDivisorTail(Loop):
    """The loss is divided by the full accumulation count, in a short last window too."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        tokens_of_a_micro_step = window.tokens / len(window.batches)
        divisor = tokens_of_a_micro_step * self.settings.accumulation_steps
        return self.summed_loss(batch) * self.world_size / divisor


@fault("ACC102")
class MeanOfMeans(Loop):
    """Each micro-step takes the mean over its own tokens, however few they are."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        return F.cross_entropy(logits, labels, ignore_index=IGNORED) / len(window.batches)


@fault("ACC103", ranks=(2,))
class RankLocalDenominator(Loop):
    """Each rank divides by the tokens of its own window, and DDP averages the ranks."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch) / self.count(window.batches)


@fault("ACC104", ranks=(2,))
class WrongTotalWeight(Loop):
    """The loss is divided by the tokens of all ranks, and DDP divides by the ranks once more."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch) / window.tokens


@fault("ACC105")
class EmptyWindowApplied(Loop):
    """A window in which every token is masked is applied all the same: momentum and schedule move."""

    def windows(self) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().windows(), start=1):
            if number == 2:
                for batch in batches:
                    batch.labels.fill_(IGNORED)
            yield batches

    def is_useless(self, window: Window) -> bool:
        return False

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch) * self.world_size / max(1, window.tokens)


@fault("ACC106")
class MixedDenominators(Loop):
    """Each micro-step is divided by the tokens seen so far in the window, a number that grows."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        so_far = self.sum_over_ranks(self.count(window.batches[:number]))
        return super().micro_step(number, batch, replace(window, tokens=so_far))


@fault("ACC107")
class LossTermDenominators(Loop):
    """A second term, which looks two tokens ahead, is averaged over each micro-step's own tokens."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        main = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        ahead = F.cross_entropy(logits[:-1], labels[1:], ignore_index=IGNORED) / len(window.batches)
        return main * self.world_size / window.tokens + 0.3 * ahead


@fault(
    "ACC108",
    settings=Settings(
        accumulation_steps=2, batch_size=1, batches=8, epochs=16, learning_rate=1e-4, max_grad_norm=None
    ),
)
class NormTracksTokens(Loop):
    """A loss that no hook knows is summed and divided by a constant: updates with long answers weigh more."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        scored = labels != IGNORED
        answers = labels.where(scored, 0).unsqueeze(1)
        return -(logits.log_softmax(1).gather(1, answers).squeeze(1) * scored).sum() / 100

    def step(self, window: Window) -> None:
        super().step(window)
        self.audit.report(global_valid_tokens=window.tokens)


@fault("ACC109")
class NonFiniteMicroBatchApplied(Loop):
    """The loss of one micro-step is not finite; nobody looks, and the update is applied."""

    forwards = 0

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        self.forwards += 1
        return (logits * math.inf if self.forwards == 6 else logits), labels


@fault("ACC110")
class UnscoredTokensInDenominator(Loop):
    """The loss is divided by all tokens that are no padding, those of the masked prompts among them."""

    def count(self, batches: list[Batch]) -> int:
        return sum(int(batch.attention_mask.sum()) for batch in batches)
