"""A second loss term is averaged over each micro-step's own tokens, the main one over the window's."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC107",
    reports=(
        "allenai/OLMo#634",
        "NVIDIA/Megatron-LM#7452",
    ),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "loss-term-denominators", first=1)
