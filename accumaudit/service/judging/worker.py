"""A process that judges: started when it is needed, asked without waiting, ended with the service."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Answer = dict[str, Any]
"""What was said of each run, or `error`; and the CPU time, `seconds`."""

ENDING: Final = 5.0
"""Seconds that the process has to end before it is killed."""


class Worker:
    """A process that answers one request at a time; where it dies, the next request starts another.

    Args:
        spool: the folder that the process removes where the service dies.
        clock: seconds that only grow.
    """

    def __init__(self, spool: Path, clock: Callable[[], float]) -> None:
        self._spool = spool
        self._clock = clock
        self._process: _Process | None = None
        self._deadline: float | None = None

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return self._deadline is not None

    @property
    def pid(self) -> int | None:
        """The process, where there is one."""
        return None if self._process is None else self._process.pid

    def ask(self, request: Mapping[str, Any], seconds: float) -> None:
        """Hand over a request that is to be answered within so many seconds."""
        self._deadline = self._clock() + seconds
        with contextlib.suppress(OSError):  # the answer will say that the process is dead
            if self._process is None:
                self._process = _Process(self._spool)
            self._process.write(json.dumps(request).encode() + b"\n")

    def answer(self) -> Answer | None:
        """The answer, or nothing where it is still to come."""
        if self._deadline is None:
            return None
        if self._process is None:
            return self._failed("the process that judges cannot be started")
        try:
            line = self._process.answers.get_nowait()
        except queue.Empty:
            if self._clock() > self._deadline:
                return self._failed("judging took too long and was ended")
            return None
        if line is None:
            return self._failed("the process that judges ended by itself")
        self._deadline = None
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.close(kill=self.busy)
        self._deadline = None

    def _failed(self, why: str) -> Answer:
        """The answer of a process that gives none."""
        if self._process is not None:
            self._process.close(kill=True)
            self._process = None
        self._deadline = None
        return {"error": why, "seconds": 0.0}


class _Process:
    """The process itself; a thread reads what it writes."""

    def __init__(self, spool: Path) -> None:
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        spool.mkdir(mode=0o700, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "accumaudit.service.judging.child", str(spool)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(spool)},  # what the database has no room for
        )
        self._reader = threading.Thread(target=self._read, name="accumaudit-judge", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def write(self, line: bytes) -> None:
        """Hand over a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def close(self, *, kill: bool) -> None:
        """End it."""
        assert self._process.stdin is not None
        if kill:
            self._process.kill()
        with contextlib.suppress(OSError):
            self.write(b"\n")  # without it the process takes the service for dead
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(ENDING)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.answers.put(line)
        self.answers.put(None)
