"""The watcher of a run: a process that judges the records while they are written, and what it has found."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import subprocess
import sys
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

log = logging.getLogger("accumaudit")

SEVERITIES: Final = ("error", "warning", "note")
"""The highest first."""

TIMEOUT: Final = 60.0
"""Seconds that the last judgement may take."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one rule has found in this launch of the run so far."""

    code: str
    name: str
    severity: str
    """error, warning or note."""
    count: int
    """Attempts with the fault."""
    first_update: int | None
    last_update: int | None
    ranks: tuple[int, ...]
    message: str
    """What was seen, of the first."""
    observed: float | None
    expected: float | None
    summary: str
    """What the rule says is wrong."""
    advice: str
    """What to do about it."""
    text: str
    """Code, updates and message in one line: what the console shows."""


class FaultFoundError(Exception):
    """The training was stopped, as `attach` was told by `stop_on`; `findings` are those of rank 0."""

    def __init__(self, text: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(text)
        self.findings = findings


class Watcher:
    """Runs `python -m accumaudit.service.watcher` over a run, and says each finding once on stderr.

    The process has a low priority, and ends with this one, however that ends.
    """

    def __init__(self, run: Path) -> None:
        self._found: dict[str, Finding] = {}
        self._told: set[str] = set()
        self._verdict: str | None = None
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        if find_spec("duckdb") is None:
            log.warning(
                "accumaudit: nothing is watched: judging needs duckdb, which is not installed: "
                "pip install duckdb"
            )
            return
        try:
            self._start(run)
        except OSError as error:
            log.warning("accumaudit: nothing is watched: the watcher could not be started: %s", error)

    def _start(self, run: Path) -> None:
        # Without a buffer: there is none whose lock a fork could find locked.
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "accumaudit.service.watcher", str(run)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread = threading.Thread(
            target=self._listen, args=(process,), name="accumaudit-watcher", daemon=True
        )
        self._thread.start()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What stands, the highest severity first."""
        return tuple(sorted(self._found.values(), key=lambda one: SEVERITIES.index(one.severity)))

    def at_or_above(self, severity: str) -> tuple[Finding, ...]:
        """What stands of this severity and of higher ones."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return tuple(one for one in self.findings if one.severity in worst)

    def close(self) -> str | None:
        """Wait for the judgement of all that was written, and end.

        Returns:
            The verdict in one line; nothing where there is none.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        self._closing = True
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended by itself
            process.stdin.write(b"close\n")
        process.stdin.close()
        self._thread.join(TIMEOUT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.0 if self._thread.is_alive() else TIMEOUT)
        process.kill()
        process.wait()
        self._thread.join(1.0)
        return self._verdict

    def disown(self) -> None:
        """In a forked child: the process is the parent's, and has to see the parent's end alone."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert isinstance(process.stdout, io.RawIOBase)
        with io.BufferedReader(process.stdout) as output:
            for line in output:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut
                    self._hear(json.loads(line))
        if not self._closing:
            log.warning("accumaudit: the watcher has ended by itself: what it finds is told at the end alone")

    def _hear(self, told: dict[str, Any]) -> None:
        if told["record"] == "verdict":
            self._verdict = str(told["text"])
        elif told["record"] == "finding":
            finding = _finding(told)
            # Replaced, never changed: the training reads it meanwhile.
            others = {code: one for code, one in self._found.items() if code != finding.code}
            self._found = others if told["withdrawn"] else {**others, finding.code: finding}
            if finding.code not in self._told and not told["withdrawn"]:
                self._told.add(finding.code)
                say(finding.text)


def say(text: str) -> None:
    """One line on stderr, if there is one still."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"accumaudit: {text}\n")
        sys.stderr.flush()


def _finding(told: dict[str, Any]) -> Finding:
    found = told["finding"]
    return Finding(
        code=told["code"],
        name=told["name"],
        severity=told["severity"],
        count=found["count"],
        first_update=found["first_update"],
        last_update=found["last_update"],
        ranks=tuple(found["ranks"]),
        message=found["message"],
        observed=found["observed"],
        expected=found["expected"],
        summary=told["summary"],
        advice=told["advice"],
        text=told["text"],
    )
