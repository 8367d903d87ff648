"""A part of the model is initialised from each rank's own seed after the wrapper made the ranks equal."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC605",
    reports=("dreamzero0/dreamzero#91",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "ranks hold shards, which differ by design",
        "FSDP2": "ranks hold shards, which differ by design",
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "over ranks its columns are those of the reducer: the engine reduces by itself",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "parameter-disagreement", first=1)
