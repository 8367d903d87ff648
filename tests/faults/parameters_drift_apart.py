"""A part of the model is initialised from each rank's own seed after the wrapper made the ranks equal."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC605",
    reports=(),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "each rank holds a shard of the one model, and no other rank has it too",
        "FSDP2": "each rank holds a shard of the one model, and no other rank has it too",
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "parameter-disagreement", first=1)
