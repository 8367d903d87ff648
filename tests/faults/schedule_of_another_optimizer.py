"""The schedule sets the rate of an optimizer that no longer steps."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K14",
    code="ACC307",
    reports=(
        "microsoft/rat-sql#45",
        "pytorch/ignite#545",
    ),
    elsewhere={
        "Trainer": "it makes the schedule itself, for its own updates and optimizer",
        "Lightning": "the schedule is the user's own there, as in a loop by hand",
        "DeepSpeed": "the schedule is the user's own there, as in a loop by hand",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "detached-schedule", first=2)
