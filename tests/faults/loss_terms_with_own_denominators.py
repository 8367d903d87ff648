"""A second loss term is averaged over each micro-step's own tokens, the main one over the window's."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K2",
    code="ACC107",
    reports=(
        "allenai/OLMo#634",
        "NVIDIA/Megatron-LM#7452",
    ),
    elsewhere={
        "Trainer": "the loss is the user's own code there, as in a loop by hand",
        "Lightning": "the loss is the user's own code there, as in a loop by hand",
        "DeepSpeed": "the loss is the user's own code there, as in a loop by hand",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "loss-term-denominators", first=1)
