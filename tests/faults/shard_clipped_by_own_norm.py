"""Each rank clips its shard of the gradient by the norm of that shard."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K15",
    code="ACC405",
    reports=(
        "pytorch/pytorch#72548",
        "PrimeIntellect-ai/OpenDiloco#6",
    ),
    elsewhere={
        "torch": "a single process holds the whole gradient",
        "DDP": "every rank holds the whole gradient",
        "FSDP2": "its gradients are distributed tensors, of which torch takes the norm over all shards",
        "Trainer": "it leaves the clip of all parameters to the wrapper",
        "Accelerate": "it leaves the clip of all parameters to the wrapper; of some of them: not trained",
        "Lightning": "with FSDP it refuses to clip by a norm; a clip by hand: not trained",
        "DeepSpeed": "the engine clips by the norm over all ranks",
    },
)


for runtime in ("FSDP1",):
    FAULT.by_demo(runtime, "shard-local-clip", first=1)
