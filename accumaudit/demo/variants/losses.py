"""How the loss is written."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from accumaudit.demo.data import IGNORED, VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant


@variant()
class Plain(Loop):
    """The loop as it stands."""


@variant(settings=Settings(answer_length=24))
class MeanOfEqualLengths(Loop):
    """Each micro-step takes its own mean, which is right where all have equally many tokens."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        return F.cross_entropy(logits, labels, ignore_index=IGNORED) / len(window.batches)


@variant()
class GradientsRescaled(Loop):
    """The loss is only summed; the gradients are divided by the tokens when they are whole."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch)

    def before_step(self, window: Window) -> None:
        self.rescale(self.world_size / window.tokens)

    def rescale(self, factor: float) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= factor


@variant()
class MaskedLosses(Loop):
    """Losses of every position, of which a mask selects those that count."""

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        mask = labels != IGNORED
        losses = F.cross_entropy(logits, labels.where(mask, 0), reduction="none")
        return (losses * mask).sum()


@variant()
class ChunkedLoss(Loop):
    """The loss is computed in chunks of positions, so that fewer logits need memory."""

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        chunks = zip(logits.chunk(3), labels.chunk(3), strict=True)
        losses = [F.cross_entropy(*chunk, ignore_index=IGNORED, reduction="sum") for chunk in chunks]
        return torch.stack(losses).sum()


@variant()
class ClassWeights(Loop):
    """Some tokens weigh more than others on purpose; the divisor is the sum of the weights."""

    WEIGHTS = 1 + torch.arange(VOCABULARY_SIZE) % 3

    def count(self, batches: list[Batch]) -> int:
        return sum(int(self.WEIGHTS[batch.labels[batch.labels != IGNORED]].sum()) for batch in batches)

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        weights = self.WEIGHTS.float()
        return F.cross_entropy(logits, labels, weights, ignore_index=IGNORED, reduction="sum")


@variant()
class LossCoefficient(Loop):
    """The loss has a coefficient, as one term among others would."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return 0.3 * super().loss(batch, window)


@variant()
class TwoTerms(Loop):
    """A second term looks two tokens ahead, and is divided by the same tokens of the window."""

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        main = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        ahead = F.cross_entropy(logits[:-1], labels[1:], ignore_index=IGNORED, reduction="sum")
        return main + 0.3 * ahead


@variant()
class ConstantDivisor(Loop):
    """All losses are divided by one number, so that the total moves with the tokens: here from 1/4 on."""

    divisor = 0

    def loss(self, batch: Batch, window: Window) -> Tensor:
        self.divisor = self.divisor or 4 * window.tokens
        return self.summed_loss(batch) * self.world_size / self.divisor


@variant(ranks=(1,))
class OneBackward(Loop):
    """The losses of all micro-steps are added up, and one backward goes through the sum."""

    def accumulate(self, window: Window) -> None:
        total = torch.stack([self.loss(batch, window) for batch in window.batches]).sum()
        self.scaler.scale(total).backward()
        self.losses.append(total.item())


@variant()
class EachBatchTwice(Loop):
    """Adversarial training: each batch has a second forward and backward, at embeddings that were moved."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            self.scaler.scale(self.loss(batch, window) / 2).backward()
            weights = next(self.model.parameters())
            kept = weights.detach().clone()
            assert weights.grad is not None
            weights.data.add_(weights.grad.sign(), alpha=1e-3)
            loss = self.loss(batch, window)
            self.scaler.scale(loss / 2).backward()
            weights.data.copy_(kept)
        return loss.item()


@variant(ranks=(1,))
class TwoBackwards(Loop):
    """Each half of the rows has a backward of its own; both lead through one forward."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        logits, labels = self.forward(batch)
        halves = zip(logits.chunk(2), labels.chunk(2), strict=True)
        total = 0.0
        for rows, targets in halves:
            summed = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
            loss = summed * self.world_size / window.tokens
            self.scaler.scale(loss).backward(retain_graph=True)
            total += loss.item()
        return total


@variant()
class PreferencePairs(Loop):
    """Two forwards before one backward: the answer shall be likelier than one that was drawn for it."""

    def count(self, batches: list[Batch]) -> int:
        return sum(len(batch.labels) for batch in batches)

    def summed_loss(self, batch: Batch) -> Tensor:
        rejected = batch._replace(labels=batch.labels.where(batch.labels == IGNORED, batch.labels % 7 + 1))
        margin = self.log_likelihood(batch) - self.log_likelihood(rejected)
        return -F.logsigmoid(margin).sum()

    def log_likelihood(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return -losses.view(batch.labels.shape).sum(dim=1)
