"""Each micro-step is divided by its own tokens and weighs as its share of the samples."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC106",
    reports=(
        "verl-project/verl#5625",
        "mosaicml/composer#2241",
    ),
    elsewhere={
        "Trainer": "not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class UnevenRows(Loop):
    """Every second micro-step has half the rows."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            yield [half(batch) if number % 2 else batch for number, batch in enumerate(batches)]


def half(batch: Batch) -> Batch:
    """Its first rows."""
    return Batch(*(field[: len(field) // 2] for field in batch))


class WeighedBySamples(UnevenRows):
    """Tokens of long answers, and those beside few, hardly count."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, labels = self.forward(batch)
        share = len(batch.labels) / sum(len(other.labels) for other in window.batches)
        return functional.cross_entropy(logits, labels, ignore_index=IGNORED) * share


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    also = set() if runtime in ("torch", "Accelerate") else {"ACC905"}
    FAULT.by_demo(runtime, WeighedBySamples, first=1, settings={"batch_size": 4}, also=also)
