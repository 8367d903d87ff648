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
        "Trainer": "it leaves the clip to the wrapper",
        "Accelerate": "it leaves the clip to the wrapper",
        "Lightning": "it refuses to clip shards by their own norm",
        "DeepSpeed": "the engine clips by the norm over all ranks",
    },
)


for runtime in ("FSDP1",):
    FAULT.by_demo(runtime, "shard-local-clip", first=1)
