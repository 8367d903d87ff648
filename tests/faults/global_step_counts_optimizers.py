"""The global step counts the steps of all optimizers, where updates were meant."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K17",
    code="ACC804",
    reports=("Lightning-AI/pytorch-lightning#17958",),
    elsewhere={
        "torch": OWN_LINES,
        "DDP": OWN_LINES,
        "FSDP1": OWN_LINES,
        "FSDP2": OWN_LINES,
        "Trainer": "it trains with one optimizer",
        "Accelerate": OWN_LINES,
        "DeepSpeed": "an engine has one optimizer",
    },
)


@FAULT.on("Lightning", first=None, severity="note")
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import manual

    manual(folder, adversaries=not honest)
