"""A micro-batch is left out because its loss is not finite, and the divisor still counts it."""

from __future__ import annotations

from dataclasses import replace

from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import EQUAL, Fault

FAULT = Fault(
    kind="K18",
    code="ACC101",
    reports=("mflux-community/mflux#447",),
    elsewhere={
        "Trainer": "not trained",
        "DeepSpeed": "not trained",
    },
)


class LeftOut(Loop):
    """The second window loses its first micro-step; its tokens stay in the divisor."""

    def accumulate(self, window: Window) -> None:
        if self.updates == 1:
            window = replace(window, batches=window.batches[1:])
        super().accumulate(window)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, LeftOut, first=2, settings=EQUAL)


@FAULT.on("Lightning", first=1, observed=0.6667)
def lightning(folder: str, honest: bool) -> None:
    from tests.runtimes.lightning import fit
    from tests.runtimes.rows import EQUAL

    if honest:
        fit(folder, valid=EQUAL)
    else:
        fit(folder, valid=EQUAL, traits={"none_at": [0]})
