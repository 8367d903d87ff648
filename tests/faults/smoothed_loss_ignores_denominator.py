"""With label smoothing the loss is a mean per micro-step again, though the trainer counts on a sum."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import EQUAL, OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC104",
    reports=("huggingface/transformers#46731",),
    elsewhere={
        "Trainer": "its own smoother divides by the window's tokens; a user's own: not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class Smoothing(Loop):
    """Smoothed losses, divided by the tokens of the window."""

    def summed_loss(self, batch: Batch) -> Tensor:
        return self.smoothed_loss(batch, "sum")

    def smoothed_loss(self, batch: Batch, reduction: str) -> Tensor:
        logits, labels = self.forward(batch)
        return functional.cross_entropy(
            logits, labels, ignore_index=IGNORED, reduction=reduction, label_smoothing=0.1
        )


class Undivided(Smoothing):
    """The mean of each micro-step, never divided by their number."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.smoothed_loss(batch, "mean")


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, Undivided, first=1, observed=4.0, settings=EQUAL)
