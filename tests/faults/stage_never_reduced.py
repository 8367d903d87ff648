"""The ranks of one pipeline stage never reduce their gradients; those of the others do."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K7",
    code="ACC605",
    reports=("huggingface/picotron#5",),
    elsewhere={
        "DDP": "torch's pipeline has it reduce with the last backward of every stage",
        "FSDP1": "torch's pipeline has it reduce with the last backward of every stage",
        "FSDP2": "torch's pipeline has it reduce with the last backward of every stage",
        "Trainer": "it has no pipeline",
        "Accelerate": "its pipeline is Megatron-LM's: not trained",
        "Lightning": "it has no pipeline",
        "DeepSpeed": "not trained",
    },
)


@FAULT.on("torch", first=1, processes=4)
def by_hand(folder: str, honest: bool) -> None:
    """The loop reduces after the schedule's last backward."""
    from tests.parallel_loops import pipeline

    pipeline(folder, wrap="none", reduced=(0, 1) if honest else (0,))
