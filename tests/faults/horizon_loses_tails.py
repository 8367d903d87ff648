"""The updates of the tails were not counted, and the schedule ends before the run."""

from __future__ import annotations

from accumaudit.demo.loop import Loop
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K11",
    code="ACC305",
    reports=(
        "deepset-ai/FARM#46",
        "NVIDIA-NeMo/Automodel#2257",
    ),
    elsewhere={
        "Trainer": "it counts the tails in its own schedule; a user's own: not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class PlannedWithoutTails(Loop):
    """The horizon is that of the whole windows."""

    def rate(self, update: int) -> float:
        warmup = self.settings.warmup_updates or 0
        if update < warmup:
            return super().rate(update)
        whole = self.settings.batches // self.settings.accumulation_steps * self.settings.epochs
        return max(0, whole - update) / (whole - warmup)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, PlannedWithoutTails, first=None, settings={"epochs": 8})
