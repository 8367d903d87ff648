"""The loss calls a method of the module inside the wrapper, so the reducer never hears of the forward."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K7",
    code="ACC505",
    reports=("jingyaogong/minimind#853",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "the method would meet parameters that are still sharded, and raise",
        "FSDP2": "the wrapper is the module itself",
    },
)
FAULT.by_demo("DDP", "gradients-not-reduced", first=1)
