"""A resumed schedule stands one step from where it stood, and every rate after it is that of a neighbour."""

from __future__ import annotations

from accumaudit.demo.checkpoints import State
from accumaudit.demo.registry import against_advice
from accumaudit.demo.variants.resumption import ScheduleFastForwarded
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K13",
    code="ACC306",
    reports=(
        "huggingface/transformers#34053",
        "pytorch/pytorch#60265",
        "Lightning-AI/pytorch-lightning#4655",
    ),
    elsewhere={
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


class OneStepBehind(ScheduleFastForwarded):
    """The schedule is stepped to where it was, once too few."""

    def restore_schedule(self, _state: State) -> None:
        assert self.scheduler is not None
        with against_advice():
            for _ in range(self.updates - 1):
                self.scheduler.step()


for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, OneStepBehind, first=1, twin="schedule-fast-forwarded")
