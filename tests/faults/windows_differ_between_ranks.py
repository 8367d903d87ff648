"""One rank leaves a batch of every window out."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC606",
    reports=(),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "a rank that makes fewer forwards leaves the others waiting for its shards",
        "FSDP2": "a rank that makes fewer forwards leaves the others waiting for its shards",
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": OWN_LINES,
    },
)


FAULT.by_demo("DDP", "window-size-disagreement", first=1, severity="note")
