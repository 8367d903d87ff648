"""Micro-steps of one window are divided by numbers that have nothing in common."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K2",
    code="ACC106",
    reports=(
        "OpenNMT/OpenNMT-py#2209",
        "karpathy/nanoGPT#605",
    ),
    elsewhere={
        "Trainer": "the loss is the user's own code there, as in a loop by hand",
        "Lightning": "the loss is the user's own code there, as in a loop by hand",
        "DeepSpeed": "the loss is the user's own code there, as in a loop by hand",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "mixed-denominators", first=1, also={"ACC905"})
