"""The loop of the service: reads what is new, has it judged, and puts up what is known."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from accumaudit.engine.findings import RunReport
from accumaudit.importers import TITLES
from accumaudit.service import following
from accumaudit.service.board import Board, Listener, Listeners, Owed, Told
from accumaudit.service.counters import number
from accumaudit.service.folders import in_order
from accumaudit.service.judging.judge import Judge, Judgement
from accumaudit.service.lines import Chunk
from accumaudit.service.runs import Run, Runs
from accumaudit.service.snapshot import RUNNING, Intake, Point, RunView, Snapshot
from accumaudit.service.store import Store, StoreError
from accumaudit.service.totals import Lag, Totals
from accumaudit.service.troubles import Troubles

BEAT: Final = 1.0
"""Seconds from one reading to the next, where it takes less."""

SAVE: Final = 5.0
"""Seconds from one saving to the next; a finding that grows is saved at once."""

JUDGED_BY: Final = 3600.0
"""Seconds, beyond those that it is shown, that the end of a run may wait to be judged."""

COUNTS: Final = ("bytes", "records", "malformed")
"""What is counted of what is read."""

TROUBLES: Final = 20
"""Runs that cannot be judged and are told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is kept."""

    runs: int = 1_000
    retain_ended: float = 24 * 3600.0
    """Seconds that a run is shown after it has ended."""
    following: following.Limits = field(default_factory=following.Limits)


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
        self._root = folder
        self._limits = limits or Limits()
        self._troubles = Troubles()
        self._listeners = Listeners(listeners, self._troubles)
        self._judged: dict[str, Judgement] = {}
        self._views: dict[str, tuple[int, RunView]] = {}
        self._ended: dict[str, float] = {}
        """When a run's state became one of those at the end, by the monotonic clock."""
        self._lag = Lag()
        self._ready = False
        self._saved_at = time.monotonic()
        self._unsaved: set[str] = set()
        self._grew = False
        """A finding has more attempts than ever: it is saved before it is told."""
        self._save_errors = 0
        self._trouble: str | None = None
        loaded = store.load() if store else {}
        try:
            self._restore(loaded)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{store and store.path}: the state cannot be used ({type(error).__name__}: {error}); move "
                "the file away to begin anew: the logs are read again, and findings are told again"
            ) from error

    def _restore(self, loaded: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what another process of the service saved."""
        counts = loaded.get("counts", {}).get("all", {})
        self._counts: dict[str, int] = {name: counts.get(name, 0) for name in COUNTS}
        self._before = self._saved_totals = Totals.of_json(loaded.get("totals", {}).get("all", {}))
        """What the service counted in its own work before it was started, and until it saved last."""
        self._owed: Owed = loaded.get("told", {}).get("owed", {})
        """Findings that were to be told when it saved last."""
        self._follower = following.Follower(self._root, loaded.get("places"), self._limits.following)
        self._runs = Runs(self._root.resolve().name or "run", self._limits.runs)
        self._runs.restore(loaded.get("runs", {}), time.monotonic())
        self._ended |= {name: time.monotonic() for name, run in self._runs.items() if run.state != RUNNING}
        self._judge.restore(loaded.get("judged", {}))
        self._begins = True

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
            self._save_owed()
            with self._troubles.caught("ending what judges"):
                self._judge.close()
            if self._store is not None:
                self._store.close()

    def turn(self) -> None:
        """Read, judge, save, put up, tell; an error in one of them is told, and the next turn goes on."""
        now = time.time()
        self._read(now)
        self._settle()
        news: list[tuple[Judgement, list[Point]]] = []
        with self._troubles.caught("judging"):
            news.extend(self._keep(judgement) for judgement in self._judge.turn(now))
        new = [(judgement.run, one.code) for judgement, _ in news for one in judgement.new]
        if new or self._grew or not self._ready or time.monotonic() - self._saved_at > SAVE:
            self._save(new)
        with self._troubles.caught("putting up what is known"):
            self._board.publish(self._snapshot(now))
        with self._troubles.caught("telling findings"):
            self._tell_owed()
            for judgement, points in news:
                self._tell(judgement, points)
        self._save_owed()

    def _read(self, now: float) -> None:
        """Count what is new, and hand it on to be judged."""
        chunks: list[Chunk] = []
        with self._troubles.caught("reading"):
            before = self._follower.bytes
            chunks = self._follower.turn()
            self._counts["bytes"] += self._follower.bytes - before
            self._ready = self._ready or self._follower.caught_up
        # By folders: one that makes room for another has given its lines.
        refused = {chunk.run for chunk in in_order(chunks) if not self._take(chunk, now)}
        with self._troubles.caught("making room"):
            for folder in refused if self._ready else ():
                if not self._runs.is_full or self._let_oldest_go():
                    self._runs.welcome(folder)
                    self._follower.remove(folder)  # when it is written again, it is read from its first line

    def _take(self, chunk: Chunk, now: float) -> bool:
        """Count the lines of a chunk and hand them on; whether its folder is not one of those left out."""
        with self._troubles.caught("making room"):
            if not self._admits(chunk.run):
                return False
        with self._troubles.caught("keeping records to be judged"):
            self._judge.take(chunk)
        with self._troubles.caught("counting records"):
            self._count(chunk, now)
        return True

    def _admits(self, folder: str) -> bool:
        """Whether a folder has a run; a new one takes the place of what ended long ago."""
        if self._runs.is_full and self._runs.is_new(folder):
            self._let_oldest_go()
        return self._runs.admit(folder)

    def _count(self, chunk: Chunk, now: float) -> None:
        """Count the lines of a chunk."""
        for run, record in self._runs.take(chunk, time.monotonic()):
            self._unsaved.add(run.name)
            self._counts["records" if record is not None else "malformed"] += 1
            written = None if record is None else number(record.get("time"))
            if self._ready and written is not None:
                self._lag.add(now - written)

    def _settle(self) -> None:
        """See which runs have ended, which go on, and which are to be let go of."""
        with self._troubles.caught("following the runs"):
            for name, run in self._runs.items():
                if run.settle(time.monotonic()):
                    self._turn_state(name, run)
            for folder in {self._runs[name].folder for name in self._ended if self._is_over(name)}:
                if all(self._is_over(run.name) for run in self._runs.in_folder(folder)):
                    self._let_go(folder)

    def _is_over(self, name: str) -> bool:
        """Whether a run has been shown for long enough after its end, and its end was judged."""
        judged = self._judged.get(name)
        shown = time.monotonic() - self._ended.get(name, math.inf) - self._limits.retain_ended
        return shown > (0 if judged is not None and judged.final else JUDGED_BY)

    def _turn_state(self, name: str, run: Run) -> None:
        """A run has ended, or goes on."""
        self._unsaved.add(name)
        if run.state == RUNNING:
            self._ended.pop(name, None)
            return
        self._ended[name] = time.monotonic()
        if self._has_ended(run.folder):
            self._judge.finish(name)

    def _has_ended(self, folder: str) -> bool:
        """Whether every run in a folder has."""
        return all(run.state != RUNNING for run in self._runs.in_folder(folder))

    def _let_oldest_go(self) -> bool:
        """Let go of the runs in the folder that was written last the longest ago, if any has ended."""
        running = {run.folder for run in self._runs.values() if not run.has_ended}
        written: dict[str, float] = {}
        for run in self._runs.values():
            if run.folder not in running:
                written[run.folder] = max(run.last_record_time or 0.0, written.get(run.folder, 0.0))
        if written:
            self._let_go(min(written, key=lambda folder: written[folder]))
        return bool(written)

    def _let_go(self, folder: str) -> None:
        """Forget the runs in a folder."""
        for run in self._runs.in_folder(folder):
            self._judge.forget(run.name)
            for known in (self._ended, self._judged, self._views):
                known.pop(run.name, None)
            self._unsaved.add(run.name)
        self._runs.forget(folder)
        self._follower.remove(folder)

    def _keep(self, judgement: Judgement) -> tuple[Judgement, list[Point]]:
        """Note what was judged; give it with its attempts, which know the tokens before them."""
        run = self._runs.get(judgement.run)
        points = list(judgement.points)
        if run is not None:
            self._judged[judgement.run] = judgement
            run.version += 1
            self._unsaved.add(run.name)
            points = run.judged(points)
            self._grew = run.found(judgement.findings) or self._grew
            if judgement.final and self._has_ended(run.folder):
                self._follower.rest(run.folder)
        return judgement, points

    def _save(self, new: Sequence[Told] = ()) -> None:
        """Write what was read, and what is to be told, all at once; where that fails it is tried again."""
        self._saved_at = time.monotonic()
        self._grew = False
        if self._store is None:
            return
        totals, owed = self._totals(), self._listeners.owed(new)
        with self._troubles.caught("saving"):
            for file, line in self._judge.keep_from().items():
                self._follower.keep_from(file, line)
            places = self._follower.changes()
            if not places and not self._unsaved and (totals, owed) == (self._saved_totals, self._owed):
                return
            runs = {name: self._runs.saved(name) if name in self._runs else None for name in self._unsaved}
            saved = self._write(
                {
                    "places": places,
                    "runs": runs,
                    "judged": self._judge.saved(self._unsaved),
                    "counts": {"all": dict(self._counts)},
                    "totals": {"all": totals.as_json()},
                    "told": {"owed": owed},
                }
            )
            if saved:
                self._follower.saved()
                self._unsaved.clear()
                self._saved_totals, self._owed = totals, owed

    def _save_owed(self) -> None:
        """Write what is still to be told, where that has changed."""
        owed = self._listeners.owed()
        if self._store is not None and self._trouble is None and owed != self._owed:
            with self._troubles.caught("saving"):
                if self._write({"told": {"owed": owed}}):
                    self._owed = owed

    def _write(self, changes: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether it could be written."""
        assert self._store is not None
        try:
            self._store.save(changes)
        except StoreError as error:
            self._save_errors += 1
            self._trouble = str(error)
            return False
        self._trouble = None
        return True

    def _tell_owed(self) -> None:
        """Tell what the process before this one could not, when the runs are put up for the first time."""
        if not self._begins:
            return
        self._begins = False
        for kind, findings in self._owed.items():
            for name, code in findings:
                view = self._board.snapshot.run(name)
                for finding in view.findings if view else ():
                    if view is not None and finding.code == code:
                        self._listeners.found(view, finding, kind)

    def _tell(self, judgement: Judgement, points: Sequence[Point]) -> None:
        view = self._board.snapshot.run(judgement.run)
        if view is None:
            return
        if points or judgement.final:
            self._listeners.moved(view, points)
        for finding in judgement.new:
            self._listeners.found(view, finding)

    def _snapshot(self, now: float) -> Snapshot:
        """Everything that is known; what has not changed is taken as it was."""
        for name, run in self._runs.items():
            known = self._views.get(name)
            if known is None or known[0] != run.version:
                self._views[name] = (run.version, self._view(run))
        troubles = (
            *(self._trouble, self._follower.trouble),
            *sorted(self._judge.troubles.values())[:TROUBLES],
            *self._listeners.sentences,
            *self._troubles.sentences,
        )
        return Snapshot(
            time=now,
            runs=tuple(self._views[name][1] for name in sorted(self._runs)),
            intake=self._intake(),
            ready=self._ready,
            troubles=tuple(one for one in troubles if one),
        )

    def _view(self, run: Run) -> RunView:
        judgement = self._judged.get(run.name)
        findings = judgement.findings if judgement else ()
        return RunView(
            report=_report(self._root, run, judgement),
            state=run.state,
            launches=run.launches,
            started_at=run.started_at,
            last_record_time=run.last_record_time,
            wrapper=run.wrapper,
            findings=tuple(replace(one, most=run.most.get(one.code, 0)) for one in findings),
            optimizers=run.optimizer_views(),
            ranks=run.rank_views(),
            late_ranks=judgement.late_ranks if judgement else (),
            judged_through=judgement.judged_through if judgement else None,
            version=run.version,
        )

    def _totals(self) -> Totals:
        """What the service has counted in its own work, in all its processes."""
        return self._before.plus(
            Totals(
                read_errors=self._follower.read_errors,
                state_write_errors=self._save_errors,
                judgements=self._judge.judgements,
                judgement_seconds=self._judge.seconds,
                failed_judgements=self._judge.failures,
                internal_errors=self._troubles.count,
                lag=self._lag,
            )
        )

    def _intake(self) -> Intake:
        # Totals are shown as they were saved, so that none is lower after a kill; records are read again.
        is_saved = self._store is not None and self._trouble is None
        totals = self._saved_totals if is_saved else self._totals()
        return Intake(
            bytes=self._counts["bytes"],
            records=self._counts["records"],
            malformed_records=self._counts["malformed"],
            files_followed=self._follower.files_followed,
            files_at_rest=self._follower.files_at_rest,
            runs_left_out=self._runs.left_out,
            behind_bytes=self._follower.behind_bytes,
            **totals.shown(),
        )


def _report(root: Path, run: Run, judgement: Judgement | None) -> RunReport:
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
        path=str(root / run.folder),
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
