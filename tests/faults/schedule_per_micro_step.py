"""The schedule advances with every micro-step: a warm-up ends, and the decay reaches its end, too early."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K10",
    code="ACC301",
    reports=(
        "huggingface/accelerate#963",
        "Lightning-AI/pytorch-lightning#1476",
        "starVLA/starVLA#210",
        "sgl-project/SpecForge#364",
        "h2oai/h2o-llmstudio#663",
        "tracel-ai/burn#5695",
    ),
    elsewhere={
        "DeepSpeed": "the engine steps the schedule itself; a step of the loop's besides: not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "schedule-per-micro-step", first=1)


@FAULT.on("Trainer", first=1)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    moved = hf.On("on_substep_end", lambda lr_scheduler, **_: lr_scheduler.step())
    hf.fit(folder, *([] if honest else [moved]))


@FAULT.on("Lightning", first=1, severity="note")
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    moved = {} if honest else {"before": lambda module: module.lr_schedulers().step()}
    fit(folder, valid=EQUAL, traits={"schedule": {"interval": "step"}, **moved})
