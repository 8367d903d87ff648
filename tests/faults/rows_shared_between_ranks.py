"""Every second window has the same rows on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop
from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC608",
    reports=("dreamzero0/dreamzero#91",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "its loader splits the batches between the ranks; a loader of the user's: not trained",
        "Accelerate": "a prepared loader splits the batches between the ranks; another: not trained",
        "Lightning": "it puts in a sampler that splits the rows, unless told not to: not trained",
        "DeepSpeed": OWN_LINES,
    },
)


class PartlyShared(Loop):
    """Every second window of each rank is the first rank's."""

    def windows(self) -> Iterator[list[Batch]]:
        own = [*super().windows()]
        everyones: list[list[list[Batch]]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(everyones, own)
        for number, batches in enumerate(own):
            yield everyones[0][number] if number % 2 else batches


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, PartlyShared, first=2)
