"""The planned number of updates or epochs is not reached, and the run ends as if it were."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K1",
    code="ACC808",
    reports=("huggingface/transformers#33455",),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "run-stopped-short", first=None, twin="reporting")
