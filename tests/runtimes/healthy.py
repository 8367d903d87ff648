"""A healthy training of each runtime by its own documentation, on one process and on two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from accumaudit.demo.launching import launch, scenario
from tests.processes import Pair, Processes, resolve

PATIENCE: Final = 180.0
"""Seconds that a training may take; it needs some ten, most of them to import the framework."""

Train = Callable[[Path, Pair], list[Path]]
"""Trains on one process and on two, and gives the folders of the two ledgers."""


def torch_alone(folder: Path, _pair: Pair) -> list[Path]:
    """A loop in plain torch; under DistributedDataParallel on two processes."""
    folders = [folder / "alone", folder / "together"]
    for ranks, own in enumerate(folders, 1):
        launch(scenario("plain"), own, ranks)
    return folders


def by(module: str, folder: Path, pair: Pair, **options: Any) -> list[Path]:
    """A runtime that trains in this process, and in those of the pair."""
    alone, together = folder / "alone", folder / "together"
    resolve(_function(module))(str(alone), **options)
    pair.call(_function(module), timeout=PATIENCE, folder=str(together), **options)
    return [alone, together]


def by_engine(stage: int, folder: Path, pair: Pair) -> list[Path]:
    """DeepSpeed, which keeps the first process group for good: one process is a group of its own too."""
    alone, together = folder / "alone", folder / "together"
    single = Processes(1)
    try:
        for processes, own in ((single, alone), (pair, together)):
            processes.call(_function("deepspeed"), timeout=PATIENCE, folder=str(own), stage=stage)
    finally:
        single.close()
    return [alone, together]


def _function(module: str) -> str:
    return f"tests.runtimes.{module}:healthy"


RUNTIMES: Final[Mapping[str, Train]] = {
    "torch, DDP": torch_alone,
    "FSDP1": partial(by, "fsdp", wrap="fsdp1"),
    "FSDP2": partial(by, "fsdp", wrap="fsdp2"),
    "Trainer": partial(by, "hf"),
    "Accelerate": partial(by, "accelerate"),
    "Lightning": partial(by, "lightning"),
    **{f"DeepSpeed ZeRO-{stage}": partial(by_engine, stage) for stage in (0, 1, 2, 3)},
}
