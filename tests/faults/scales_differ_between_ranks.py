"""The ranks have different loss scales, and each unscales the sum of all by its own."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC607",
    reports=("pytorch/pytorch#115710",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "the loop between the engine's calls is the user's own there, as in a loop by hand",
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "scale-disagreement", first=1, twin="under-scaler")
