"""One rank takes up the optimizer's state at a resume, the other begins with an empty one."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC609",
    reports=("pytorch/pytorch#113765",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "missed: each rank watches a parameter of its shard, and others are not compared",
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("DDP", "FSDP2"):
    FAULT.by_demo(runtime, "optimizer-state-disagreement", first=1, twin="resumed")
