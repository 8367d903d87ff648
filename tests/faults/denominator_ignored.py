"""The loss is a mean per micro-step, and whoever would divide it by the window thinks that it is done."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import EQUAL, Fault

FAULT = Fault(
    kind="K2",
    code="ACC104",
    reports=(
        "MakazhanAlpamys/Soup#720",
        "huggingface/transformers#37766",
        "hiyouga/LlamaFactory#7443",
        "agokrani/distillKitPlus#5",
        "huggingface/transformers#35207",
    ),
    elsewhere={
        "Lightning": "it divides by the accumulation count itself; with manual optimization: not trained",
    },
)


class Undivided(Loop):
    """The mean of each micro-step, never divided by their number."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        return functional.cross_entropy(logits, labels, ignore_index=IGNORED)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, Undivided, first=1, observed=4.0, settings=EQUAL)


@FAULT.on("Trainer", first=1, observed=3.0)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train("default" if honest else "classifier", folder)


@FAULT.on("DeepSpeed", first=1, observed=3.0)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,))
    else:
        train(folder, 1, valid=(EQUAL,), backward="undivided")
