"""What is handed over of each run to be judged, and how the answers are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accumaudit.engine import evidence
from accumaudit.engine.catalogue import Catalogue
from accumaudit.engine.findings import Example, Finding, RunReport, Verdict
from accumaudit.service.judging import wire
from accumaudit.service.judging.book import Place
from accumaudit.service.judging.launches import Launch
from accumaudit.service.judging.windows import Window
from accumaudit.service.snapshot import Point

Original = Callable[[str, int | None], tuple[str, int | None]]
"""The file and line of the watched folder for those that the process has read."""


@dataclass(slots=True)
class Said:
    """What the process says of one run, in the service's own words."""

    report: RunReport
    found: dict[str, list[evidence.Place]]
    launches: list[tuple[int, str, float]]
    """Number, token and start."""
    points: list[Point]

    def moved(self, offset: int) -> Said:
        """The same with its launches counted from a later one."""
        if not offset:
            return self

        def moved(finding: Finding) -> Finding:
            return _with_examples(finding, lambda one: {"launch": _plus(one.launch, offset)})

        verdicts = tuple(_with_findings(one, moved) for one in self.report.verdicts)
        return Said(
            report=replace(self.report, verdicts=verdicts),
            found={
                code: [(_plus(row[0], offset), *row[1:]) for row in rows] for code, rows in self.found.items()
            },
            launches=[(number + offset, token, start) for number, token, start in self.launches],
            points=[replace(one, launch=one.launch + offset) for one in self.points],
        )


def said(
    answer: Mapping[str, Any],
    catalogue: Catalogue,
    original: Original,
    retold: Callable[[str], str] = lambda message: message,
) -> Said:
    """Read what was answered about one run."""
    report = wire.report(answer["report"], catalogue)

    def place(one: Example) -> dict[str, Any]:
        file, line = (None, one.line) if one.file is None else original(one.file, one.line)
        return {"file": file, "line": line, "message": retold(one.message)}

    def located(finding: Finding) -> Finding:
        return replace(_with_examples(finding, place), message=retold(finding.message))

    report = replace(
        report,
        verdicts=tuple(_with_findings(one, located) for one in report.verdicts),
        unreadable=tuple(
            replace(one, file=file, line=line)
            for one in report.unreadable
            for file, line in [original(one.file, one.line)]
        ),
    )
    return Said(
        report=report,
        found={code: [(a, b, c, d) for a, b, c, d in rows] for code, rows in answer["found"].items()},
        launches=[(number, token, start or 0.0) for number, token, start in answer["launches"]],
        points=[wire.point(one) for one in answer["points"]],
    )


def _with_findings(verdict: Verdict, change: Callable[[Finding], Finding]) -> Verdict:
    return replace(
        verdict,
        finding=None if verdict.finding is None else change(verdict.finding),
        ignored=tuple(replace(one, finding=change(one.finding)) for one in verdict.ignored),
    )


def _with_examples(finding: Finding, change: Callable[[Example], dict[str, Any]]) -> Finding:
    return replace(finding, examples=tuple(replace(one, **change(one)) for one in finding.examples))


def _plus(number: int | None, offset: int) -> int | None:
    return None if number is None else number + offset


@dataclass(slots=True)
class Part:
    """One run of a request: what of it is judged."""

    window: Window
    run: str
    launches: list[Launch]
    spans: list[dict[int, tuple[int, int]]]
    """Of each launch and optimizer, the first and the last attempt that is judged."""
    is_whole: bool
    ends: bool = False
    """Its run has ended, and everything that it has written is judged."""

    @classmethod
    def of(cls, window: Window, run: str) -> Part:
        """What can be judged of a run by now."""
        launches = window.of(run)
        spans = [
            {index: (launch.judged_from(index), track.through) for index, track in launch.tracks.items()}
            for launch in launches
        ]
        return cls(window, run, launches, spans, window.is_whole(run), ends=window.ends)

    @classmethod
    def of_all(cls, window: Window) -> Part:
        """All that is known of a folder, whatever its runs are."""
        spans = [
            {index: (launch.judged_from(index), track.through) for index, track in launch.tracks.items()}
            for launch in window.launches
        ]
        return cls(window, window.runs[-1], list(window.launches), spans, is_whole=True)

    @property
    def offset(self) -> int:
        """Launches of the run that are not kept any more."""
        return max((self.launches[0].number or 1) - 1, 0)

    def hand_over(self) -> None:
        """It is being judged."""
        self.window.ends = False
        for launch in self.launches:
            launch.dirty = False
            for track in launch.tracks.values():
                track.sent = track.through

    def give_back(self) -> None:
        """It was not judged: it waits to be."""
        self.window.ends = self.ends
        for launch in self.launches:
            launch.dirty = True

    def was_judged(self) -> None:
        """It need not be judged again."""
        for launch, spans in zip(self.launches, self.spans, strict=True):
            for index, (_, last) in spans.items():
                launch.tracks[index].judged = max(last, launch.tracks[index].judged)

    def settle(self, runs: Mapping[str, Said]) -> None:
        """Note which launch is whose, and its number there, from what was said of each run by name."""
        answered: dict[str, list[tuple[float, str, int]]] = defaultdict(list)
        for name, one in runs.items():
            for number, token, start in one.launches:
                answered[token].append((start, name, number))
        for token, places in answered.items():
            own = [launch for launch in self.launches if launch.token == token]
            for launch, (_, name, number) in zip(own, sorted(places), strict=False):
                launch.run, launch.number = name, number

    def lowest(self, name: str) -> dict[Place, int]:
        """The first attempt that was judged of each launch and optimizer of a run of this name."""
        return {place: first for place, (first, _) in self._spans(name).items()}

    def through(self, name: str) -> dict[Place, int]:
        """The last attempt that was judged of each launch and optimizer of a run of this name."""
        return {place: last for place, (_, last) in self._spans(name).items()}

    def judged_through(self, name: str) -> int | None:
        """The last attempt that was judged in the newest launch of a run of this name."""
        through = self.through(name)
        newest = max((number for number, _ in through), default=0)
        return max((last for (number, _), last in through.items() if number == newest), default=None)

    def late(self, name: str) -> tuple[int, ...]:
        """The ranks that are behind in the newest launch of a run of this name."""
        launches = [launch for launch in self.launches if launch.run == name]
        return tuple(sorted({rank for launch in launches[-1:] for rank in launch.late}))

    def _spans(self, name: str) -> dict[Place, tuple[int, int]]:
        return {
            (launch.number, index): span
            for launch, spans in zip(self.launches, self.spans, strict=True)
            if launch.run == name
            for index, span in spans.items()
        }
