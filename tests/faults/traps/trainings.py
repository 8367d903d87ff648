"""How the traps are trained: the demo's loop with traits, or a loop that writes a log of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accumaudit.demo.launching import scenario
from accumaudit.demo.loop import Loop
from tests.trainings import environment, make_loop


def train(folder: str, *names: str, own: Sequence[type[Loop]] = (), **settings: Any) -> None:
    """Train the demo's loop with these variants and with traits of a trap's own, in all its launches."""
    for launch in range(scenario(names[0]).launches):
        with environment(ACCUMAUDIT="1", TORCHELASTIC_RESTART_COUNT=str(launch)):
            make_loop(names, Path(folder), settings, *own).train()


def without_hooks(folder: str, *names: str, own: Sequence[type[Loop]] = (), **settings: Any) -> None:
    """Train it with nothing attached; a trait of the trap's own writes what there is to read."""
    with environment(ACCUMAUDIT="0"):
        make_loop(names, Path(folder), settings, *own).train()


class Table:
    """A log as a loop writes it: a line of JSON for each update, beside a config with what was set."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(settings))
        self._path = folder / "train_log.jsonl"

    def write(self, **row: Any) -> None:
        with self._path.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
