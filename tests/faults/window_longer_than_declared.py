"""The optimizer steps one micro-step late, and the loss is divided by the declared number of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import EQUAL, Fault

FAULT = Fault(
    kind="K1",
    code="ACC204",
    reports=("huggingface/transformers#37777",),
    elsewhere={
        "Trainer": "it steps by the declared count itself",
        "Lightning": "it steps by the declared count itself; with manual optimization: not trained",
        "DeepSpeed": "the engine steps by the declared count itself; a boundary set by the loop: not trained",
    },
)


class OneTooMany(Loop):
    """Steps after five micro-steps, although four are declared."""

    def windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps + 1)):
            yield window

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        mean = functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        return mean / self.settings.accumulation_steps


SETTINGS = {**EQUAL, "batches": 15, "warmup_updates": None}
for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(
        runtime,
        OneTooMany,
        first=1,
        observed=5,
        twin="mean-of-equal-lengths",
        settings=SETTINGS,
        also={"ACC104"},
    )
