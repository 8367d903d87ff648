"""The schedule's own default peak replaces the rate that the optimizer was given."""

from __future__ import annotations

from accumaudit.demo.variants.resumption import Reporting
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K11",
    code="ACC311",
    reports=("deepspeedai/DeepSpeed#7303",),
    elsewhere={
        "Trainer": "it plans its own schedule over the optimizer's rate; a user's own: not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": "its WarmupLR takes the optimizer's rate where none is given; others: not trained",
    },
)


class SchedulesDefault(Reporting):
    """The schedule warms up to a rate of its own."""

    def rate(self, update: int) -> float:
        return super().rate(update) * 2000


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, SchedulesDefault, first=1, twin="reporting", settings={"learning_rate": 5e-7})
