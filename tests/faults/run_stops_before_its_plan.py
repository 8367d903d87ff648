"""The planned number of updates or epochs is not reached, and the run ends as if it were."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K1",
    code="ACC808",
    reports=(
        "huggingface/transformers#33455",
        "huggingface/transformers#37777",
    ),
    elsewhere={
        "Trainer": "that a callback ends it is what a loop by hand does with break",
        "Lightning": "that a callback ends it is what a loop by hand does with break",
        "DeepSpeed": "the loop is the user's own there, as in a loop by hand",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "run-stopped-short", first=None, twin="reporting")
