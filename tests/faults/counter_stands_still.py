"""The count of trained tokens stays where it was while the run trains."""

from __future__ import annotations

from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.variants.resumption import Reporting
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K16",
    code="ACC802",
    reports=("huggingface/transformers#34567",),
    elsewhere={
        "Trainer": "it adds up input tokens in every micro-step; where it is told not to, none are recorded",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)

WHY = "a count may go on from an earlier run's, so it is judged by its rise"


class StandingStill(Reporting):
    """Nobody adds the tokens of the update."""

    def step(self, window: Window) -> None:
        Loop.step(self, window)
        self.audit.report(cumulative_train_tokens=self.tokens_so_far)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, StandingStill, first=1, found=2, why_later=WHY, twin="reporting")
