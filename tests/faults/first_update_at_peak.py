"""A warm-up was asked for, and the first update runs at the peak rate."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K11",
    code="ACC308",
    reports=(),
    elsewhere={
        "Trainer": "not trained, though its constant schedule takes no warm-up",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "first-update-at-peak", first=1, twin="reporting")
