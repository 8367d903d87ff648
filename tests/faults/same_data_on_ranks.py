"""Every rank trains on the same rows."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K15",
    code="ACC608",
    reports=(
        "stanford-crfm/mistral#194",
        "huggingface/datasets#5360",
        "huggingface/transformers#11254",
    ),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "its loader splits the batches between the ranks; a loader of the user's: not trained",
        "Accelerate": "a prepared loader splits the batches between the ranks; another: not trained",
        "Lightning": "it puts in a sampler that splits the rows, unless told not to: not trained",
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "identical-data-on-ranks", first=1)
