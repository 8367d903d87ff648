"""A rank has less data than the others and leaves; they go on without it."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC601",
    reports=("pytorch/pytorch#113765",),
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
    FAULT.by_demo(runtime, "rank-stopped-early", first=8, severity="note")
