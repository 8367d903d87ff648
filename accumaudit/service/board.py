"""Where the newest snapshot hangs: one thread puts it up, any number of others look."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from accumaudit.service.snapshot import FindingView, Point, RunView, Snapshot
from accumaudit.service.troubles import Troubles


class Board:
    """The newest snapshot, and a way to wait for the next."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._changed = threading.Condition()
        self._snapshot = snapshot or Snapshot(time=time.time(), ready=False)
        self._version = 0

    @property
    def snapshot(self) -> Snapshot:
        """The newest."""
        return self._snapshot

    @property
    def version(self) -> int:
        """How many snapshots there have been."""
        return self._version

    def publish(self, snapshot: Snapshot) -> None:
        """Put up another snapshot."""
        with self._changed:
            self._snapshot = snapshot
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """Wait until there is a newer snapshot than this version, or the time is over; give the version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, seconds)
            return self._version


Told = tuple[str, str]
"""A finding by the names of its run and of its rule's code."""


class Listener(Protocol):
    """Is told what happens, in the thread that watches: it returns at once and does not raise."""

    @property
    def trouble(self) -> str | None:
        """Why it cannot do what it is for, in a sentence."""

    @property
    def waiting(self) -> Collection[Told]:
        """Findings that it was told of and has done nothing with: they are told again after a restart."""

    def found(self, run: RunView, finding: FindingView) -> None:
        """A rule found something in a run, for the first time."""

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Attempts were judged, each told once and in their order; none, where the run has ended."""

    def close(self) -> None:
        """Nothing more will be told."""


Owed = Mapping[str, Sequence[Told]]
"""Findings that are still to be told, by the kind of listener."""


class Listeners:
    """Several listeners, each told whatever becomes of the others.

    Args:
        listeners: one of a kind.
        troubles: keeps their errors.
    """

    def __init__(self, listeners: Sequence[Listener], troubles: Troubles) -> None:
        self._listeners = {type(one).__name__.strip("_"): one for one in listeners}
        self._troubles = troubles

    @property
    def sentences(self) -> list[str]:
        """What keeps them from their work."""
        return [one.trouble for one in self._listeners.values() if one.trouble]

    def owed(self, new: Sequence[Told] = ()) -> Owed:
        """What is to be told after a restart if the service ended now, before these new ones are told."""
        owed = {kind: [*one.waiting, *new] for kind, one in self._listeners.items()}
        return {kind: findings for kind, findings in owed.items() if findings}

    def found(self, run: RunView, finding: FindingView, kind: str | None = None) -> None:
        """Tell all of them, or the one of a kind."""
        for name, one in self._listeners.items():
            if kind in (None, name):
                with self._caught(name):
                    one.found(run, finding)

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Tell all of them."""
        for name, one in self._listeners.items():
            with self._caught(name):
                one.moved(run, points)

    def close(self) -> None:
        """Tell all of them."""
        for name, one in self._listeners.items():
            with self._caught(name):
                one.close()

    def _caught(self, name: str) -> AbstractContextManager[None]:
        return self._troubles.caught(f"telling {name}")
