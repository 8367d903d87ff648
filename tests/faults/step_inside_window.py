"""The optimizer steps in the midst of the declared window, on a part of its loss."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K9",
    code="ACC201",
    reports=("huggingface/accelerate#2790",),
    elsewhere={
        "Trainer": "it steps by the declared count itself",
        "Lightning": "it steps by the declared count itself; with manual optimization: not trained",
        "DeepSpeed": "the engine steps by the declared count itself; a boundary set by the loop: not trained",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "step-inside-window", first=1)
