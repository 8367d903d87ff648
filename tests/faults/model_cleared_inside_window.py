"""The model's own zero_grad is called in every micro-step, past the wrapped optimizer's guard."""

from __future__ import annotations

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import Fault

FAULT = Fault(
    kind="K8",
    code="ACC202",
    reports=("tatsu-lab/alpaca_farm#57",),
    elsewhere={
        "DeepSpeed": "not trained",
    },
)


class ModelCleared(Loop):
    """Cleared by the model before each micro-step."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        self.model.zero_grad()
        return super().micro_step(number, batch, window)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, ModelCleared, first=1)


@FAULT.on("Lightning", first=1)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=EQUAL, traits={"before": lambda module: module.model.zero_grad()})


@FAULT.on("Trainer", first=1)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    cleared = hf.On("on_substep_end", lambda model, **_: model.zero_grad())
    hf.fit(folder, *([] if honest else [cleared]))
