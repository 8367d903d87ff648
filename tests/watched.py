"""A watch over a folder in this process, and what it follows: both go on when they are told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from accumaudit.service.board import Board, Listener, Told
from accumaudit.service.judging.judge import Judge
from accumaudit.service.snapshot import FindingView, Point, RunView, Snapshot
from accumaudit.service.store import Store
from accumaudit.service.watch import Limits, Watch
from accumaudit.testing.records import build_run, to_line
from tests.servers import READY_SECONDS


class Writer:
    """The ranks of one run, which write an attempt when they are told to."""

    def __init__(self, folder: Path, attempts: Sequence[dict[str, Any]], ranks: int = 2) -> None:
        self._lines = {
            folder / f"rank-00/{rank:05d}.aaaa.jsonl": list(map(to_line, records))
            for rank, records in build_run(attempts, ranks).items()
        }
        self._written = 0

    def write(self, attempts: int) -> None:
        """Write up to so many attempts, each a line of every rank; one more is the mark at the end."""
        for file, lines in self._lines.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as opened:
                opened.writelines(lines[self._written : attempts + 1])
        self._written = attempts + 1

    def tear(self) -> None:
        """Write half of each line that follows."""
        for file, lines in self._lines.items():
            line = lines[self._written]
            with file.open("a") as opened:
                opened.write(line[: len(line) // 2])
            lines[self._written] = line[len(line) // 2 :]


class Listening:
    """Keeps what it is told."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.findings: list[Told] = []
        self.attempts: list[int] = []
        self.waiting: Collection[Told] = ()

    def found(self, run: RunView, finding: FindingView) -> None:
        self.findings.append((run.run_id, finding.code))

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        self.attempts += [one.attempt_id for one in points if run.run_id]

    def close(self) -> None:
        """Nothing is held."""


class Watched:
    """The watch, with what it works with; ended with the block, or before by `kill`."""

    def __init__(
        self,
        folder: Path,
        state: Path | None = None,
        limits: Limits | None = None,
        judge: Judge | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.board = Board()
        self.judge = judge or Judge(folder)
        self.store = None if state is None else Store(state)
        self.listening = Listening()
        told = (*listeners, self.listening)
        self.watch = Watch(folder, self.board, self.judge, self.store, told, limits)

    @property
    def snapshot(self) -> Snapshot:
        """What is known."""
        return self.board.snapshot

    def view(self, name: str = "run") -> RunView:
        """A run that is known."""
        found = self.snapshot.run(name)
        assert found is not None
        return found

    def until(self, ready: Callable[[], object], what: str = "what is waited for") -> None:
        """Turn until it is so."""
        end = time.monotonic() + READY_SECONDS
        while not ready():
            assert time.monotonic() < end, f"in {READY_SECONDS:g} seconds there was no {what}"
            self.watch.turn()
            time.sleep(0.02)

    def caught_up(self) -> bool:
        """Whether everything was read and judged."""
        return self.snapshot.ready and self.judge.idle

    def stop(self) -> None:
        """End it as a service manager does: what is known is saved."""
        stop = threading.Event()
        stop.set()
        self.watch.run(stop)

    def kill(self) -> None:
        """End it without a word: nothing is saved."""
        self.judge.close()
        if self.store is not None:
            self.store.close()

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
