"""No micro-step reduces the gradients: each rank trains a model of its own."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K7",
    code="ACC501",
    reports=("verl-project/verl#7493",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "it decides itself when DDP reduces",
        "Accelerate": OWN_LINES,
        "Lightning": "it decides itself when DDP reduces; with manual optimization: not trained",
        "DeepSpeed": "the engine reduces by itself; inside its no_sync: not trained",
    },
)
FAULT.by_demo("DDP", "update-without-sync", first=1)


@FAULT.on("FSDP1", first=1, twin="last")
def fsdp1(folder: str, honest: bool) -> None:
    _sharded(folder, honest, "fsdp1 NO_SHARD")


@FAULT.on("FSDP2", first=1, twin="last", also={"ACC506"}, notes={"ACC506"})
def fsdp2(folder: str, honest: bool) -> None:
    _sharded(folder, honest, "fsdp2")


def _sharded(folder: str, honest: bool, wrap: str) -> None:
    from tests.runtimes.fsdp import train

    train(folder, wrap=wrap, how=["last" if honest else "never"])
