"""Each rank has a rate of its own."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC603",
    reports=(),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "rate-disagreement", first=1)
