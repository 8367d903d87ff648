"""The tokens of one rank are multiplied by the number of ranks."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K16",
    code="ACC802",
    reports=("NVIDIA-NeMo/Speech#3738",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "between ranks it reduces by DDP, whose column tells",
        "Accelerate": "between ranks it reduces by DDP, whose column tells",
        "Lightning": "between ranks it reduces by DDP, whose column tells",
        "DeepSpeed": "the loop between the engine's calls is the user's own there, as in a loop by hand",
    },
)


for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "token-count-mismatch", first=1)
