"""Every rank trains on the same rows."""

from __future__ import annotations

from tests.faults.registry import Fault

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
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "the loop between the engine's calls is the user's own there, as in a loop by hand",
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "identical-data-on-ranks", first=1)
