"""Ranks that share samples, layers or tensors."""

from __future__ import annotations

from tests.faults.registry import trap

SHARED = ("ACC103", "ACC104", "ACC604", "ACC605", "ACC606", "ACC608")


@trap("T15", on="DDP", processes=4, tempts=SHARED)
def sequences_split(folder: str) -> None:
    """Each context-parallel rank has one half of each sequence, with tokens of its own number."""
    from tests.parallel_loops import split_sequences

    split_sequences(folder, axis="cp")


@trap("T15", on="FSDP2", processes=4, tempts=("ACC103", "ACC104", "ACC606", "ACC608"))
def sequences_split_and_sharded(folder: str) -> None:
    """Sequence-parallel ranks have halves of the sequences, and shards of the parameters."""
    from tests.parallel_loops import split_sequences

    split_sequences(folder, axis="sp", wrap="FSDP2")


@trap("T15", on="FSDP2", processes=4, tempts=("ACC103", "ACC104", "ACC606", "ACC608"))
def tensors_split(folder: str) -> None:
    """Tensor-parallel ranks have the same samples, and parts of two layers."""
    from tests.parallel_loops import tensor_parallel

    tensor_parallel(folder)


@trap("T15", on="DDP", processes=4, tempts=("ACC104", "ACC604", "ACC605", "ACC606"))
def layers_split(folder: str) -> None:
    """The stages of a pipeline have other layers, and the loss is on the last one alone."""
    from tests.parallel_loops import pipeline

    pipeline(folder)
