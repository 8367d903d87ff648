"""The ranks have different loss scales, and each unscales the sum of all by its own."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC607",
    reports=("pytorch/pytorch#115710",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "not trained",
        "Accelerate": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": "the engine asks all ranks for an overflow before it changes the scale",
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "scale-disagreement", first=1, twin="under-scaler")
