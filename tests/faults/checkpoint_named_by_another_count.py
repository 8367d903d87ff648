"""Checkpoints bear the number of micro-steps as if it were that of updates."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K17",
    code="ACC809",
    reports=(
        "Lightning-AI/pytorch-lightning#2817",
        "NVIDIA-NeMo/Speech#6799",
    ),
    elsewhere={
        "Trainer": "it counts updates itself",
        "Lightning": "it counts steps of optimizers itself",
        "DeepSpeed": "the engine counts updates itself",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "checkpoint-named-by-another-count", first=4)
