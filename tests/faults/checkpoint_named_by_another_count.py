"""Checkpoints bear the number of micro-steps as if it were that of updates."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K17",
    code="ACC809",
    reports=(),
    elsewhere={
        "Trainer": "it names its checkpoints itself, by the updates",
        "Lightning": "it names them by the steps of optimizers; with several of these: not trained",
        "DeepSpeed": "the engine's own tag is the number of updates; a tag of the loop's: not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "checkpoint-named-by-another-count", first=4)
