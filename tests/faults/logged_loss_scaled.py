"""The loss that is logged is divided by the micro-steps once more; the gradient is right."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K4",
    code="ACC810",
    reports=(
        "huggingface/transformers#11919",
        "deepspeedai/DeepSpeed#1107",
    ),
    elsewhere={
        "Trainer": "it logs the loss that it has divided itself",
        "Lightning": "what is logged is the user's own there, as in a loop by hand",
        "DeepSpeed": "what is logged is the user's own there, as in a loop by hand",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "reported-loss-scaled", first=1)
