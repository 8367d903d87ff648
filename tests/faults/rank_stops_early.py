"""A rank has less data than the others and leaves; they go on without it."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC601",
    reports=(),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "the others cannot go on: each forward gathers parameters from all ranks",
        "FSDP2": "the others cannot go on: each forward gathers parameters from all ranks",
        "Trainer": "not trained",
        "Accelerate": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "rank-stopped-early", first=8, severity="note")
