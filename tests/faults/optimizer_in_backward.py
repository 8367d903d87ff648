"""Each parameter has an optimizer that steps inside the backward, in every micro-step of the window."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K9",
    code="ACC201",
    reports=(
        "jiaweizzhao/GaLore#78",
        "jiaweizzhao/GaLore#62",
        "pytorch/pytorch#124523",
    ),
    elsewhere={
        "DDP": "not trained: the optimizer would step on a gradient that is not reduced yet",
        "FSDP1": "not trained",
        "Trainer": "it raises where an optimizer for each layer meets more than one micro-step",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
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
