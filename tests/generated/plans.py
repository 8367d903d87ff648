"""Healthy trainings drawn at random: what a loop decides, and how its record came to end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Tail = Literal["applied", "dropped", "left out"]
Ending = Literal["closed", "stopped", "killed", "cut", "torn"]
Shape = Literal["none", "constant", "linear", "cosine", "inverse", "stairs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One training without a fault."""

    seed: int
    data_ranks: int
    context: int
    tensor: int
    wrapper: Literal["none", "ddp", "fsdp2"]
    no_sync: bool
    """Only the last micro-step reduces the gradients."""
    accumulation: int
    ramp: tuple[int, int] | None
    """From this epoch on, another accumulation."""
    batches: int
    """Micro-batches of an epoch on each rank."""
    epochs: int
    tail: Tail
    watched: bool
    """The loop gave its dataloader, so that epochs are known."""
    scale: float | None
    """The gradient scaler's first scale."""
    ceiling: float
    """A scale above this overflows."""
    growth_interval: int
    clip: float | None
    shape: Shape
    warmup: int
    contract: int
    """Scheduler steps that belong to an update."""
    declared: bool
    """The loop says how its schedule is meant."""
    average: float | None
    """The decay of averaged weights."""
    reports: frozenset[str]
    launches: tuple[tuple[int, int], ...]
    """For each launch but the last: the update at which it breaks off, and how many of its last are lost."""
    ending: Ending
    absent: Literal["none", "a rank", "all but the first", "some records"]
    every: int
    detail: Literal["full", "sums"]
    dtype: Literal["float32", "bfloat16"]
    unit: Literal["token", "sample"]

    @property
    def ranks(self) -> int:
        """Processes of the training."""
        return self.data_ranks * self.context * self.tensor

    @property
    def whole(self) -> bool:
        """All that happened is recorded, micro-step by micro-step, up to the end."""
        return self.absent == "none" and self.every == 1 and self.detail == "full" and self.ending == "closed"

    def steps_in(self, epoch: int) -> int:
        """Micro-steps of a full window."""
        return self.ramp[1] if self.ramp and epoch >= self.ramp[0] else self.accumulation

    @property
    def attempts(self) -> int:
        """How often the optimizer is asked to step."""
        rounded: Callable[[float], int] = math.ceil if self.tail == "applied" else math.floor
        return sum(rounded(self.batches / self.steps_in(epoch)) for epoch in range(1, self.epochs + 1))

    def rate(self, position: int) -> float:
        """The learning rate after so many updates."""
        peak, lowest = PEAK, 0.1 * PEAK
        if self.shape in ("linear", "cosine", "inverse") and position < self.warmup:
            return peak * (position + 1) / (self.warmup + 1)
        past = min((position - self.warmup) / max(self.attempts - self.warmup, 1), 1.0)
        shapes = {
            "linear": (1 - past) * peak,
            "cosine": lowest + (peak - lowest) * (1 + math.cos(math.pi * past)) / 2,
            "inverse": peak * math.sqrt((self.warmup + 1) / (position + 1)),
            "stairs": peak * 0.5 ** (position // 7),
        }
        return shapes.get(self.shape, peak)


PEAK: Final = 3e-3
REPORTED: Final = (
    "global_valid_tokens_in_update",
    "cumulative_train_tokens",
    "reported_global_step",
    "reported_loss",
)


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = random.Random(seed)
    data_ranks = rng.choice((1, 1, 1, 2, 2, 2, 3, 4))
    context = 2 if data_ranks <= 2 and rng.random() < 0.15 else 1
    tensor = 2 if data_ranks * context <= 2 and rng.random() < 0.15 else 1
    alone = data_ranks * context * tensor == 1
    accumulation = rng.choice((1, 2, 2, 3, 4, 4, 5, 8))
    tail: Tail = rng.choice(("applied", "applied", "dropped", "left out"))
    full = rng.randint(2, 5)
    batches = full * accumulation + (rng.randrange(accumulation) if tail != "left out" else 0)
    epochs = rng.randint(1, 4)
    ramp = (rng.randint(2, epochs), accumulation * 2) if epochs > 1 and rng.random() < 0.15 else None
    if ramp and tail == "left out":
        batches = 2 * full * accumulation
    scale = 2.0 ** rng.randint(10, 18) if rng.random() < 0.35 else None
    every = rng.choice((1, 1, 1, 1, 1, 2, 3))
    total = full * epochs // (2 if ramp else 1)
    breaks = []
    if total > 6 and rng.random() < 0.35:
        breaks.append((rng.randint(3, total // 2), rng.choice((0, 0, 1, 2))))
    if breaks and rng.random() < 0.3:
        breaks.append((breaks[0][0] + rng.randint(1, 3), rng.choice((0, 1))))
    return Plan(
        seed=seed,
        data_ranks=data_ranks,
        context=context,
        tensor=tensor,
        wrapper="none" if alone else rng.choice(("ddp", "ddp", "fsdp2")),
        no_sync=rng.random() < 0.6,
        accumulation=accumulation,
        ramp=ramp,
        batches=batches,
        epochs=epochs,
        tail=tail,
        watched=rng.random() < 0.7,
        scale=scale,
        ceiling=(scale or 1.0) / 2 ** rng.randint(0, min(3, total - 1)),
        growth_interval=rng.choice((5, 2000, 2000)),
        clip=rng.choice((None, 0.5, 1.0, 2.0)),
        shape=rng.choice(("none", "constant", "linear", "linear", "cosine", "inverse", "stairs")),
        warmup=rng.choice((0, 2, 3)),
        contract=rng.choice((1, 1, 1, 1, data_ranks)),
        declared=rng.random() < 0.5,
        average=rng.choice((None, None, 0.9, 0.999)),
        reports=frozenset(name for name in REPORTED if rng.random() < 0.6),
        launches=tuple(breaks),
        ending=rng.choice(("closed", "closed", "closed", "stopped", "killed", "cut", "torn")),
        absent=rng.choice(("none",) * 5 + ("a rank", "all but the first", "some records")),
        every=every,
        detail=rng.choice(("full", "full", "full", "sums")),
        dtype=rng.choice(("float32", "float32", "bfloat16")),
        unit=rng.choice(("token", "token", "token", "sample")),
    )
