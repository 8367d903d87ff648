"""The weight decay of the checkpoint is replaced by another when the run is resumed."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K13",
    code="ACC310",
    reports=("NVIDIA/Megatron-LM#1138",),
    elsewhere={
        "Trainer": "it loads the states of optimizer and schedule itself",
        "Lightning": "it loads the states of optimizer and schedule itself",
        "DeepSpeed": "the engine loads the states of optimizer and schedule itself",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "weight-decay-break", first=1, twin="resumed")
