"""One rank sees an overflow and skips the update that the others apply."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC602",
    reports=("pytorch/pytorch#115710",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "not trained, though the report is of FSDP",
        "FSDP2": "not trained",
        "Trainer": "not trained",
        "Accelerate": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": "the engine asks all ranks for an overflow before it skips",
    },
)


for runtime in ("DDP",):
    FAULT.by_demo(runtime, "skip-disagreement", first=5, twin="scaled-gradients-reduced")
