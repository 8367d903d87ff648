"""What a recorded training keeps: memory, objects and tensors, before and after many updates."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import accumaudit
from accumaudit.hooks.session import session
from tests.loops import TinyModel, batches, token_loss

WARM: Final = 100
"""Updates after which everything that is kept for good is there."""


@dataclass(frozen=True)
class Kept:
    """What the process holds at one moment."""

    memory: int
    """Resident, in bytes."""
    objects: int
    tensors: int


def kept_now() -> Kept:
    """Once the writer has nothing left to do and cycles are collected."""
    for recorder in session.recorders:
        done = threading.Event()
        if recorder.writer is not None:
            recorder.writer.submit(done.set, urgent=True)
            assert done.wait(60)
    gc.collect()
    objects = gc.get_objects()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return Kept(resident, len(objects), sum(issubclass(type(found), Tensor) for found in objects))


def train(updates: int, folder: Path, each: Callable[[], None] = lambda: None) -> list[Kept]:
    """Train with the recorder; what was held after a few updates, and at four points after that."""
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = batches(2)
    held = []
    with accumaudit.attach(model, optimizer, scheduler, log_dir=folder, accumulation_steps=2, summary=False):
        for update in range(WARM + updates + 1):
            if update >= WARM and (update - WARM) % (updates // 4) == 0:
                held.append(kept_now())
            for ids in data:
                (token_loss(model(ids), ids) / 64).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if update % 10 == 0:
                model(data[0])  # an evaluation with gradients on: a forward that no backward uses
            each()
    return held
