"""Right loops that a careless audit accuses: each does one thing in another way, and none is a fault.

Most are traits: they override one decision, so several of them make one loop (`combined`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere

import accumaudit
from accumaudit.demo.checkpoints import CheckpointedLoop, State
from accumaudit.demo.data import IGNORED, VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.scenario import Scenario, kebab_case

VARIANTS: Final[dict[str, Scenario]] = {}
"""By name; `plain` is the loop as it stands in loop.py."""


def variant(
    *, ranks: tuple[int, ...] = (1, 2), settings: Settings | None = None, launches: int = 1
) -> Callable[[type[Loop]], type[Loop]]:
    """Enter a loop among the variants, under its name."""

    def enter(loop: type[Loop]) -> type[Loop]:
        name = kebab_case(loop.__name__)
        VARIANTS[name] = Scenario(
            name=name, loop=loop, settings=settings or Settings(), ranks=ranks, launches=launches
        )
        return loop

    return enter


def combined(*traits: type[Loop]) -> type[Loop]:
    """One loop with all these traits, which override different methods."""
    return type("".join(trait.__name__ for trait in traits) or "Plain", (*traits, Loop), {})


@variant()
class Plain(Loop):
    """The loop as it stands."""


# How the loss is written


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
        total.backward()
        self.losses.append(total.item())


@variant()
class EachBatchTwice(Loop):
    """Adversarial training: each batch has a second forward and backward, at embeddings that were moved."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            (self.loss(batch, window) / 2).backward()
            weights = next(self.model.parameters())
            kept = weights.detach().clone()
            assert weights.grad is not None
            weights.data.add_(weights.grad.sign(), alpha=1e-3)
            loss = self.loss(batch, window)
            (loss / 2).backward()
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
            loss.backward(retain_graph=True)
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


# Which micro-steps there are


@variant(settings=Settings(accumulation_steps=128, batches=255, batch_size=1, epochs=1))
class TailOfMany(Loop):
    """A tail of 127 where the whole windows are of 128."""


@variant()
class TailLeftOut(Loop):
    """A short last window is not computed at all."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            if len(batches) == self.settings.accumulation_steps:
                yield batches


@variant()
class ZeroTokenMicroStep(Loop):
    """The last micro-step of every window has no valid token."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            if len(batches) > 1:
                batches[-1].labels.fill_(IGNORED)
            yield batches


@variant(ranks=(2,))
class ZeroTokenRank(Loop):
    """The last rank has no valid token in the second window."""

    def windows(self) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().windows(), start=1):
            if number == 2 and self.rank == self.world_size - 1:
                for batch in batches:
                    batch.labels.fill_(IGNORED)
            yield batches


@variant()
class NonFiniteSkipped(GradientsRescaled):
    """A micro-step whose loss is not finite has no backward, and its tokens are in no divisor."""

    forwards = 0

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        self.forwards += 1
        return (logits * math.inf if self.forwards == 6 else logits), labels

    def accumulate(self, window: Window) -> None:
        self.tokens_used = 0
        super().accumulate(window)

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            loss = self.loss(batch, window)
            if not loss.isfinite():
                return 0.0
            loss.backward()
        self.tokens_used += batch.valid_tokens
        return loss.item()

    def before_step(self, window: Window) -> None:
        self.rescale(self.world_size / self.sum_over_ranks(self.tokens_used))


# How it is accumulated, clipped, cleared


@variant(settings=Settings(accumulation_steps=1))
class NoAccumulation(Loop):
    """Every micro-step is an update."""


@variant(settings=Settings(precision="bf16"))
class UnderAutocast(Loop):
    """The forward runs in bf16."""


@variant(settings=Settings(checkpointing="reentrant"))
class ReentrantCheckpointing(Loop):
    """The backward computes activations again, in a graph of its own."""


@variant(settings=Settings(checkpointing="non-reentrant"))
class NonReentrantCheckpointing(Loop):
    """The backward computes activations again, by hooks on saved tensors."""


@variant(settings=Settings(max_grad_norm=None))
class NoClip(Loop):
    """The gradients are taken as they are."""


@variant(settings=Settings(max_grad_norm=None))
class NormLogged(Loop):
    """A clip without limit, which only measures the norm."""

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)


@variant(settings=Settings(max_grad_norm=0.3))
class ClippedByHand(Loop):
    """The gradients are multiplied by the limit over their norm, without torch's function."""

    def clip(self) -> None:
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient *= min(1.0, (self.settings.max_grad_norm or math.inf) / norm.item())


@variant(ranks=(1,))
class GradientsKeptElsewhere(Loop):
    """The loop adds each micro-step to buffers of its own, and puts the sum back before the step."""

    def accumulate(self, window: Window) -> None:
        self.buffers = [torch.zeros_like(weight) for weight in self.model.parameters()]
        super().accumulate(window)

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        for weight, buffer in zip(self.model.parameters(), self.buffers, strict=True):
            if weight.grad is not None:
                buffer += weight.grad
            weight.grad = None
        return loss

    def before_step(self, window: Window) -> None:
        for weight, buffer in zip(self.model.parameters(), self.buffers, strict=True):
            weight.grad = buffer


@variant()
class WindowThrownAway(Loop):
    """Two windows are taken for outliers: their gradients are cleared, and only the schedule moves on."""

    windows_seen = 0

    def step(self, window: Window) -> None:
        self.windows_seen += 1
        if self.windows_seen in (3, 6):
            self.advance_schedule(window)
        else:
            super().step(window)


@variant()
class ClearedAtTop(Loop):
    """The gradients are cleared before a window, and stay what they are after its step."""

    def accumulate(self, window: Window) -> None:
        self.optimizer.zero_grad()
        super().accumulate(window)

    def clear(self) -> None:
        pass


@variant()
class ClearedByHand(Loop):
    """The gradients are set to None, one by one."""

    def clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None


# Schedule, reports, resumption


@variant(settings=Settings(warmup_updates=None))
class ConstantRate(Loop):
    """There is no schedule."""


@variant()
class RateZeroFirst(Loop):
    """The warm-up begins at a rate of 0, so that the first update changes nothing."""

    def rate(self, update: int) -> float:
        return 0.0 if update == 0 else super().rate(update)


@variant()
class Reporting(Loop):
    """The loop reports what it counts, in updates and valid tokens of all ranks, and its plan."""

    tokens_so_far = 0

    def attach(self) -> accumaudit.Audit:
        audit = super().attach()
        audit.declare(
            planned_updates=self.settings.updates,
            warmup_updates=self.settings.warmup_updates,
            peak_learning_rate=self.settings.learning_rate,
        )
        return audit

    def step(self, window: Window) -> None:
        super().step(window)
        self.tokens_so_far += window.tokens
        self.audit.report(
            global_valid_tokens=window.tokens,
            cumulative_train_tokens=self.tokens_so_far,
            global_step=self.updates + 1,
        )


@variant(launches=2)
class Resumed(CheckpointedLoop):
    """The first launch stops after two thirds of the epochs; the second takes its checkpoint up."""

    def train(self) -> None:
        checkpoint = self.log_dir / "checkpoints" / f"rank-{self.rank}.pt"
        with self.attach() as self.audit:
            if checkpoint.exists():
                self.restore(torch.load(checkpoint, weights_only=True))
                self.train_epochs(range(self.settings.epochs - 1, self.settings.epochs))
            else:
                self.train_epochs(range(self.settings.epochs - 1))
                checkpoint.parent.mkdir(exist_ok=True)
                torch.save(self.state(), checkpoint)


@variant(launches=2)
class ScheduleFastForwarded(Resumed):
    """The second launch has no state of the schedule, and steps it to where it was."""

    def restore_schedule(self, state: State) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of")
            for _ in range(self.updates):
                if self.scheduler is not None:
                    self.scheduler.step()
