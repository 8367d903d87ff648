"""Writes the records of one rank: a background thread, a bounded queue, one whole line per write.

The training thread hands over jobs; the thread runs them and writes what they return. A job that
fails, a full queue and a full disk cost records, never the training: what was lost is counted and
marked as a gap as soon as a line can be written again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Record = Mapping[str, Any]
Job = Callable[[], Record | None]

log = logging.getLogger("accumaudit")

QUEUE_LIMIT: Final = 4096
"""Jobs that may wait; beyond it records are lost rather than the training stalled."""

_open_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


def ledger_path(run: Path, rank: int, launch: str) -> Path:
    """The file of one rank: ranks lie in folders by the thousand."""
    return run / f"rank-{rank // 1000:02d}" / f"{rank:05d}.{launch}.jsonl"


PAUSE: Final = 0.25
"""Seconds that the thread rests after a record: what came meanwhile is written in one go. Waking it costs
the training more than the record does."""

_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(record: Record) -> bytes:
    """One line of strict JSON: a non-finite float becomes "NaN", "Infinity" or "-Infinity"."""
    try:
        line = _encoder.encode(record)
    except (ValueError, TypeError):  # a float that is not finite, or a number of numpy's
        line = _encoder.encode(_finite(record))
    return line.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return _finite(value.item()) if hasattr(value, "item") else value  # a number of numpy's


class LedgerWriter:
    """Appends records to one file.

    Args:
        path: the file; its folder is made.
        head: the `run` record, written at once.

    Raises:
        OSError: the folder cannot be made, or the file cannot be opened or written.
    """

    def __init__(self, path: Path, head: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = _open(path)
        self._head = head
        self._seq = 0
        self._fresh = _ends_with_newline(path)
        self._lost = 0
        self._lock = threading.Lock()
        self._warned = False
        self._hurry = threading.Event()
        try:
            self._write(head)
        except OSError:
            os.close(self._fd)
            raise
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="accumaudit-writer", daemon=True)
        self._thread.start()
        _open_writers.add(self)

    def submit(self, job: Job, urgent: bool = False) -> None:
        """Queue a job whose record is to be written; never waits.

        Args:
            job: what makes the record.
            urgent: somebody waits for it: the thread rests no longer.
        """
        if self._fd < 0:
            return
        if self._jobs.qsize() >= QUEUE_LIMIT:
            self._lose("the queue of records is full", 1)
            return
        self._jobs.put(job)
        if urgent:
            self._hurry.set()

    def close(self, timeout: float = 60.0) -> None:
        """Write what is queued and end the thread.

        Args:
            timeout: seconds to wait for the queue before the rest is given up.
        """
        if self._fd < 0:
            return
        _open_writers.discard(self)
        self._hurry.set()
        self._jobs.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("accumaudit: %s: %d records were not written in time", self.path, self._jobs.qsize())
        else:
            os.close(self._fd)
        self._fd = -1

    def abandon(self) -> None:
        """Forget the file: in a forked child the thread is gone and the file is the parent's."""
        self._fd = -1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._run(job)
        if self._lost:
            self._try_write({"record": "mark", "kind": "gap"})

    def _next(self) -> Job | None:
        """The next job; where none waits, a rest before looking again."""
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            if self._hurry.wait(PAUSE):
                self._hurry.clear()
            return self._jobs.get()

    def _run(self, job: Job) -> None:
        try:
            record = job()
        except Exception as error:
            self._lose(f"a record could not be computed ({type(error).__name__}: {error})", 1)
            log.debug("accumaudit: the failed record", exc_info=True)
            return
        if record is not None:
            self._try_write(record)

    def _try_write(self, record: Record) -> None:
        try:
            if self._lost:
                self._write_gap()
            if record.get("kind") != "gap":
                self._write(record)
        except (OSError, ValueError, TypeError) as error:
            self._lose(f"{error}", 0 if record.get("kind") == "gap" else 1)

    def _write_gap(self) -> None:
        with self._lock:
            lost = self._lost
        self._write(
            {
                "record": "mark",
                "kind": "gap",
                "launch": self._head["launch"],
                "rank": self._head["rank"],
                "time": time.time(),
                "lost_records": lost,
            }
        )
        with self._lock:
            self._lost -= lost

    def _write(self, record: Record) -> None:
        """One line in one write; after a partial one the next begins on a fresh line.

        A blank line costs the reader nothing, a torn one costs a record.
        """
        if os.fstat(self._fd).st_nlink == 0:
            self._begin_again()
        line = encode({**record, "seq": self._seq + 1})
        data = line if self._fresh else b"\n" + line
        try:
            written = os.write(self._fd, data)
        except OSError:
            self._fresh = False
            raise
        self._fresh = written == len(data)
        self._seq += 1
        if not self._fresh:
            raise OSError(f"only {written} of {len(data)} bytes were written")

    def _begin_again(self) -> None:
        """The file was deleted: what was in it is lost, and another takes its place."""
        lost, self._seq = max(0, self._seq - 1), 0
        self._lose("the file was deleted while it was written", lost)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = _open(self.path)
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)
        self._fresh = True
        self._write(self._head)
        self._write_gap()

    def _lose(self, why: str, records: int) -> None:
        with self._lock:
            self._lost += records
            warn, self._warned = not self._warned, True
        if warn:
            log.warning(
                "accumaudit: %s: %s. Training goes on; records are lost until this is mended, "
                "and the gap is marked.",
                self.path,
                why,
            )


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _abandon_all() -> None:
    for writer in list(_open_writers):
        writer.abandon()
    _open_writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
