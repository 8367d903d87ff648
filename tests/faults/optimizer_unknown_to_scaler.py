"""The losses are scaled and the optimizer steps without the scaler: nobody unscales its gradients."""

from __future__ import annotations

from accumaudit.demo.loop import Loop
from tests.faults.registry import Fault

FAULT = Fault(
    kind="K6",
    code="ACC703",
    reports=("huggingface/transformers#40799",),
    elsewhere={
        "Trainer": "it prepares its optimizer together with the scaler",
        "Lightning": "its precision plugin steps the optimizer; with manual optimization: not trained",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "scaler-order", first=1, twin="unscaled-by-the-step")


@FAULT.on("DeepSpeed", first=1)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 2, valid=(EQUAL,), precision="fp16", epochs=2)
    else:
        train(folder, 0, valid=(EQUAL,), precision="fp16", sgd=True)


class PastThePrepared(Loop):
    """The optimizer inside the prepared one steps."""

    def unscale(self) -> None:
        pass

    def apply(self) -> bool:
        vars(self.optimizer)["optimizer"].step()
        return True


FAULT.by_demo("Accelerate", PastThePrepared, first=1, twin="unscaled-by-the-step")
