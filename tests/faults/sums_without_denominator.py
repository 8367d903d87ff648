"""The losses are summed and nothing divides them, so the gradient grows with the tokens of the update."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K3",
    code="ACC104",
    reports=("radixark/miles#3231",),
    elsewhere={
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class Summed(Loop):
    """The sum over the tokens, as it is."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, Summed, first=1, severity="warning")


@FAULT.on("Trainer", first=1, severity="warning")
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    def summed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return hf.mean_loss(outputs.logits, labels, "sum")

    hf.fit(folder, compute_loss_func=hf.sum_func if honest else summed)
