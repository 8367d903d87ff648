"""What judging goes by: which rules, what may be spent, and where the runs lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accumaudit.engine.catalogue import Catalogue
from accumaudit.engine.ignoring import Ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a project asks of every audit."""

    rules: tuple[Path, ...] = ()
    """Folders of further rules."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    """Rules that are left out."""
    ignores: tuple[Ignore, ...] = ()
    """Findings that are left out, each with its reason."""
    params: Mapping[str, float] = field(default_factory=dict)

    def request(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The part of a request that says which rules are asked for, and how.

        Args:
            names: the name of the run in each folder; of the first, where there are several.
        """
        return {
            "names": dict(names),
            "rules": [str(one) for one in self.rules],
            "select": list(self.select),
            "ignore": list(self.ignore),
            "ignores": [asdict(one) for one in self.ignores],
            "params": dict(self.params),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is kept and how much time is spent."""

    records: int = 4_000
    """Lines that are kept of all runs together; the last attempts of each run are kept whatever they are."""
    bytes: int = 32 * 2**20
    patience: float = 10.0
    """Seconds that ranks which are behind are waited with."""
    beat: float = 1.0
    """Seconds from one judgement's start to the next, at least."""
    share: float = 0.25
    """Of a core, for judging the newest attempts."""
    deadline: float = 120.0
    """Seconds that a judgement of the newest attempts may take."""
    pause: float = 60.0
    """Seconds after which a run that could not be judged is tried again; twice as long each time."""
    slow_beat: float = 60.0
    """Seconds from one reading of a run's whole record to the next, at least."""
    slow_deadline: float = 3600.0
    thin: int = 64 * 2**20
    """Bytes of a run above which one rank's record alone is read while the run runs."""
    whole: int = 16 * 2**30
    """Bytes of a run above which it is not read at its end either."""
    memory: str = "512MB"
    """The most that the database of a process that judges may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All of it."""

    root: Path
    """The folder that is watched."""
    asked: Asked
    limits: Limits
    catalogue: Catalogue
    clock: Callable[[], float]
    """Seconds that only grow."""
    folder: Path
    """For what goes to the processes that judge; made when one is needed, and removed with the last."""

    def home(self, folder: str) -> str:
        """The name of the first run in a folder."""
        return (self.root.resolve().name or "run") if folder == "." else folder

    def folders_of(self, run: str) -> list[str]:
        """The folders that a run of this name may lie in: the number may be a part of the folder's name."""
        first = re.sub(r"#\d+$", "", run)
        return list(dict.fromkeys([run, first, *(["."] if first == self.home(".") else [])]))
