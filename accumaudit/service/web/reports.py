"""Post-mortems of runs: made where somebody asks for one, one at a time, and kept as long as they hold."""

from __future__ import annotations

import gzip
import html
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accumaudit.service.judging.worker import Answer, Worker
from accumaudit.service.snapshot import RUNNING, RunView, Snapshot

if TYPE_CHECKING:
    from accumaudit.service.judging.setup import Asked

KEPT: Final = 8
"""Post-mortems that are kept; the one that was asked for the longest ago goes."""
HOLDS: Final = 30.0
"""Seconds that each is shown whatever its run does: one that grows fast would never be shown otherwise."""
GROWTH: Final = 1.1
"""How many times as many attempts a run has when another is made."""

_BEAT: Final = 0.1
_POLICY: Final = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a post-mortem may cost."""

    seconds: float = 600.0
    memory: str = "1GB"
    """The most that the database of the process may take."""
    read: int = 4 * 2**30
    """Bytes of the run's folder."""
    page: int = 16 * 2**20
    """Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """What was known of a run when its post-mortem was asked for."""

    started_at: float | None
    launches: int
    running: bool
    found: frozenset[str]
    """Codes of the rules that found something."""
    attempts: int

    @classmethod
    def of(cls, run: RunView) -> _Version:
        """That of a run now."""
        return cls(
            started_at=run.started_at,
            launches=run.launches,
            running=run.state == RUNNING,
            found=frozenset(one.code for one in run.active),
            attempts=run.report.attempts,
        )

    def is_old(self, newer: _Version) -> bool:
        """Whether the run has changed enough since for another post-mortem."""
        if not newer.running and newer.attempts != self.attempts:
            return True
        has_grown = newer.attempts > GROWTH * self.attempts
        mine = self.started_at, self.launches, self.running, self.found
        return has_grown or mine != (newer.started_at, newer.launches, newer.running, newer.found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The post-mortem of a run, or why there is none."""

    page: bytes = b""
    """A whole file of HTML, compressed."""
    policy: str | None = None
    """What the page lets a browser do, as the page itself says."""
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    report: Report
    version: _Version
    made_at: float

    def holds(self, version: _Version, now: float) -> bool:
        is_new = now < self.made_at + HOLDS
        return is_new or (self.report.trouble is None and not self.version.is_old(version))


class Reports:
    """The post-mortems that were made.

    Args:
        asked: which rules judge, and how.
        limits: what one may cost.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        asked: Asked,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asked = asked
        self._limits = limits or Limits()
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._making: str | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def making(self) -> str | None:
        """The run whose post-mortem is being made."""
        return self._making

    def report(self, run: RunView, snapshot: Snapshot) -> Report | None:
        """The post-mortem of a run; None while it, or another before it, is being made."""
        version, name = _Version.of(run), run.run_id
        with self._lock:
            kept = self._kept.pop(name, None)
            if kept is not None and kept.holds(version, self._clock()):
                self._kept[name] = kept  # as the newest
                return kept.report
            if self._making is None and not self._closing.is_set():
                self._making = name
                given = (name, version, self._request(run, snapshot))
                self._thread = threading.Thread(
                    target=self._make, args=given, name="accumaudit-postmortem", daemon=True
                )
                self._thread.start()
            return None

    def close(self) -> None:
        """End what is being made; nothing stays behind."""
        with self._lock:
            self._closing.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _request(self, run: RunView, snapshot: Snapshot) -> dict[str, Any]:
        folder = run.report.path
        in_folder = [one.run_id for one in snapshot.runs if one.report.path == folder]
        first = min(in_folder, key=lambda name: (len(name), name))
        return {
            "post_mortem": run.run_id,
            "places": [folder],
            "memory": self._limits.memory,
            "limit": self._limits.read,
            "largest": self._limits.page,
            **self._asked.request({folder: first}),
        }

    def _make(self, name: str, version: _Version, request: dict[str, Any]) -> None:
        folder = Path(tempfile.gettempdir(), f"accumaudit-postmortem-{secrets.token_hex(8)}")
        worker = Worker(folder, self._clock)
        try:
            worker.ask(request, self._limits.seconds)
            while (answer := worker.answer()) is None:
                if self._closing.wait(_BEAT):
                    return
            report = _report(answer)
            with self._lock:
                self._kept[name] = _Kept(report=report, version=version, made_at=self._clock())
                if len(self._kept) > KEPT:
                    del self._kept[next(iter(self._kept))]
        finally:
            worker.close()
            shutil.rmtree(folder, ignore_errors=True)
            self._making = None


def _report(answer: Answer) -> Report:
    if "error" in answer:
        return Report(trouble=answer["error"])
    page = answer["page"].encode("utf-8", "backslashreplace")
    said = _POLICY.search(page)
    policy = html.unescape(said[1].decode()) if said else None
    return Report(page=gzip.compress(page, compresslevel=6, mtime=0), policy=policy)
