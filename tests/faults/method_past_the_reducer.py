"""The loss calls a method of the module inside the wrapper, so the reducer never hears of the forward."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K7",
    code="ACC505",
    reports=("jingyaogong/minimind#853",),
    elsewhere={
        "torch": "a single process has no other ranks",
        "FSDP1": "the method meets parameters that are still sharded, and torch raises",
        "FSDP2": "the method meets parameters that are still sharded, and torch raises",
        "Trainer": "it calls the wrapper; a loss function that calls the module inside: not trained",
        "Accelerate": OWN_LINES,
        "Lightning": "it runs the training step inside the wrapper's forward",
        "DeepSpeed": "the engine reduces the gradients of all parameters, whoever calls the module",
    },
)
FAULT.by_demo("DDP", "gradients-not-reduced", first=1)
