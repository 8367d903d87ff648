"""A sample that is masked as a whole counts as one token in the denominator."""

from __future__ import annotations

from collections.abc import Iterator

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K2",
    code="ACC110",
    reports=("radixark/miles#2796",),
    elsewhere={
        "Trainer": "it counts the tokens itself; a count of the user's own: not trained",
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


class SampleMasked(Loop):
    """The first row of every micro-step has no token with a loss."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            for batch in batches:
                batch.labels[0] = IGNORED
            yield batches


class AtLeastOne(SampleMasked):
    """The tokens of each sample, and 1 where it has none."""

    def count(self, batches: list[Batch]) -> int:
        rows = [(batch.labels != IGNORED).sum(dim=1).clamp(min=1) for batch in batches]
        return sum(int(row.sum()) for row in rows)


for runtime in ("torch", "DDP", "FSDP1", "FSDP2", "Accelerate"):
    FAULT.by_demo(runtime, AtLeastOne, first=1, settings={"batch_size": 3})
