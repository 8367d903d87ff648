"""The loss of one micro-step is not finite, and the window's update is applied."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K18",
    code="ACC109",
    reports=("speechbrain/speechbrain#1936",),
    elsewhere={
        "Trainer": "not trained",
        "DeepSpeed": "not trained",
    },
)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, "non-finite-micro-batch-applied", first=2)


@FAULT.on("Lightning", first=2)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=EQUAL, traits={"overflow_at": [4]})
