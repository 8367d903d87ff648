"""The scaler skips an update and the schedule moves on all the same."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K12",
    code="ACC302",
    reports=(
        "Lightning-AI/pytorch-lightning#18828",
        "huggingface/transformers#11106",
        "NVIDIA-NeMo/Speech#3293",
        "huggingface/accelerate#4242",
    ),
    elsewhere={},
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "schedule-advanced-on-skip", first=2, twin="overflow-skipped")


@FAULT.on("DeepSpeed", first=2, also={"ACC804"}, notes=("ACC804",))
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,), precision="bf16", epochs=2, overflow=[4])
    else:
        train(folder, 0, valid=(EQUAL,), precision="autocast", epochs=2, overflow=[4])


@FAULT.on("Lightning", first=2, also={"ACC804"})
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit, fp16
    from tests.runtimes.rows import EQUAL

    overflow = {} if honest else {"overflow_at": [4]}
    traits = {"schedule": {"interval": "step"}, **overflow}
    fit(folder, valid=EQUAL, max_epochs=2, plugins=[fp16()], traits=traits)


@FAULT.on("Trainer", first=2, also={"ACC804"}, notes=("ACC804",))
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train_scaled("adamw_torch" if honest else "adamw_torch_fused", folder)


@FAULT.on("Accelerate", first=2)
def accelerate(folder: str, honest: bool) -> None:
    from tests.runtimes.accelerate import train
    from tests.runtimes.rows import EQUAL

    train(folder, half=True, valid=(EQUAL,), overflow_at=[4], epochs=2, planned=4, fused=not honest)
