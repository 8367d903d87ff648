"""A second stage declares a rate of its own, and the checkpoint's groups bring the old one back."""

from __future__ import annotations

from accumaudit.demo.checkpoints import State
from accumaudit.demo.variants.resumption import SecondStage
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K13",
    code="ACC311",
    reports=(
        "NVIDIA/Megatron-LM#963",
        "NVIDIA/Megatron-LM#1138",
    ),
    elsewhere={
        "Trainer": "not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)


class OldRateWins(SecondStage):
    """The schedule of the stage takes its peak from the groups that were loaded."""

    def restore_schedule(self, state: State) -> None:
        super().restore_schedule(state)
        assert self.scheduler is not None
        self.scheduler.base_lrs = [10 * rate for rate in self.scheduler.base_lrs]
        for group in self.optimizer.param_groups:
            group["lr"] *= 10


for runtime in ("torch", "DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, OldRateWins, first=1, twin="second-stage")
