"""Gradients are averaged over data and sequence ranks, and multiplied by the number of data ranks alone."""

from __future__ import annotations

from functools import partial

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K3",
    code="ACC104",
    reports=("ByteDance-Seed/VeOmni#338", "huggingface/transformers#46775"),
    elsewhere={
        "torch": "a single process has no sequence-parallel group",
        "Trainer": "not trained",
        "Accelerate": "not trained",
        "Lightning": "not trained",
        "DeepSpeed": "not trained",
    },
)
expected = partial(FAULT.on, first=1, processes=4, observed=0.5)


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

    split_sequences(folder, wrap=wrap, axis="sp", factor=1.0 if honest else 0.5)
