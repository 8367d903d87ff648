"""Runs a command for each finding, with the finding as JSON on its standard input."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from accumaudit.outputs.words import printable
from accumaudit.service.board import Told
from accumaudit.service.snapshot import FindingView, Point, RunView
from accumaudit.service.telling import told

log = logging.getLogger("accumaudit")

SECONDS: Final = 30.0
"""That a command may take."""
WAITING: Final = 64
"""Findings that may wait for the command; more are left out."""
KEPT: Final = 1000
"""Bytes of its output that are logged."""

_BEAT: Final = 0.1
_PIECE: Final = 512  # of the finding: what select calls writable takes so much at once


class Commands:
    """A listener that runs a command for each finding, one at a time and never through a shell.

    Args:
        command: program and arguments, with the quotes of a shell.
        seconds: that it may take; then it is killed, with what it has started.

    Raises:
        ValueError: no command, a quote that is left open, or a program that there is none of.
    """

    def __init__(self, command: str, seconds: float = SECONDS) -> None:
        self._words = _words(command)
        self._seconds = seconds
        self._waiting: deque[tuple[Told, str, bytes]] = deque()
        self._closed = False
        self._ends_at = math.inf
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="accumaudit-on-finding", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Nothing: what a command says of itself is logged."""
        return None

    @property
    def waiting(self) -> tuple[Told, ...]:
        """Findings that the command was not started for."""
        with self._changed:
            return tuple(which for which, _, _ in self._waiting)

    def found(self, run: RunView, finding: FindingView) -> None:
        """Run the command for it, after those that wait."""
        name = printable(f"{finding.code} in {run.run_id}")
        line = told(run.report, finding).encode() + b"\n"
        with self._changed:
            if len(self._waiting) < WAITING and not self._closed:
                self._waiting.append(((run.run_id, finding.code), name, line))
                self._changed.notify()
                return
        log.warning("the command is behind, and is not run for %s", name)

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Nothing is run for it."""

    def close(self) -> None:
        """Run it for those that wait, as long as one command may take for all of them, and end."""
        with self._changed:
            self._closed = True
            self._ends_at = time.monotonic() + self._seconds
            self._changed.notify()
        self._thread.join(self._seconds + 5.0)

    def _work(self) -> None:
        while (given := self._next()) is not None:
            name, line = given
            try:
                self._run(name, line)
            except Exception as error:  # whatever it is, the command is run for those that wait
                log.warning("the command could not be run for %s: %s", name, printable(str(error)))

    def _next(self) -> tuple[str, bytes] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._waiting and time.monotonic() < self._ends_at:
                _, name, line = self._waiting.popleft()
                return name, line
            if self._waiting:
                log.warning("the end came before the command was run for %d findings", len(self._waiting))
            return None

    def _run(self, name: str, line: bytes) -> None:
        ends_at = time.monotonic() + self._seconds
        process = subprocess.Popen(
            self._words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be killed with what it has started
        )
        with process, selectors.DefaultSelector() as selector:
            exchange = _Exchange(process, selector, line)
            while not (ended := exchange.is_over()) and time.monotonic() < min(ends_at, self._ends_at):
                pass
            if not ended:
                _kill(process)
        said = printable(exchange.output.decode("utf-8", "replace").strip())
        how = f"exit status {process.returncode}" if ended else "killed, it took too long"
        level = logging.INFO if ended and process.returncode == 0 else logging.WARNING
        log.log(level, "the command ran for %s: %s%s", name, how, f": {said}" if said else "")


class _Exchange:
    """What a process is given and what it says, a piece at a time; of the latter the beginning is kept."""

    def __init__(
        self, process: subprocess.Popen[bytes], selector: selectors.BaseSelector, given: bytes
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._left = memoryview(given)
        self._selector = selector
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self.output = b""

    def is_over(self) -> bool:
        """Give and take what is possible within a beat; whether the process has ended and said everything."""
        if not self._selector.get_map():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_BEAT)
            return self._process.returncode is not None
        ended = self._process.poll() is not None
        ready = self._selector.select(0 if ended else _BEAT)
        for key, _ in ready:
            if key.fileobj is self._stdin:
                self._give()
            else:
                self._take()
        # What it has left running may hold its output open for ever.
        return ended and not ready

    def _give(self) -> None:
        try:
            self._left = self._left[os.write(self._stdin.fileno(), self._left[:_PIECE]) :]
        except BrokenPipeError:  # it does not want to know
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _take(self) -> None:
        data = os.read(self._stdout.fileno(), 65536)
        self.output += data[: KEPT - len(self.output)]
        if not data:
            self._selector.unregister(self._stdout)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"the command {command!r} cannot be read: {error}") from None
    if not words:
        raise ValueError("the command is empty")
    if shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0]!r}: name one on the PATH, or its file")
    return words


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
