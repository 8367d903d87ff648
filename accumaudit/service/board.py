"""Where the newest snapshot hangs: one thread puts it up, any number of others look."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from accumaudit.service.snapshot import FindingView, Point, RunView, Snapshot


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


class Listener(Protocol):
    """Is told what happens, in the thread that watches: it returns at once and does not raise."""

    def found(self, run: RunView, finding: FindingView) -> None:
        """A rule found something in a run, for the first time."""

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Attempts were judged, each told once and in their order."""

    def close(self) -> None:
        """Nothing more will be told."""


class Listeners:
    """Several listeners as one."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def found(self, run: RunView, finding: FindingView) -> None:
        """Tell all of them."""
        for one in self._listeners:
            one.found(run, finding)

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Tell all of them."""
        for one in self._listeners:
            one.moved(run, points)

    def close(self) -> None:
        """Tell all of them."""
        for one in self._listeners:
            one.close()
