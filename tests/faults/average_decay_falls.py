"""The decay of the moving average falls while the run goes on, so that it averages less and less."""

from __future__ import annotations

import torch

from accumaudit.demo.variants.averages import AverageByHand
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K18",
    code="ACC805",
    reports=("huggingface/diffusers#1864",),
    elsewhere={
        "Trainer": "it keeps no average; one in a callback: not trained",
        "Lightning": "its own average has a fixed decay; one by hand: not trained",
        "DeepSpeed": OWN_LINES,
    },
)


class FallingDecay(AverageByHand):
    """What is kept is the complement of the decay that was meant."""

    @torch.no_grad()
    def update_average(self) -> None:
        decay = 1 - min(0.9999, (1 + self.updates) / (10 + self.updates))
        for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(parameter, 1 - decay)
        self.audit.ema_updated(decay=decay)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, FallingDecay, first=2, twin="average-by-hand")
