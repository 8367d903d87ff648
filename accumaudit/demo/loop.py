"""A training loop with gradient accumulation that is right, as one would write it by hand.

Every method is one decision of the loop. The faults in `faults/` and the other right ways in
`variants/` override one or two of them, so each shows in a few lines what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler

import accumaudit
from accumaudit.demo.data import IGNORED, VOCABULARY_SIZE, Batch, Exercise, Exercises, collate
from accumaudit.demo.model import Checkpointing, TinyTransformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a run is told."""

    accumulation_steps: int = 4
    batch_size: int = 2
    """Rows of a micro-step on one rank."""
    batches: int = 14
    """Micro-steps of an epoch on one rank: 14 are three windows of 4 and a tail of 2."""
    epochs: int = 3
    answer_length: int | None = None
    """Every answer has this many characters; by default they differ widely."""
    learning_rate: float = 3e-3
    warmup_updates: int | None = 3
    """None: a constant rate, and no scheduler."""
    max_grad_norm: float | None = 1.25
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16 and fp16: forward under autocast."""
    loss_scale: float | None = None
    """The gradient scaler's first scale; None: losses are not scaled."""
    growth_interval: int = 2000
    """Updates without an overflow after which the scale doubles."""
    checkpointing: Checkpointing = "off"
    seed: int = 1

    @property
    def updates(self) -> int:
        """The optimizer updates of the whole run."""
        return -(-self.batches // self.accumulation_steps) * self.epochs


@dataclass(frozen=True, slots=True)
class Window:
    """The micro-batches of one update on this rank, and the valid tokens among those of all ranks."""

    batches: list[Batch]
    tokens: int

    def ends_with(self, micro_step: int) -> bool:
        """Whether this micro-step, counted from 1, is the last."""
        return micro_step == len(self.batches)


class Loop:
    """Trains with gradient accumulation so that every valid token of a window weighs the same."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        self.settings = settings
        self.log_dir = log_dir
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.updates = 0
        self.losses: list[float] = []
        """This rank's share of the loss of each update."""
        torch.manual_seed(settings.seed)
        self.sampler = self.make_sampler()
        self.loader = DataLoader(
            self.sampler.dataset, batch_size=settings.batch_size, sampler=self.sampler, collate_fn=collate
        )
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.scheduler = None if settings.warmup_updates is None else self.make_scheduler(self.optimizer)
        self.scaler = self.make_scaler()

    # What is built

    def make_sampler(self) -> DistributedSampler[Exercise]:
        """Shuffle anew in each epoch, and give every rank rows of its own."""
        rows = self.settings.batches * self.settings.batch_size * self.world_size
        exercises = Exercises(rows, seed=self.settings.seed, answer_length=self.settings.answer_length)
        return DistributedSampler(exercises, self.world_size, self.rank, seed=self.settings.seed)

    def make_model(self) -> nn.Module:
        model = TinyTransformer(VOCABULARY_SIZE, checkpointing=self.settings.checkpointing)
        return DistributedDataParallel(model) if self.world_size > 1 else model

    def make_optimizer(self) -> Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.settings.learning_rate)

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return LambdaLR(optimizer, self.rate)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Scales losses, skips what overflows; does nothing where it is not enabled."""
        scale = self.settings.loss_scale
        return torch.amp.GradScaler(
            "cpu",
            init_scale=scale or 1.0,
            growth_interval=self.settings.growth_interval,
            enabled=scale is not None,
        )

    def rate(self, update: int) -> float:
        """Warm up, then fall to zero; counted in updates, never in micro-steps."""
        warmup = self.settings.warmup_updates or 0
        if update < warmup:
            return (update + 1) / (warmup + 1)
        left = max(0, self.settings.updates - update)
        return left / max(1, self.settings.updates - warmup)

    def attach(self, **instead: Any) -> accumaudit.Audit:
        """Record every update from here on, until the audit is closed."""
        arguments: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "log_dir": self.log_dir,
            "accumulation_steps": self.settings.accumulation_steps,
            "max_grad_norm": self.settings.max_grad_norm,
            "dataloader": self.loader,
            "summary": False,  # The demo checks the ledger itself, when all is written.
        }
        return accumaudit.attach(**arguments | instead)

    # What happens

    def train(self) -> None:
        with self.attach() as self.audit:
            self.train_epochs(range(self.settings.epochs))

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            self.sampler.set_epoch(epoch)
            for batches in self.windows():
                self.update(Window(batches, self.sum_over_ranks(self.count(batches))))

    def windows(self) -> Iterator[list[Batch]]:
        """The micro-batches of an epoch, a window at a time; the last may be short."""
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps)):
            yield window

    def count(self, batches: list[Batch]) -> int:
        """What the loss is divided by: the tokens that have a loss, on this rank."""
        return sum(batch.valid_tokens for batch in batches)

    def sum_over_ranks(self, number: int) -> int:
        """A number of this rank, added to those of the others."""
        if self.world_size == 1:
            return number
        total = torch.tensor(number)
        dist.all_reduce(total)
        return int(total)

    def mean_over_ranks(self, number: float) -> float:
        """The mean of the ranks' numbers."""
        mean = torch.tensor(number, dtype=torch.float64)
        if self.world_size > 1:
            dist.all_reduce(mean)
        return float(mean) / self.world_size

    def update(self, window: Window) -> None:
        if self.is_useless(window):
            return
        self.accumulate(window)
        self.unscale()
        self.before_step(window)
        self.clip()
        self.step(window)
        self.clear()

    def is_useless(self, window: Window) -> bool:
        """Whether nothing in the window has a loss: such an update would only move the momentum."""
        return window.tokens == 0

    def accumulate(self, window: Window) -> None:
        losses = [
            self.micro_step(number, batch, window) for number, batch in enumerate(window.batches, start=1)
        ]
        self.losses.append(sum(losses))

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            loss = self.loss(batch, window)
            self.scaler.scale(loss).backward()
        return loss.item()

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        """Reduce the gradients over the ranks once for each window: in its last micro-step."""
        if window.ends_with(number):
            return nullcontext()
        return self.no_sync()

    def no_sync(self) -> AbstractContextManager[None]:
        """Keep the gradients of the forwards in here on this rank."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def loss(self, batch: Batch, window: Window) -> Tensor:
        """The batch's part of the window's mean; the world size undoes the average that DDP takes."""
        return self.summed_loss(batch) * self.world_size / window.tokens

    def summed_loss(self, batch: Batch) -> Tensor:
        logits, labels = self.forward(batch)
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels, a row for each position."""
        dtype = torch.float16 if self.settings.precision == "fp16" else torch.bfloat16
        with torch.autocast("cpu", dtype, enabled=self.settings.precision != "fp32"):
            logits = self.model(batch.input_ids, attention_mask=batch.attention_mask)
        return logits.float().flatten(0, 1), batch.labels.flatten()

    def unscale(self) -> None:
        """Take the loss scale out of the gradients again, once they are whole."""
        self.scaler.unscale_(self.optimizer)

    def before_step(self, window: Window) -> None:
        """The gradients are whole; nothing is left to do to them."""

    def clip(self) -> None:
        """Limit the norm of the whole window's gradient, once it is whole."""
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)

    def step(self, window: Window) -> None:
        if self.apply():
            self.updates += 1
            self.advance_schedule(window)

    def apply(self) -> bool:
        """Let the optimizer step; whether it did: the scaler lowers its scale where it skips a step."""
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def advance_schedule(self, window: Window) -> None:
        """One step of the schedule for each update."""
        if self.scheduler is not None:
            self.scheduler.step()

    def clear(self) -> None:
        self.optimizer.zero_grad()
