"""The loss that is logged is divided by the micro-steps once more; the gradient is right."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K4",
    code="ACC810",
    reports=(
        "huggingface/transformers#11919",
        "deepspeedai/DeepSpeed#1107",
    ),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": "not trained, though the loss that its backward returns is divided by the micro-steps",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "reported-loss-scaled", first=1)
