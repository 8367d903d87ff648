"""The schedule advances once for each process in every update, and was planned in updates."""

from __future__ import annotations

from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import Fault

FAULT = Fault(
    kind="K10",
    code="ACC301",
    reports=(
        "huggingface/accelerate#2926",
        "huggingface/transformers#23986",
        "ContextualAI/HALOs#33",
        "jzhang38/EasyContext#21",
    ),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "it steps the schedule once for each update",
        "Accelerate": "the steps are its contract (trap T01); with a plan in updates: not trained",
        "Lightning": "it steps the schedule once for each update",
        "DeepSpeed": "the engine steps the schedule once for each update",
    },
)


class AdvancedPerProcess(Loop):
    """One step of the schedule for each process."""

    def advance_schedule(self, window: Window) -> None:
        for _ in range(self.world_size):
            super().advance_schedule(window)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, AdvancedPerProcess, first=1)
