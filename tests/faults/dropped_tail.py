"""The micro-steps of a short last window reach backward and never an optimizer step."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K1",
    code="ACC205",
    reports=(
        "NVIDIA-NeMo/Automodel#2257",
        "WalkingMeatAxolotl/AnimaLoraStudio#305",
        "tracel-ai/burn#5695",
    ),
    elsewhere={
        "Trainer": "it steps at the end of data with a length; without: see tail-carried-into-next-epoch",
        "Lightning": "it steps at the end of the data; with manual optimization: not trained",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "dropped-tail", first=4)


@FAULT.on("DeepSpeed", first=2, severity="note")  # no attempt follows: it is told at the last
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 2, valid=(EQUAL,))
    else:
        train(folder, 2, valid=(EQUAL + EQUAL[:2],))
