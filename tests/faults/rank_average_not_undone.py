"""The loss is divided by the tokens of all ranks, and the reducer divides by the ranks once more."""

from __future__ import annotations

from tests.faults.registry import OWN_LINES, Fault

FAULT = Fault(
    kind="K3",
    code="ACC104",
    reports=(
        "meta-pytorch/torchtune#2172",
        "meta-pytorch/torchtune#2240",
        "huggingface/transformers#34373",
    ),
    elsewhere={
        "torch": "a single process has no other ranks",
        "Trainer": "it multiplies by the ranks itself",
        "Accelerate": OWN_LINES,
        "Lightning": OWN_LINES,
        "DeepSpeed": OWN_LINES,
    },
)
for runtime in ("DDP", "FSDP1", "FSDP2"):
    FAULT.by_demo(runtime, "wrong-total-weight", first=1, observed=0.5)
