"""Accelerate as its documentation has it, and in ways that go wrong."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import accumaudit
from accumaudit import Audit
from accumaudit.demo.data import IGNORED
from tests.runtimes.rows import BATCH, EQUAL, STEPS, flat, loss_of, rank, rows, tiny_model

VALID = ((2, 9, 9, 19, 8, 8, 8, 7), (9, 9, 9, 8, 9, 9, 9, 10))
"""Valid tokens of each rank's micro-batches: over two ranks tokens count 0.535 to 3.9 times."""


@contextlib.contextmanager
def fresh(**options: Any) -> Iterator[Any]:
    """An Accelerator on the CPU; its library keeps state for the whole process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator  # type: ignore[import-untyped]  # it ships no types
    environment = dict(os.environ)
    if torch.distributed.is_initialized():
        # It looks for them, and then finds the group that there is.
        os.environ |= {"LOCAL_RANK": str(rank()), "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield Accelerator(cpu=True, **options)
    finally:
        os.environ.clear()
        os.environ |= environment
        reset()


def reset() -> None:
    """Forget what the library knows of this process."""
    from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]  # likewise

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def fp16(accelerator: Any, scale: float = 1024.0) -> None:
    """Half precision with a scaler, which is made for accelerators alone; one that is there is taken."""
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"


def data_of(valid: Sequence[Sequence[int]]) -> Any:
    """One data set; of its batches the ranks take one in turn."""
    return DataLoader(rows([count for each in zip(*valid, strict=True) for count in each]), batch_size=BATCH)  # type: ignore[arg-type]  # its rows


class Loop:
    """The loop of the documentation.

    Args:
        accelerator: the Accelerator.
        folder: where the run is recorded; None: it is not.
        data: what is prepared; by default every rank has its own micro-batches.
        epochs: iterations over it.
        normalise: "mean" of each micro-batch; "global": as the documentation's recipe for tokens has it;
            "bare": without the Accelerator's backward, so that nothing is divided.
        clip: in no micro-step, "guarded" by sync_gradients, or in "every" one.
        overflow_at: micro-steps, from 0, whose gradient is infinite.
        fused: whether the optimizer's kernel unscales by itself.
        planned: updates that are declared.
        audit: options of attach_accelerate.
    """

    def __init__(
        self,
        accelerator: Any,
        folder: Path | None,
        *,
        data: Any = None,
        epochs: int = 1,
        normalise: str = "mean",
        clip: str | None = None,
        overflow_at: Sequence[int] = (),
        fused: bool = False,
        planned: int | None = None,
        audit: dict[str, Any] | None = None,
    ) -> None:
        model = tiny_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        data = data_of(VALID[: accelerator.num_processes]) if data is None else data
        self.accelerator, self.inner = accelerator, model
        self.model, self.optimizer, self.scheduler, self.data = accelerator.prepare(
            model, optimizer, scheduler, data
        )
        self.epochs, self.normalise, self.clip, self.overflow_at = epochs, normalise, clip, overflow_at
        self.folder, self.planned, self.options = folder, planned, audit or {}
        self.micro_steps = 0
        self.after_update: Callable[[Loop], None] = lambda _loop: None

    def attach(self) -> Audit:
        if self.folder is None:
            return Audit(None)
        return accumaudit.attach_accelerate(
            self.accelerator,
            self.model,
            self.optimizer,
            self.scheduler,
            log_dir=self.folder,
            **{"summary": False, **self.options},
        )

    def train(self) -> list[float]:
        """Train; the parameters at the end."""
        with self.attach() as self.audit:
            if self.planned is not None:
                self.audit.declare(planned_updates=self.planned)
            for _ in range(self.epochs):
                self.epoch()
        return [float(value) for value in flat(self.inner)]

    def epoch(self) -> None:
        if self.normalise == "global":
            self.global_epoch()
            return
        for batch in self.data:
            with self.accelerator.accumulate(self.model):
                self.backward(self.overflowing(loss_of(self.model, batch)))
                self.step()

    def backward(self, loss: Tensor) -> None:
        if self.normalise == "bare":
            loss.backward()
        else:
            self.accelerator.backward(loss)

    def overflowing(self, loss: Tensor) -> Tensor:
        number, self.micro_steps = self.micro_steps, self.micro_steps + 1
        return loss * math.inf if number in self.overflow_at else loss

    def step(self) -> None:
        if self.clip == "every" or (self.clip == "guarded" and self.accelerator.sync_gradients):
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.after_update(self)

    def global_epoch(self) -> None:
        """Sums of the tokens' losses, divided by the tokens of the window over all ranks."""
        stream, left = iter(self.data), len(self.data)
        while left:
            window = [next(stream) for _ in range(min(STEPS, left))]
            left -= len(window)
            own = sum(int((batch["labels"] != IGNORED).sum()) for batch in window)
            tokens = int(self.accelerator.gather(torch.tensor([own])).sum())
            for number, batch in enumerate(window):
                last = number == len(window) - 1
                with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                    total = loss_of(self.model, batch, "sum") * self.accelerator.num_processes / tokens
                    # `backward` divides by its steps, whatever the window has.
                    self.accelerator.backward(total * self.accelerator.gradient_accumulation_steps)
            self.step()


def train(
    folder: str,
    *,
    audited: bool = True,
    accelerator: dict[str, Any] | None = None,
    plugin: dict[str, Any] | None = None,
    half: bool = False,
    valid: Sequence[Sequence[int]] | None = None,
    uneven: int | None = None,
    **options: Any,
) -> list[float]:
    """Train by the loop, recorded in the folder's `run`; the parameters at the end."""
    given = {"gradient_accumulation_steps": STEPS} | (accelerator or {})
    if plugin is not None:
        from accelerate.utils import GradientAccumulationPlugin  # type: ignore[import-untyped]  # likewise

        given = {"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=STEPS, **plugin)}
    with fresh(**given) as made:
        if half:
            fp16(made)
        data = None if valid is None else data_of(valid[: made.num_processes])
        if uneven is not None:
            data = DataLoader(rows([8] * uneven)[:-1], batch_size=BATCH)  # type: ignore[arg-type]  # its rows
        return Loop(made, Path(folder, "run") if audited else None, data=data, **options).train()


def healthy(folder: str) -> list[float]:
    """As its documentation has it, with micro-batches of equal length and no tail."""
    return train(folder, valid=(EQUAL, EQUAL), epochs=2, clip="guarded")


def split(folder: str) -> list[float]:
    """Train with batches that are divided among the ranks: one scheduler step belongs to each update."""
    from accelerate.utils import DataLoaderConfiguration

    config = DataLoaderConfiguration(split_batches=True)
    data: Any = DataLoader(rows([12] * 12), batch_size=2 * BATCH)  # type: ignore[arg-type]  # its rows
    with fresh(gradient_accumulation_steps=STEPS, dataloader_config=config) as accelerator:
        return Loop(accelerator, Path(folder, "run"), data=data).train()
