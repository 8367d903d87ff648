"""Trainings for tests, in the test's own process or, for two ranks, in the living pair."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accumaudit.demo.launching import scenario
from accumaudit.demo.loop import Loop
from accumaudit.demo.variants import combined
from accumaudit.hooks.shards import local

if TYPE_CHECKING:
    from tests.processes import Pair


def train(
    names: Sequence[str],
    folder: Path,
    ranks: int,
    pair: Pair,
    *,
    settings: Mapping[str, Any] | None = None,
    hooks: bool = True,
) -> list[dict[str, Any]]:
    """Train the loop that has all these traits; what each rank made of it.

    A single name is a whole scenario, with its own settings and launches.
    """
    results = []
    for launch in range(scenario(names[0]).launches):
        arguments: dict[str, Any] = {
            "names": list(names),
            "folder": str(folder),
            "settings": dict(settings or {}),
            "hooks": hooks,
            "launch": launch,
        }
        if ranks == 1:
            results = [train_here(**arguments)]
        else:
            results = pair.call("tests.trainings:train_here", **arguments)
    return results


def train_here(
    names: Sequence[str], folder: str, settings: dict[str, Any], hooks: bool, launch: int
) -> dict[str, Any]:
    """Train on this process's rank."""
    with environment(ACCUMAUDIT="1" if hooks else "0", TORCHELASTIC_RESTART_COUNT=str(launch)):
        loop = make_loop(names, Path(folder), settings)
        loop.train()
    return {"parameters": parameters_digest(loop), "losses": loop.losses, "updates": loop.updates}


def make_loop(names: Sequence[str], folder: Path, settings: dict[str, Any], *more: type[Loop]) -> Loop:
    """A loop with these traits and settings; `more` are traits of the test's own."""
    found = [scenario(name) for name in names]
    loop = combined(*more, *(training.loop for training in found))
    return loop(replace(found[0].settings, **settings), folder)


def parameters_digest(loop: Loop) -> str:
    """Equal where all parameters of this rank are equal, bit by bit."""
    digest = hashlib.sha256()
    for parameter in loop.model.parameters():
        digest.update(local(parameter.detach()).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
