"""Trainings that `diff` compares: the same samples, cut into micro-batches in one way or another."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

import accumaudit
from tests.loops import VOCABULARY, TinyModel

SAMPLES = 16
"""Of one update, over all ranks."""


@dataclass(frozen=True)
class Plan:
    """How one training differs from the others."""

    steps: int = 8
    """Micro-steps of an update on each rank."""
    samples: int = SAMPLES
    """Of one update, over all ranks."""
    updates: int = 12
    start: int = 0
    """The update from which a launch continues."""
    dtype: str = "float32"
    seed: int = 0
    data_seed: int = 0
    rate: float = 0.01
    jump: int | None = None
    """The update from which on the rate is twice as high."""


def samples(plan: Plan, update: int) -> tuple[Tensor, Tensor]:
    """The inputs and labels of one update, counted from 0; some labels do not count."""
    first, last = update * plan.samples, (update + 1) * plan.samples
    rows = [_sample(plan.data_seed, place) for place in range(first, last)]
    return torch.stack([ids for ids, _ in rows]), torch.stack([labels for _, labels in rows])


def _sample(seed: int, place: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1_000 * seed + place + 1)
    ids = torch.randint(0, VOCABULARY, (9,), generator=generator)
    labels = ids[1:].clone()
    labels[: place % 4] = -100
    return ids[:-1], labels


def train(folder: Path | str, rank: int = 0, world: int = 1, state: Any = None, **plan: Any) -> Any:
    """Train for real and record it; the state is what a later launch continues from."""
    what = Plan(**plan)
    torch.manual_seed(what.seed)
    model = TinyModel().to(getattr(torch, what.dtype))
    wrapped: Any = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=what.rate, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda done: 0.98**done * (2 if done + 1 >= (what.jump or 99) else 1))
    with accumaudit.attach(
        wrapped, optimizer, scheduler, log_dir=folder, accumulation_steps=what.steps, summary=False
    ) as audit:
        if state is not None:
            _restore(state, model, optimizer, scheduler, audit)
        for update in range(what.start, what.updates):
            _update(what, update, wrapped, rank, world)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return [model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), audit.state_dict()]


def _restore(state: Any, *parts: Any) -> None:
    for part, values in zip(parts, state, strict=True):
        part.load_state_dict(values)


def _update(plan: Plan, update: int, model: Any, rank: int, world: int) -> None:
    ids, labels = samples(plan, update)
    divisor = int((labels != -100).sum()) / world
    micro_batches = zip(ids.chunk(plan.steps * world), labels.chunk(plan.steps * world), strict=True)
    own = list(micro_batches)[rank::world]
    for place, (inputs, targets) in enumerate(own, 1):
        last = place == len(own) or world == 1
        with nullcontext() if last else model.no_sync():
            logits = model(inputs)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / divisor).backward()


def train_here(folder: str, **plan: Any) -> None:
    """The same on each rank of a process group."""
    train(folder, dist.get_rank(), dist.get_world_size(), **plan)
