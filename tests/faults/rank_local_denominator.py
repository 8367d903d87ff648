"""Each rank divides by the tokens of its own window, and the reducer averages the ranks."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K3",
    code="ACC103",
    reports=(
        "pytorch/torchtitan#1842",
        "PrimeIntellect-ai/prime-rl#2562",
        "NVIDIA/Megatron-LM#7452",
    ),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Accelerate": OWN_LINES,
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)
for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "rank-local-denominator", first=1)


@FAULT.on("Trainer", first=1, processes=2)
def trainer(folder: str, honest: bool) -> None:
    from tests.runtimes import hf

    hf.train("default" if honest else "local counts", folder)
