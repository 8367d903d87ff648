"""Each rank changes the reduced gradients in its own way before the step."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC604",
    reports=(),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "missed: ranks hold shards of the gradient, which the rule does not compare",
        "FSDP2": "missed: ranks hold shards of the gradient, which the rule does not compare",
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "gradient-disagreement", first=1)
