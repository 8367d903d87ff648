"""One rank takes up the optimizer's state at a resume, the other begins with an empty one."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC609",
    reports=("pytorch/pytorch#113765",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "each rank watches a parameter of its own shard, and two parameters may count differently",
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "the loop between the engine's calls is the user's own there, as in a loop by hand",
    },
)


for runtime in ("DDP", "FSDP2"):
    FAULT.by_demo(runtime, "optimizer-state-disagreement", first=1, twin="resumed")
