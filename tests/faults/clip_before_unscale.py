"""Gradients are clipped while they still carry the loss scale."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K6",
    code="ACC402",
    reports=(
        "Lightning-AI/pytorch-lightning#9330",
        "rwth-i6/returnn#1590",
        "catalyst-team/catalyst#1319",
        "milesial/Pytorch-UNet#468",
        "pytorch/examples#1196",
    ),
    elsewhere={
        "Trainer": "it unscales before it clips",
        "Lightning": "it unscales before it clips; with manual optimization: not trained",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "clip-before-unscale", first=1, twin="under-scaler")


@FAULT.on("DeepSpeed", first=1)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 0, valid=(EQUAL,), precision="autocast", clipping=0.5, sgd=True)
    else:
        train(folder, 1, valid=(EQUAL,), precision="autocast", clipping=0.5, sgd=True)
