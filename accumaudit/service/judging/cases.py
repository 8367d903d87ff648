"""The runs that are judged, and what has been said of each so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from accumaudit.engine.findings import RunReport, UnreadableLine
from accumaudit.ledger.sources import unique
from accumaudit.outputs.words import plural, spans
from accumaudit.service.judging import wire
from accumaudit.service.judging.asking import Said
from accumaudit.service.judging.book import Book, Place
from accumaudit.service.judging.launches import Missed
from accumaudit.service.judging.setup import Setup
from accumaudit.service.judging.windows import Window
from accumaudit.service.snapshot import FindingView, Point, newest_attempt

NAMED: Final = 16
"""Ranks that a remark names; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is newly known of one run."""

    run: str
    """Its name."""
    folder: str
    """Below the one that is watched, as in a chunk."""
    report: RunReport
    """What `check` would give, as far as it is known."""
    findings: tuple[FindingView, ...]
    """All that were told of the run."""
    new: tuple[FindingView, ...] = ()
    """Those that are told for the first time."""
    points: tuple[Point, ...] = ()
    """Attempts that were not told before, in their order; `tokens_so_far` counts those that are kept."""
    late_ranks: tuple[int, ...] = ()
    judged_through: int | None = None
    whole: bool = False
    """Every record of the run was judged."""
    final: bool = False
    """The run has ended, and this is its `check`."""


@dataclass(slots=True)
class Case:
    """One run."""

    name: str
    folder: str
    book: Book
    report: RunReport | None = None
    told: dict[Place, int] = field(default_factory=dict)
    """The last attempt that was told of each launch and optimizer."""
    attempts: int = 0
    skipped: int = 0
    """Among those that were told."""
    reread_at: float | None = None
    """When its whole record was read last, by the clock that only grows."""
    attempts_then: int = 0
    """How many were told when the rules of scope run were asked last."""
    final: bool = False

    def tell(self, points: Sequence[Point], through: Mapping[Place, int] | None = None) -> list[Point]:
        """The points that were not told, up to the attempts given where they are; told they are now."""
        new = []
        for point in points:
            place = point.launch, point.optimizer
            last = point.attempt_id if through is None else through.get(place, 0)
            if self.told.get(place, 0) < point.attempt_id <= last:
                new.append(point)
        for point in new:
            place = point.launch, point.optimizer
            self.told[place] = max(point.attempt_id, self.told.get(place, 0))
        self.attempts += len(new)
        self.skipped += sum(point.applied is False for point in new)
        return new

    def judgement(self, new: Sequence[FindingView] = (), **rest: Any) -> Judgement:
        """What is known now."""
        assert self.report is not None
        return Judgement(
            run=self.name,
            folder=self.folder,
            report=self.report,
            findings=self.book.findings,
            new=tuple(new),
            final=self.final,
            **rest,
        )

    def saved(self) -> dict[str, Any]:
        """All of it as JSON."""
        report = None if self.report is None else wire.report_json(replace(self.report, verdicts=()))
        return {
            "report": report,
            "book": self.book.saved(),
            "told": [[*place, attempt] for place, attempt in self.told.items()],
            "attempts": self.attempts,
            "skipped": self.skipped,
            "attempts_then": self.attempts_then,
            "final": self.final,
        }


class Cases(Mapping[str, Case]):
    """All runs by name."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cases: dict[str, Case] = {}
        self._by_folder: dict[str, dict[str, Case]] = {}

    def __getitem__(self, name: str) -> Case:
        return self._cases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)

    def of(self, name: str, folder: str) -> Case:
        """The run of this name, new where there is none."""
        if name not in self._cases:
            case = self._cases[name] = Case(name, folder, Book(self._setup.catalogue))
            self._by_folder.setdefault(folder, {})[name] = case
        return self._cases[name]

    def in_folder(self, folder: str) -> list[Case]:
        """The runs of a folder."""
        return list(self._by_folder.get(folder, {}).values())

    def forget(self, name: str) -> None:
        """Drop a run."""
        case = self._cases.pop(name, None)
        if case is not None:
            del self._by_folder[case.folder][name]
            if not self._by_folder[case.folder]:
                del self._by_folder[case.folder]

    def names(self, key: str, run: str, folder: str, answered: Mapping[str, Said]) -> dict[str, Said]:
        """What was said of the runs that came out of one, which the process called `key`, by their names."""
        named: dict[str, Said] = {}
        for run_id, one in answered.items():
            if run_id == key:
                named[run] = one
            elif run_id.startswith(f"{key}#"):
                named[unique(self._setup.home(folder), {*self._cases, *named})] = one
        return named

    def newest_report(self, case: Case, one: RunReport, window: Window, whole: bool) -> RunReport:
        """A report of the newest attempts as one of the run."""
        malformed = tuple(
            UnreadableLine(file=str(self._setup.root / file), line=line, why=why)
            for file, line, why in window.malformed
        )
        launches = [launch for launch in window.launches if launch.run == case.name]
        remarks = [
            remark(one) for launch in launches for track in launch.tracks.values() for one in track.missed
        ]
        passed_over = sum(launch.passed_over for launch in launches)
        if passed_over:
            which = f"{plural(passed_over, 'attempt')} {'was' if passed_over == 1 else 'were'}"
            remarks.append(f"{which} not judged yet: more came at once than can be kept")
        if not whole:
            told, skipped = case.attempts, case.skipped
            one = replace(one, attempts=told, recorded=told, skipped=skipped, updates=told - skipped)
        return replace(
            one,
            run_id=case.name,
            path=str(self._setup.root / case.folder),
            verdicts=case.book.verdicts,
            unreadable=(*one.unreadable, *malformed),
            remarks=(*one.remarks, *remarks),
        )

    def whole_report(self, case: Case, one: RunReport) -> RunReport:
        """The report of a whole record as one of the run."""
        path = str(self._setup.root / case.folder)
        return replace(one, run_id=case.name, path=path, verdicts=case.book.verdicts)

    def restore(self, folder: str, saved: Mapping[str, Mapping[str, Any]]) -> list[Judgement]:
        """Go on from what was saved of the runs of a folder; give it as it was said."""
        known = []
        for name, one in saved.items():
            case = self.of(name, folder)
            case.book.restore(one["book"])
            case.told = {(row[0], row[1]): row[2] for row in one["told"]}
            case.attempts, case.skipped = one["attempts"], one["skipped"]
            case.attempts_then, case.final = one["attempts_then"], one["final"]
            if one["report"] is not None:
                report = wire.report(one["report"], self._setup.catalogue)
                case.report = replace(report, verdicts=case.book.verdicts)
                last = newest_attempt((launch, last) for (launch, _), last in case.told.items())
                known.append(case.judgement(judged_through=last))
        return known


def remark(missed: Missed) -> str:
    """`attempts 120 to 140 were judged without rank 3`."""
    one = missed.first == missed.last
    which = f"attempt {missed.first} was" if one else f"attempts {missed.first} to {missed.last} were"
    if len(missed.ranks) > NAMED:
        return f"{which} judged without {len(missed.ranks):,} ranks"
    return f"{which} judged without rank{'s' if len(missed.ranks) > 1 else ''} {spans(missed.ranks)}"
