"""A loss that is divided by the window's tokens is divided by its micro-steps as well."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import Fault

FAULT = Fault(
    kind="K4",
    code="ACC104",
    reports=(
        "huggingface/transformers#35808",
        "modelscope/ms-swift#10117",
        "deepspeedai/Megatron-DeepSpeed#42",
    ),
    elsewhere={},
)


class DividedTwice(Loop):
    """By the tokens of the window, and by its micro-steps."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return super().loss(batch, window) / len(window.batches)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, DividedTwice, first=1, observed=0.25)


@FAULT.on("Trainer", first=1, observed=0.3333)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    def divided(*arguments: Any, **keywords: Any) -> Tensor:
        return hf.sum_func(*arguments, **keywords) / hf.STEPS

    hf.fit(folder, compute_loss_func=hf.sum_func if honest else divided, batches=6)


@FAULT.on("DeepSpeed", first=1, observed=0.3333)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,))
    else:
        train(folder, 1, valid=(EQUAL,), divided=3)


@FAULT.on("Lightning", first=1, observed=0.3333)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=EQUAL, traits={"divided": 3})
