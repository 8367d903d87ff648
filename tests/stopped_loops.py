"""Trainings that a fault stops: the loop itself says when rank 0 has found it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

import accumaudit
from accumaudit.hooks import attaching
from accumaudit.hooks.shards import is_distributed, local
from accumaudit.hooks.watching import Finding, Watcher
from tests.loops import TOKENS, TinyModel, batches, token_loss

STEPS = 2
"""Micro-steps of a window."""
UPDATES = 6
"""That a loop makes if nothing stops it."""

FINDING = Finding(
    code="ACC101",
    name="fixed-divisor-tail",
    severity="error",
    count=1,
    first_update=1,
    last_update=1,
    ranks=(0,),
    message="a tail of 2 of 4 weighs 0.5",
    observed=0.5,
    expected=1.0,
    summary="a short last window was divided by the full accumulation count",
    advice="Divide by the micro-steps that there are.",
    text="error ACC101 fixed-divisor-tail, update 1: a tail of 2 of 4 weighs 0.5",
)


class Told(Watcher):
    """A watcher that starts no process, and finds what it is given."""

    found: tuple[Finding, ...] = ()

    def _start(self, run: Path) -> None:
        del run  # nothing is started for it

    @property
    def findings(self) -> tuple[Finding, ...]:
        return Told.found


@contextmanager
def told() -> Iterator[Callable[[], None]]:
    """With watchers that find nothing until the function is called."""

    def find() -> None:
        Told.found = (FINDING,)

    Told.found = ()
    with mock.patch.object(attaching, "Watcher", Told):
        yield find


def train(
    folder: str,
    found_at: int | None,
    stop_on: str | None = "error",
    sharded: bool = False,
    stages: bool = False,
) -> dict[str, Any]:
    """Train on this rank, by DDP where there are several; how it ended.

    Args:
        folder: the run's.
        found_at: the update during which rank 0's watcher finds an error.
        stop_on: the option.
        sharded: by FSDP2 instead.
        stages: the ranks are said to be stages of a pipeline.
    """
    several = torch.distributed.is_initialized()
    torch.manual_seed(0)
    model: nn.Module = TinyModel()
    if sharded:
        fully_shard(model)
    elif several and not stages:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rank = torch.distributed.get_rank() if several else 0
    options: dict[str, Any] = {"accumulation_steps": STEPS, "summary": False, "stop_on": stop_on}
    if stages:
        options["layout"] = {"pp": (rank, 2)}
    ended: dict[str, Any] = {"updates": 0, "text": None, "codes": []}
    with told() as find, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        try:
            with accumaudit.attach(model, optimizer, scheduler, log_dir=folder, **options):
                for number in range(1, UPDATES + 1):
                    for ids in batches(2 * UPDATES)[number : number + STEPS]:
                        (token_loss(model(ids.roll(rank)), ids) / (STEPS * TOKENS)).backward()
                    if number == found_at and rank == 0:
                        find()
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    ended["updates"] = number
        except accumaudit.FaultFoundError as error:
            ended |= {"text": str(error), "codes": [one.code for one in error.findings]}
    flat = torch.cat([local(parameter.detach()).flatten() for parameter in model.parameters()])
    ended["whole"] = not any(is_distributed(parameter) for parameter in model.parameters())
    return {**ended, "scheduler": scheduler.last_epoch, "parameters": flat.numpy().tobytes().hex()}
