"""Each micro-step takes the mean over its own tokens, and the window the mean of these."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K2",
    code="ACC102",
    reports=(
        "huggingface/transformers#34191",
        "meta-pytorch/torchtune#1878",
        "marin-community/levanter#842",
        "ml-explore/mlx-lm#1413",
    ),
    elsewhere={},
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "mean-of-means", first=1, also={"ACC905"})


@FAULT.on("Lightning", first=1, also={"ACC905"})
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=(2, 15, 10, 8, 9, 10))


@FAULT.on("DeepSpeed", first=1, also={"ACC905"})
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,))
    else:
        train(folder, 1, valid=((2, 9, 9, 19, 8, 8),))


@FAULT.on("Trainer", first=1)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train("default" if honest else "override mean, scaled", folder)
