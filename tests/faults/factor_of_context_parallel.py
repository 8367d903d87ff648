"""The loss is multiplied by the number of context-parallel ranks, whose gradients are added up already."""

from __future__ import annotations

from functools import partial

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K3",
    code="ACC104",
    reports=(
        "NVIDIA/Megatron-LM#673",
        "NVIDIA/Megatron-LM#906",
    ),
    elsewhere={
        "torch": "a single process has no context-parallel group",
        "Trainer": "not trained",
        "Accelerate": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)
expected = partial(FAULT.on, first=1, processes=4, observed=2.0)


@expected("DDP")
def ddp(folder: str, honest: bool) -> None:
    _train(folder, honest, "DDP")


@expected("FSDP1")
def fsdp1(folder: str, honest: bool) -> None:
    _train(folder, honest, "FSDP1")


@expected("FSDP2")
def fsdp2(folder: str, honest: bool) -> None:
    _train(folder, honest, "FSDP2")


def _train(folder: str, honest: bool, wrap: str) -> None:
    from tests.parallel_loops import split_sequences

    split_sequences(folder, wrap=wrap, axis="cp", factor=1.0 if honest else 2.0)
