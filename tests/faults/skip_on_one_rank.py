"""One rank sees an overflow and skips the update that the others apply."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC602",
    reports=("pytorch/pytorch#115710",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "the ranks gather parameters together, and wait for each other for good",
        "FSDP2": "the ranks gather parameters together, and wait for each other for good",
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "the loop between the engine's calls is the user's own there, as in a loop by hand",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "skip-disagreement", first=5, twin="scaled-gradients-reduced")
