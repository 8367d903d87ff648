"""Each parameter has an optimizer that steps inside the backward, in every micro-step of the window."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K9",
    code="ACC201",
    reports=(
        "jiaweizzhao/GaLore#78",
        "pytorch/pytorch#124523",
    ),
    elsewhere={
        "DDP": "it reduces a gradient after the hook that would step on it",
        "FSDP1": "it reduces a gradient after the hook that would step on it",
        "Trainer": "its loop wants to step an optimizer itself",
        "Accelerate": "the hooks of parameters are the user's own there, as in a loop by hand",
        "Lightning": "its loop wants to step an optimizer itself",
        "DeepSpeed": "the engine steps the optimizer itself",
    },
)
OPTIMIZERS = {"accumulation_steps": 4, "max_grad_norm": None, "batches": 12, "warmup_updates": None}
for runtime in ("torch", "FSDP2"):
    FAULT.by_demo(
        runtime,
        "optimizer-in-backward",
        first=1,
        twin="optimizer-for-each-layer",
        settings=OPTIMIZERS,
        also={"ACC101"},
    )
