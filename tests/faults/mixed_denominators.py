"""Micro-steps of one window are divided by numbers that have nothing in common."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC106",
    reports=("karpathy/nanoGPT#605",),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "mixed-denominators", first=1, also={"ACC905"})
