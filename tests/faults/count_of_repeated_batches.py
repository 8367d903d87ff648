"""The tokens are counted over a loader that gives each batch as often as there are micro-steps."""

from __future__ import annotations

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC104",
    reports=("huggingface/trl#6452",),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class CountedRepeatedly(Loop):
    """The window's tokens, counted once for each of its micro-steps."""

    def count(self, batches: list[Batch]) -> int:
        return len(batches) * super().count(batches)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, CountedRepeatedly, first=1, observed=0.25)
