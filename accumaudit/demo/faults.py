"""The faults, one for each rule: the right loop with one thing done wrong, as people have done it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn import functional as F  # noqa: N812 - its name everywhere
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset

from accumaudit.demo.checkpoints import CheckpointedLoop
from accumaudit.demo.data import IGNORED, Batch, Exercise
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.scenario import Scenario, kebab_case

FAULTS: Final[dict[str, Scenario]] = {}
"""By the name of the rule that each breaks."""

WHOLE_WINDOWS: Final = 12
"""Batches of an epoch that has no tail."""


def fault(
    code: str, *, ranks: tuple[int, ...] = (1, 2), settings: Settings | None = None
) -> Callable[[type[Loop]], type[Loop]]:
    """Enter a loop among the faults, under its name."""

    def enter(loop: type[Loop]) -> type[Loop]:
        name = kebab_case(loop.__name__)
        FAULTS[name] = Scenario(name=name, loop=loop, settings=settings or Settings(), ranks=ranks, code=code)
        return loop

    return enter


@contextmanager
def against_advice() -> Iterator[None]:
    """Torch warns of some of these faults, once, in a line that scrolls by."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of|`parameters` is an empty generator")
        yield


# Normalisation


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


@fault("ACC110")
class UnscoredTokensInDenominator(Loop):
    """The loss is divided by all tokens that are no padding, those of the masked prompts among them."""

    def count(self, batches: list[Batch]) -> int:
        return sum(int(batch.attention_mask.sum()) for batch in batches)


# Window


@fault("ACC201", settings=Settings(batches=WHOLE_WINDOWS, warmup_updates=None))
class StepInsideWindow(Loop):
    """The optimizer steps after every second micro-step, although four are declared."""

    def windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps // 2)):
            yield window


@fault("ACC202", settings=Settings(batches=WHOLE_WINDOWS))
class GradientsClearedInsideWindow(Loop):
    """The gradients are cleared before every micro-step, so that only the last one counts."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        self.clear()
        return super().micro_step(number, batch, window)


@fault("ACC203")
class StaleGradients(Loop):
    """The gradients are never cleared, so that every update holds those of all updates before it."""

    def clear(self) -> None:
        pass


@fault("ACC204", settings=Settings(batches=15, warmup_updates=None))
class WindowTooLong(Loop):
    """Off by one: the optimizer steps after five micro-steps, although four are declared."""

    def windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps + 1)):
            yield window


@fault("ACC205", settings=Settings(warmup_updates=None))
class DroppedTail(Loop):
    """The micro-steps of a short last window are computed, never applied, and cleared with the next."""

    def update(self, window: Window) -> None:
        self.clear()
        if len(window.batches) == self.settings.accumulation_steps:
            super().update(window)
        else:
            self.accumulate(window)


# Schedule


@fault("ACC301")
class SchedulePerMicroStep(Loop):
    """The schedule advances with every micro-step: a warm-up of three updates is over within one."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if not window.ends_with(number):
            with against_advice():
                self.advance_schedule(window)
        return loss


@fault("ACC303")
class ScheduleDrift(Loop):
    """The schedule advances after whole windows alone, and falls behind by one at every tail."""

    def advance_schedule(self, window: Window) -> None:
        if len(window.batches) == self.settings.accumulation_steps:
            super().advance_schedule(window)


@fault("ACC304")
class ScheduleBeforeOptimizer(Loop):
    """The schedule advances before the optimizer steps: every update runs at the rate of the next."""

    def step(self, window: Window) -> None:
        with against_advice():
            self.advance_schedule(window)
        self.optimizer.step()


@fault("ACC307")
class DetachedSchedule(Loop):
    """The optimizer is made anew after the schedule, which goes on to set the rate of the old one."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.settings.learning_rate)

    def advance_schedule(self, window: Window) -> None:
        with against_advice():
            super().advance_schedule(window)


# Clipping


@fault("ACC401", ranks=(1,))
class ClipPerMicroStep(Loop):
    """The gradients are clipped after every micro-step, so that later ones weigh more."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if not window.ends_with(number):
            self.clip()
        return loss


@fault("ACC404")
class ClipWithoutEffect(Loop):
    """The parameters are a generator made once: the first clip uses it up, and the others clip nothing."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.parameters = self.model.parameters()

    def clip(self) -> None:
        with against_advice():
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm or 1.0)


# Synchronisation


@fault("ACC501", ranks=(2,))
class UpdateWithoutSync(Loop):
    """No micro-step reduces the gradients: each rank trains a model of its own."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return self.no_sync()


@fault("ACC502", ranks=(2,))
class SyncOnWrongMicroStep(Loop):
    """The first micro-step reduces the gradients, and the others add what the other ranks never see."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext() if number == 1 else self.no_sync()


@fault("ACC503", ranks=(2,))
class NoSyncAroundBackwardOnly(Loop):
    """no_sync holds the backward alone; DDP decides at the forward, and reduces every micro-step."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = self.loss(batch, window)
        with self.reduction(number, window):
            loss.backward()
        return loss.item()


@fault("ACC504", ranks=(2,))
class SyncEveryMicroStep(Loop):
    """Every micro-step reduces the gradients: right, and four times the communication."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext()


# Ranks


@fault("ACC601", ranks=(2,), settings=Settings(batches=40, epochs=1))
class RankStoppedEarly(Loop):
    """The last rank has less data and leaves; DDP's join lets the others go on without it."""

    WINDOWS_OF_THE_LAST = 8

    def make_sampler(self) -> DistributedSampler[Exercise]:
        sampler = super().make_sampler()
        if self.rank < self.world_size - 1:
            return sampler
        rows = self.WINDOWS_OF_THE_LAST * self.settings.accumulation_steps * self.settings.batch_size
        return DistributedSampler(Subset(sampler.dataset, range(rows)), num_replicas=1, rank=0)

    def train(self) -> None:
        assert isinstance(self.model, Joinable)
        with Join([self.model]):
            super().train()

    def sum_over_ranks(self, number: int) -> int:
        everyone_is_there = self.updates < self.WINDOWS_OF_THE_LAST
        return super().sum_over_ranks(number) if everyone_is_there else number


@fault("ACC603", ranks=(2,))
class RateDisagreement(Loop):
    """The rate is scaled by the rank where the number of ranks was meant."""

    def rate(self, update: int) -> float:
        return super().rate(update) * (self.rank + 1)


@fault("ACC604", ranks=(2,))
class GradientDisagreement(Loop):
    """After the reduction each rank adds noise of its own to the gradients."""

    def before_step(self, window: Window) -> None:
        generator = torch.Generator().manual_seed(1000 * self.rank + self.updates)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.01 * torch.randn(parameter.grad.shape, generator=generator)


@fault("ACC605", ranks=(2,))
class ParameterDisagreement(Loop):
    """The head is initialised anew, from each rank's own seed, when DDP has made the models equal."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        assert isinstance(model, DistributedDataParallel)
        torch.manual_seed(self.settings.seed + self.rank)
        model.module.head.reset_parameters()
        return model


@fault("ACC606", ranks=(2,))
class WindowSizeDisagreement(Loop):
    """The last rank leaves the last batch of every window out; its windows are shorter than the others'."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            yield batches[:-1] if self.rank == self.world_size - 1 else batches


# Bookkeeping


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


@fault("ACC807")
class TokensMeanSomethingElse(Loop):
    """The reported tokens are all that were attended to, with or without a loss."""

    def step(self, window: Window) -> None:
        super().step(window)
        attended = sum(int(batch.attention_mask.sum()) for batch in window.batches)
        self.audit.report(global_valid_tokens=self.sum_over_ranks(attended))
