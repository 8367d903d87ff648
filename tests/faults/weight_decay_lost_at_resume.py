"""The weight decay of the checkpoint is replaced by another when the run is resumed."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K13",
    code="ACC310",
    reports=(),
    elsewhere={
        "Trainer": "it loads the optimizer's state, weight decay and all",
        "Lightning": "it loads the optimizer's state, weight decay and all",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "weight-decay-break", first=1, twin="resumed")
