"""The schedule sets the rate of an optimizer that no longer steps."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K14",
    code="ACC307",
    reports=(
        "microsoft/rat-sql#45",
        "pytorch/ignite#545",
    ),
    elsewhere={
        "Trainer": "it makes the schedule for its own optimizer; a pair of the user's: not trained",
        "Lightning": "it raises where a schedule belongs to an optimizer that it was not given",
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "detached-schedule", first=2)
