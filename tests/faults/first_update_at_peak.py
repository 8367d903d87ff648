"""A warm-up was asked for, and the first update runs at the peak rate."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K11",
    code="ACC308",
    reports=("jiaweizzhao/GaLore#62",),
    elsewhere={
        "Trainer": "it makes the schedule itself, for its own updates and optimizer",
        "Lightning": "the schedule is the user's own there, as in a loop by hand",
        "DeepSpeed": "the schedule is the user's own there, as in a loop by hand",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "first-update-at-peak", first=1, twin="reporting")
