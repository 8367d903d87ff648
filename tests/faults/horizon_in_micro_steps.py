"""The schedule is planned for the micro-batches of the run, and the run ends long before it."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K11",
    code="ACC305",
    reports=(
        "axolotl-ai-cloud/axolotl#1170",
        "Wuziyi616/nerv#3",
    ),
    elsewhere={
        "Trainer": "it plans its own schedule in updates; a user's own: not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "schedule-horizon-mismatch", first=None)
