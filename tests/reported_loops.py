"""The smallest loops of public reports: losses linear in one or two weights, so that numbers are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

import accumaudit
from accumaudit.demo.registry import against_advice
from tests.runtimes.rows import rank
from tests.trainings import environment

Rows = Sequence[Sequence[float]]
"""A micro-step: the gradient of each of its tokens."""

UPDATES = 3


class Weights(nn.Module):
    """The loss of a token is the product of its row with the weights, and its gradient the row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))

    def forward(self, rows: Tensor) -> Tensor:
        """As logarithms of probabilities, whose negative is the loss."""
        return -(rows @ self.weights).unsqueeze(1)


def loss_of(model: nn.Module, rows: Rows, reduction: str = "mean") -> Tensor:
    """The loss of a micro-step."""
    labels = torch.zeros(len(rows), dtype=torch.long)
    return functional.nll_loss(model(torch.tensor(rows)), labels, reduction=reduction)


def linear(
    folder: str,
    micro_steps: Sequence[Sequence[Rows]],
    *,
    reduction: str = "mean",
    factors: Sequence[float] | None = None,
    reduced: Sequence[int] | None = None,
    bypassed: bool = False,
    clipped: Sequence[int] = (),
    cleared: Sequence[int] = (),
    logged: float | None = None,
) -> list[float]:
    """Three updates alike under SGD with a rate of 1; how far each of them moved the weights down.

    Args:
        folder: the run is recorded in it.
        micro_steps: of each rank, or of the only one.
        reduction: of each loss.
        factors: what the loss is multiplied by on each rank; by default what makes a mean of means.
        reduced: the micro-steps, from 0, in which DDP reduces; by default the last.
        bypassed: whether the module inside DDP is called.
        clipped: the micro-steps after which gradients are clipped to a norm of 1.
        cleared: those after which they are cleared, beside the last.
        logged: factor between the loss that counts and the one that is logged.
    """
    own = micro_steps[rank() % len(micro_steps)]
    model: nn.Module = Weights(len(own[0][0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if len(micro_steps) > 1:
        model = DistributedDataParallel(model)
    factor = 1 / len(own) if factors is None else factors[rank() % len(factors)]
    options: dict[str, Any] = {"accumulation_steps": len(own), "summary": False}
    with accumaudit.attach(model, optimizer, log_dir=folder, **options) as audit:
        for _ in range(UPDATES):
            total = 0.0
            for number, rows in enumerate(own):
                called = getattr(model, "module", model) if bypassed else model
                with _no_sync(model, number in (reduced or [len(own) - 1])):
                    loss = loss_of(called, rows, reduction) * factor
                    loss.backward()
                total += float(loss.detach())
                if number in clipped:
                    clip_grad_norm_(model.parameters(), 1.0)
                if number in cleared:
                    optimizer.zero_grad()
            optimizer.step()
            if logged is not None:
                audit.report(loss=total * logged)
            optimizer.zero_grad()
    (weights,) = model.parameters()
    return [-weight / UPDATES for weight in weights.tolist()]


def _no_sync(model: nn.Module, reduces: bool) -> AbstractContextManager[None]:
    return nullcontext() if reduces or not isinstance(model, DistributedDataParallel) else model.no_sync()


def scaled(folder: str, honest: bool) -> float:
    """A gradient of 0.5 under a loss scale of 65,536, clipped to 1 before it is unscaled, or after.

    Gives how far each update moved the weight down.
    """
    model = Weights(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    options: dict[str, Any] = {"accumulation_steps": 2, "summary": False}
    with accumaudit.attach(model, optimizer, None, scaler, log_dir=folder, **options):
        for _ in range(UPDATES):
            for _ in range(2):
                scaler.scale(loss_of(model, [[0.5]]) / 2).backward()
            if honest:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return -model.weights.item() / UPDATES


def warmed_up(folder: str, honest: bool) -> None:
    """A warm-up of 16 updates, advanced in each of four micro-steps, or once an update."""
    model = Weights(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 16))
    options: dict[str, Any] = {"accumulation_steps": 4, "summary": False}
    with accumaudit.attach(model, optimizer, scheduler, log_dir=folder, **options) as audit:
        audit.declare(warmup_updates=16, peak_learning_rate=1.0)
        for _ in range(20):
            for number in range(4):
                (loss_of(model, [[1.0]]) / 4).backward()
                if number == 3:
                    optimizer.step()
                    optimizer.zero_grad()
                if number == 3 or not honest:
                    with against_advice():
                        scheduler.step()


def resumed(folder: str, how: str) -> None:
    """A cosine from 0.001 over 100 updates, resumed after 45: rightly, "restarted", or made anew "at" 45."""
    state: dict[str, Any] = {}
    for launch, updates in enumerate((45, 55)):
        model = Weights(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if state:
            optimizer.load_state_dict(state["optimizer"])
        scheduler = _cosine(optimizer, state, how)
        with (
            environment(TORCHELASTIC_RESTART_COUNT=str(launch)),
            accumaudit.attach(model, optimizer, scheduler, log_dir=folder, summary=False) as audit,
        ):
            if state:
                audit.load_state_dict(state["audit"])
            for _ in range(updates):
                loss_of(model, [[1.0]]).backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            state = {
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "audit": audit.state_dict(),
            }


def _cosine(optimizer: torch.optim.Optimizer, state: dict[str, Any], how: str) -> LRScheduler:
    if state and how == "restarted":
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        return CosineAnnealingLR(optimizer, 100)
    if state and how == "at":
        return CosineAnnealingLR(optimizer, 100, last_epoch=45)
    scheduler = CosineAnnealingLR(optimizer, 100)
    if state:
        scheduler.load_state_dict(state["scheduler"])
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
    return scheduler


def fused_overflow(folder: str) -> list[bool]:
    """Accelerate with a fused AdamW whose second window overflows; the flags that it gives."""
    from tests.runtimes.accelerate import fp16, fresh

    flags = []
    with fresh(gradient_accumulation_steps=2) as accelerator:
        fp16(accelerator, 65536.0)
        model = Weights(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)
        scheduler = LambdaLR(optimizer, lambda step: 1 - step / 10)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        options: dict[str, Any] = {"log_dir": folder, "summary": False}
        with accumaudit.attach_accelerate(accelerator, model, optimizer, scheduler, **options):
            for number in range(6):
                with accelerator.accumulate(model):
                    row = math.inf if number == 1 else 1.0
                    accelerator.backward(loss_of(model, [[1.0]]) * row)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if number % 2:
                    flags.append(bool(optimizer.step_was_skipped))
    return flags


def tail_of_lightning(folder: str) -> None:
    """Six batches an epoch at four a window, for two epochs."""
    from torch.utils.data import DataLoader

    from tests.runtimes import lightning

    class Module(lightning.library().LightningModule):  # type: ignore[misc]  # imported where it is used
        def __init__(self) -> None:
            super().__init__()
            self.model = Weights(1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:  # noqa: ARG002 - Lightning's
            return loss_of(self.model, batch.tolist())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = LambdaLR(optimizer, lambda step: 1 - step / 4)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    data: Any = DataLoader([torch.ones(1)] * 6)  # type: ignore[arg-type]  # its rows
    lightning.fit(folder, module=Module(), data=data, accumulate_grad_batches=4, max_epochs=2)


def tail_of_trainer(folder: str) -> None:
    """The same data under Trainer, which divides by the batches that the window has."""
    from transformers import Trainer, TrainingArguments

    from accumaudit.hooks.hf_trainer import AccumauditCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Weights(1)

        def forward(self, rows: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.model, rows.tolist())}

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        num_train_epochs=2,
        max_grad_norm=0.0,
        optim="sgd",
        learning_rate=1.0,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = AccumauditCallback(Path(folder, "run"), summary=False)
    data: Any = [{"rows": [1.0]}] * 6
    Trainer(Model(), arguments, train_dataset=data, callbacks=[callback]).train()


def smoothed(folder: str, honest: bool) -> None:
    """Four micro-steps alike with smoothed labels; means that nothing divides, or sums over all tokens."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.eye(2), torch.tensor([0, 2])
    options: dict[str, Any] = {"accumulation_steps": 4, "summary": False}
    with accumaudit.attach(model, optimizer, log_dir=folder, **options):
        for _ in range(UPDATES):
            for _ in range(4):
                reduction = "sum" if honest else "mean"
                loss = functional.cross_entropy(
                    model(inputs), labels, reduction=reduction, label_smoothing=0.1
                )
                (loss / 8 if honest else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
