"""The tokens of one rank are multiplied by the number of ranks."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K16",
    code="ACC802",
    reports=("NVIDIA-NeMo/Speech#3738",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "it adds up the counts of all ranks itself",
        "Accelerate": OWN_LINES,
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "token-count-mismatch", first=1)
