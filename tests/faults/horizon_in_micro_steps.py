"""The schedule is planned for the micro-batches of the run, and the run ends long before it."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K11",
    code="ACC305",
    reports=(
        "axolotl-ai-cloud/axolotl#1170",
        "Wuziyi616/nerv#3",
    ),
    elsewhere={
        "Lightning": "the schedule is the user's own there, as in a loop by hand",
        "Trainer": "it makes the schedule itself, for its own updates and optimizer",
        "DeepSpeed": "the schedule is the user's own there, as in a loop by hand",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "schedule-horizon-mismatch", first=None)
