"""The loop of the service: reads what is new, has it judged, and puts up what is known."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from accumaudit.engine.findings import RunReport
from accumaudit.importers import TITLES
from accumaudit.service.board import Board, Listener, Listeners
from accumaudit.service.counters import number
from accumaudit.service.following import Follower
from accumaudit.service.judging.judge import Judge, Judgement
from accumaudit.service.lines import Chunk
from accumaudit.service.runs import Run, Runs
from accumaudit.service.snapshot import RUNNING, FindingView, Intake, Point, RunView, Snapshot
from accumaudit.service.store import Store, StoreError

BEAT: Final = 1.0
"""Seconds from one reading to the next, where it takes less."""

SAVE: Final = 5.0
"""Seconds from one saving to the next; a new finding is saved at once."""

LAG_BOUNDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the seconds between a record's own time and its reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is kept."""

    runs: int = 1_000
    retain_ended: float = 24 * 3600.0
    """Seconds that a run is shown after it has ended."""


class Lag:
    """How old records are when they are read, once the service has caught up."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LAG_BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one record; one of a clock that is ahead is not old."""
        seconds = max(seconds, 0.0)
        self._counts[bisect_left(LAG_BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """Records."""
        return sum(self._counts)

    @property
    def buckets(self) -> dict[float, int]:
        """Records up to each bound."""
        sums = [sum(self._counts[: place + 1]) for place in range(len(LAG_BOUNDS))]
        return dict(zip(LAG_BOUNDS, sums, strict=True))


class Watch:
    """Follows the runs below a folder.

    Args:
        folder: the one that is watched.
        board: where what is known is put up.
        judge: has the records judged.
        store: keeps what was read and told over a restart; None: nothing does.
        listeners: are told of findings and attempts.
        limits: how much is kept.

    Raises:
        StoreError: what the store holds cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        board: Board,
        judge: Judge,
        store: Store | None = None,
        listeners: Sequence[Listener] = (),
        limits: Limits | None = None,
    ) -> None:
        self._board, self._judge, self._store = board, judge, store
        self._listeners = Listeners(listeners)
        self._limits = limits or Limits()
        loaded = store.load() if store else {}
        self._counts: dict[str, int] = {
            "records": 0,
            "malformed": 0,
            **loaded.get("counts", {}).get("all", {}),
        }
        self._follower = Follower(folder, loaded.get("places"))
        self._runs = Runs(folder.resolve().name or "run", self._limits.runs)
        self._runs.restore(loaded.get("runs", {}), time.monotonic())
        judge.restore(loaded.get("judged", {}))
        self._judged: dict[str, Judgement] = {}
        self._views: dict[str, tuple[int, RunView]] = {}
        self._ended: dict[str, float] = {}
        """When a run's state became one of those at the end, by the monotonic clock."""
        self._lag = Lag()
        self._ready = False
        self._saved_at = time.monotonic()
        self._unsaved: set[str] = set()
        self._save_errors = 0
        self._trouble: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Turn until told to stop; then save and let go of everything."""
        try:
            while not stop.is_set():
                began = time.monotonic()
                self.turn()
                stop.wait(max(BEAT - (time.monotonic() - began), 0.05))
        finally:
            self._save()
            self._listeners.close()
            self._judge.close()
            if self._store is not None:
                self._store.close()

    def turn(self) -> None:
        """Read, judge, save, put up."""
        now = time.time()
        for chunk in self._follower.turn():
            self._take(chunk, now)
        self._ready = self._ready or self._follower.caught_up
        for name, run in self._runs.items():
            if run.settle(time.monotonic()):
                self._turn_state(name, run)
        news = [self._keep(judgement) for judgement in self._judge.turn(now)]
        self._forget_ended()
        is_new = any(judgement.new for judgement, _ in news)
        if is_new or time.monotonic() - self._saved_at > SAVE:
            self._save()
        self._board.publish(self._snapshot(now))
        for judgement, points in news:
            self._tell(judgement, points)

    def _take(self, chunk: Chunk, now: float) -> None:
        """Count the lines of a chunk, and hand them on."""
        self._judge.take(chunk)
        for run, record in self._runs.take(chunk, time.monotonic()):
            self._unsaved.add(run.name)
            self._counts["records" if record is not None else "malformed"] += 1
            written = None if record is None else number(record.get("time"))
            if self._ready and written is not None:
                self._lag.add(now - written)

    def _turn_state(self, name: str, run: Run) -> None:
        """A run has ended, or goes on."""
        self._unsaved.add(name)
        if run.state == RUNNING:
            self._ended.pop(name, None)
        else:
            self._ended[name] = time.monotonic()
            self._judge.finish(name)

    def _has_ended(self, folder: str) -> bool:
        """Whether every run in a folder has."""
        return all(run.state != RUNNING for run in self._runs.values() if run.folder == folder)

    def _keep(self, judgement: Judgement) -> tuple[Judgement, list[Point]]:
        """Note what was judged; give it with its attempts, which know the tokens before them."""
        self._judged[judgement.run] = judgement
        run = self._runs.get(judgement.run)
        points = list(judgement.points)
        if run is not None:
            run.version += 1
            self._unsaved.add(run.name)
            points = run.judged(points)
            if judgement.final and self._has_ended(run.folder):
                self._follower.rest(run.folder)
        return judgement, points

    def _forget_ended(self) -> None:
        """Let go of runs that ended long ago."""
        limit = time.monotonic() - self._limits.retain_ended
        for name in [name for name, ended in self._ended.items() if ended < limit]:
            run = self._runs[name]
            self._runs.forget(name)
            self._judge.forget(name)
            if all(other.folder != run.folder for other in self._runs.values()):
                self._follower.remove(run.folder)
            for known in (self._ended, self._judged, self._views):
                known.pop(name, None)
            self._unsaved.add(name)

    def _save(self) -> None:
        """Write what was read and told, all at once; where that fails it is tried again later."""
        self._saved_at = time.monotonic()
        if self._store is None:
            return
        for file, line in self._judge.keep_from().items():
            self._follower.keep_from(file, line)
        runs = {name: self._runs.saved(name) if name in self._runs else None for name in self._unsaved}
        changes = {
            "places": self._follower.changes(),
            "runs": runs,
            "judged": self._judge.saved(self._unsaved),
            "counts": {"all": dict(self._counts)},
        }
        try:
            self._store.save(changes)
        except StoreError as error:
            self._save_errors += 1
            self._trouble = str(error)
            return
        self._trouble = None
        self._follower.saved()
        self._unsaved.clear()

    def _tell(self, judgement: Judgement, points: Sequence[Point]) -> None:
        view = self._board.snapshot.run(judgement.run)
        if view is None:
            return
        if points:
            self._listeners.moved(view, points)
        for finding in judgement.new:
            self._listeners.found(view, finding)

    def _snapshot(self, now: float) -> Snapshot:
        """Everything that is known; what has not changed is taken as it was."""
        for name, run in self._runs.items():
            known = self._views.get(name)
            if known is None or known[0] != run.version:
                self._views[name] = (run.version, self._view(run))
        troubles = (self._trouble, self._follower.trouble, *self._judge.troubles)
        return Snapshot(
            time=now,
            runs=tuple(self._views[name][1] for name in sorted(self._runs)),
            intake=self._intake(),
            ready=self._ready,
            troubles=tuple(one for one in troubles if one),
        )

    def _view(self, run: Run) -> RunView:
        judgement = self._judged.get(run.name)
        findings: tuple[FindingView, ...] = judgement.findings if judgement else ()
        return RunView(
            report=_report(run, judgement),
            state=run.state,
            launches=run.launches,
            started_at=run.started_at,
            last_record_time=run.last_record_time,
            wrapper=run.wrapper,
            findings=findings,
            optimizers=run.optimizer_views(),
            ranks=run.rank_views(),
            late_ranks=judgement.late_ranks if judgement else (),
            judged_through=judgement.judged_through if judgement else None,
            version=run.version,
        )

    def _intake(self) -> Intake:
        return Intake(
            bytes=self._follower.bytes,
            records=self._counts["records"],
            malformed_records=self._counts["malformed"],
            files_followed=self._follower.files_followed,
            files_at_rest=self._follower.files_at_rest,
            read_errors=self._follower.read_errors,
            state_write_errors=self._save_errors,
            judgements=self._judge.judgements,
            judgement_seconds=self._judge.seconds,
            failed_judgements=self._judge.failures,
            runs_left_out=self._runs.left_out,
            lag_buckets=self._lag.buckets,
            lag_sum=self._lag.total,
            lag_count=self._lag.count,
            behind_bytes=self._follower.behind_bytes,
        )


def _report(run: Run, judgement: Judgement | None) -> RunReport:
    """The report of the judge with the counts of the whole run, or one of a run that was not judged yet."""
    views = run.optimizer_views()
    attempts = sum(one.attempts for one in views)
    counted: dict[str, Any] = {
        "runtime": run.runtime,
        "ranks": tuple(sorted({rank for rank, _ in run.ranks.views})),
        "world_size": run.ranks.world_size,
        "attempts": attempts,
        "updates": sum(one.updates for one in views),
        "skipped": sum(sum(one.skipped.values()) for one in views),
    }
    if judgement is not None:
        return judgement.report if judgement.final else replace(judgement.report, **counted)
    return RunReport(
        run_id=run.name,
        path=run.folder,
        format="ledger",
        title=TITLES.get("ledger", "ledger"),
        recorded=attempts,
        recorded_ranks=None,
        verdicts=(),
        unreadable=(),
        remarks=(),
        holes=(),
        **counted,
    )
