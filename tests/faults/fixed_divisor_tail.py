"""A short last window is divided by the full accumulation count."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K1",
    code="ACC101",
    reports=(
        "Lightning-AI/pytorch-lightning#19987",
        "huggingface/transformers#38837",
        "modelscope/ms-swift#10084",
        "jingyaogong/minimind#749",
    ),
    elsewhere={
        "Trainer": "it divides a short window by its own length",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "fixed-divisor-tail", first=4, observed=0.5)


@FAULT.on("Lightning", first=3, observed=0.6667)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL + EQUAL[:2], limit_train_batches=6)
    else:
        fit(folder, valid=EQUAL + EQUAL[:2])


@FAULT.on("DeepSpeed", first=3, observed=0.6667)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,), boundary="forced")
    else:
        train(folder, 1, valid=(EQUAL + EQUAL[:2],), boundary="forced")
