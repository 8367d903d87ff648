"""The global step counts micro-steps, where updates were meant."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K17",
    code="ACC804",
    reports=(
        "Lightning-AI/pytorch-lightning#831",
        "Lightning-AI/pytorch-lightning#2242",
        "Lightning-AI/pytorch-lightning#2817",
        "Lightning-AI/pytorch-lightning#6359",
    ),
    elsewhere={
        "Trainer": "it counts updates itself",
        "Lightning": "it counts steps of optimizers itself",
        "DeepSpeed": "the engine counts updates itself; a counter of the loop's own: not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "ambiguous-step-counter", first=None)
