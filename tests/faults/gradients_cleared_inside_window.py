"""The gradients are cleared before every micro-step, so that only the last one counts."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K8",
    code="ACC202",
    reports=(
        "bytetriper/RAE#67",
        "HorizonRobotics/alf#1788",
        "gaozhihan/PreDiff#33",
        "dscripka/openWakeWord#316",
        "allenai/open-instruct#1498",
    ),
    elsewhere={
        "Trainer": "inside a window the zero_grad of its optimizer does nothing",
    },
)
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "gradients-cleared-inside-window", first=1)


@FAULT.on("DeepSpeed", first=1)
def deepspeed(folder: str, honest: bool) -> None:
    from tests.runtimes.deepspeed import train
    from tests.runtimes.rows import EQUAL

    if honest:
        train(folder, 1, valid=(EQUAL,))
    else:
        train(folder, 1, valid=(EQUAL,), cleared=[1])


@FAULT.on("Lightning", first=1)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=EQUAL, traits={"before": lambda module: module.optimizers().zero_grad()})
