"""Has the whole records of runs judged, as `check` does: at their ends, and seldom before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from accumaudit.service.judging.asking import Part, Said, said
from accumaudit.service.judging.cases import Case, Cases, Judgement
from accumaudit.service.judging.setup import Setup
from accumaudit.service.judging.windows import Window
from accumaudit.service.judging.worker import Answer, Worker
from accumaudit.service.snapshot import newest_attempt

TOGETHER: Final = 32
"""Folders whose ends are judged together, at most."""

LARGE: Final = 16 * 2**20
"""Bytes of records after which the process ends, and gives its memory back."""


@dataclass(slots=True)
class _Reading:
    """Folders whose records are being read."""

    parts: dict[str, Part]
    """What was known of each when the reading began."""
    final: bool


class Thorough:
    """One process at a time that reads the records of folders."""

    def __init__(self, setup: Setup, cases: Cases) -> None:
        self._setup = setup
        self._cases = cases
        self._worker = Worker(setup.folder, setup.clock)
        self._reading: _Reading | None = None
        self._ended: dict[str, int] = {}
        """Folders whose runs have ended, in that order, with how many may be judged together."""
        self._due = 0.0
        self.judgements = 0
        self.failures = 0
        self.seconds = 0.0
        """CPU time of the rules."""

    @property
    def busy(self) -> bool:
        """Whether something is being read or will be at once."""
        return self._reading is not None or bool(self._ended)

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._worker.pid

    def finish(self, folder: str) -> None:
        """Read the records of a folder whose runs have ended, as soon as may be."""
        self._ended.setdefault(folder, TOGETHER)

    def is_ending(self, folder: str) -> bool:
        """Whether the end of a folder's runs is still to be judged."""
        reading = self._reading
        return folder in self._ended or (reading is not None and reading.final and folder in reading.parts)

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def start(self, windows: Mapping[str, Window], moving: Iterable[str]) -> None:
        """Begin with the next folders, where there are any."""
        if self._reading is not None:
            return
        ended = self._next_ended(windows)
        if ended:
            self._ask(ended, final=True)
            return
        tick = self._setup.clock()
        if tick >= self._due:
            due = next((folder for folder in moving if self._is_due(windows[folder], tick)), None)
            if due is not None:
                self._ask([windows[due]], final=False)

    def _next_ended(self, windows: Mapping[str, Window]) -> list[Window]:
        """The next folders whose runs have ended, as many as may be judged together."""
        chosen: list[Window] = []
        for folder, together in list(self._ended.items()):
            if len(chosen) >= min(together, TOGETHER):
                break
            del self._ended[folder]
            if folder in windows:
                chosen.append(windows[folder])
            if together == 1:
                break
        return chosen

    def _is_due(self, window: Window, tick: float) -> bool:
        """Whether attempts were passed over, or rules of scope run have much that is new to judge."""
        if window.is_behind:
            return True
        case = self._cases.get(window.runs[-1])
        if case is None or case.final or window.is_whole(case.name):
            return False
        if case.reread_at is not None and tick < case.reread_at + self._setup.limits.slow_beat:
            return False
        return case.attempts >= 2 * case.attempts_then

    def _ask(self, windows: list[Window], *, final: bool) -> None:
        limits = self._setup.limits
        self._reading = _Reading({window.folder: Part.of_all(window) for window in windows}, final)
        if final:
            for part in self._reading.parts.values():
                part.hand_over()
        names = {str(self._setup.root / one.folder): self._setup.home(one.folder) for one in windows}
        request: dict[str, Any] = {
            "places": list(names),
            "limit": limits.whole if final else limits.thin,
            "thin": None if final else str(self._setup.folder / "thin"),
            "memory": limits.memory,
            **self._setup.asked.request(names),
        }
        self._worker.ask(request, limits.slow_deadline)

    def collect(self, now: float) -> Iterator[Judgement]:
        """What was judged since the last time."""
        answer = self._worker.answer()
        reading = self._reading
        if answer is None or reading is None:
            return
        self._reading = None
        self.judgements += 1
        self.seconds += answer["seconds"]
        tick = self._setup.clock()
        self._due = tick + answer["seconds"] / self._setup.limits.share
        if answer.get("size", LARGE) >= LARGE:
            self._worker.close()
        for part in reading.parts.values():
            part.window.caught_up = True
            for case in self._cases.in_folder(part.window.folder):
                case.reread_at, case.attempts_then = tick, case.attempts
        if "error" in answer:
            self.failures += 1
            yield from self._not_read(reading, answer["error"])
            return
        for folder, part in reading.parts.items():
            if part.window.forgotten:
                continue
            yield from self._read(part, self._named(folder, answer), reading.final, answer, now)

    def _named(self, folder: str, answer: Answer) -> dict[str, Said]:
        """What was said of each run of a folder, by their names."""
        files: dict[str, str] = answer.get("files", {})
        path = str(self._setup.root / folder)
        return {
            one["name"]: said(one, self._setup.catalogue, lambda file, line: (files.get(file, file), line))
            for one in answer["runs"]
            if one["report"]["format"] == "ledger" and (answer["is_thin"] or one["report"]["path"] == path)
        }

    def _read(
        self, part: Part, named: Mapping[str, Said], final: bool, answer: Answer, now: float
    ) -> Iterator[Judgement]:
        part.settle(named)
        for name, one in named.items():
            case = self._cases.of(name, part.window.folder)
            case.reread_at = self._setup.clock()
            if final:
                yield self._finish(case, one, now)
            elif not case.final:
                yield self._update(case, one, part, bool(answer["is_thin"]), now)
            case.attempts_then = case.attempts
        if final or not answer["is_thin"]:
            part.was_judged()
        if final:
            part.window.settle()

    def _finish(self, case: Case, one: Said, now: float) -> Judgement:
        """Let the whole record's verdicts stand for all others."""
        case.final = True
        new = case.book.take_whole(one.report, one.found, now)
        points = case.tell(one.points)
        case.report = self._cases.whole_report(case, one.report)
        through = newest_attempt((point.launch, point.attempt_id) for point in one.points)
        return case.judgement(new, points=tuple(points), judged_through=through, whole=True)

    def _update(self, case: Case, one: Said, part: Part, is_thin: bool, now: float) -> Judgement:
        """Take in what the newest attempts alone could not tell."""
        name, window = case.name, part.window
        new = case.book.take_run_rules(one.report, one.found, now)
        points = []
        if not is_thin:
            new += case.book.take_earlier(one.report, one.found, Part.of_all(window).lowest(name), now)
            points = case.tell(one.points, part.through(name))
            window.forgive(name, case.told)
        known = case.report or self._cases.whole_report(case, one.report)
        case.report = replace(known, verdicts=case.book.verdicts)
        return case.judgement(
            new, points=tuple(points), late_ranks=part.late(name), judged_through=part.judged_through(name)
        )

    def _not_read(self, reading: _Reading, why: str) -> Iterator[Judgement]:
        """Try folders one by one that could not be judged together; say that a run's end was not judged."""
        if len(reading.parts) > 1:
            self._ended = {**dict.fromkeys(reading.parts, 1), **self._ended}
            return
        for folder in reading.parts if reading.final else ():
            for case in self._cases.in_folder(folder):
                if case.report is not None and not case.final:
                    case.final = True
                    remark = f"the whole record was not judged at its end: {why}"
                    case.report = replace(case.report, remarks=(*case.report.remarks, remark))
                    yield case.judgement()
