"""The global step counts the steps of all optimizers, where updates were meant."""

from __future__ import annotations

from tests.faults.registry import Fault

OWN = "a loop by hand has a counter of its own, which global-step-counts-micro-steps has wrong"
FAULT = Fault(
    kind="K17",
    code="ACC804",
    reports=("Lightning-AI/pytorch-lightning#17958",),
    elsewhere={
        **dict.fromkeys(("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"), OWN),
        "Trainer": "it trains with one optimizer",
        "DeepSpeed": "an engine has one optimizer",
    },
)


@FAULT.on("Lightning", first=None, severity="note")
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import manual

    manual(folder, adversaries=not honest)
