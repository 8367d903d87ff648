"""Has the newest attempts of all runs judged together, as often as the time that it takes allows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from accumaudit.service.judging.asking import Part, Said, said
from accumaudit.service.judging.cases import Cases, Judgement
from accumaudit.service.judging.setup import Setup
from accumaudit.service.judging.spool import Spool
from accumaudit.service.judging.windows import Window
from accumaudit.service.judging.worker import Worker

LONGEST_PAUSE: Final = 6
"""Doublings of the pause after which a run that cannot be judged is tried again."""


class Newest:
    """The process that judges the newest attempts, and what it is at."""

    def __init__(self, setup: Setup, cases: Cases) -> None:
        self._setup = setup
        self._cases = cases
        self._worker = Worker(setup.folder, setup.clock)
        self._parts: dict[str, Part] = {}
        self._spool: Spool | None = None
        self._began = 0.0
        self._due = 0.0
        self._count = 0
        self._suspects: deque[str] = deque()
        """Folders that are judged one by one, because one of them broke a judgement."""
        self._failed: dict[str, int] = {}
        """How often each folder could not be judged in a row."""
        self._paused: dict[str, float] = {}
        self.judgements = 0
        self.failures = 0
        self.seconds = 0.0
        """CPU time of the rules."""
        self.troubles: dict[str, str] = {}
        """Why folders cannot be judged."""
        self.unended: list[str] = []
        """Folders of whose end nothing was said, although it was asked for."""

    @property
    def busy(self) -> bool:
        """Whether something is being judged."""
        return bool(self._parts)

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._worker.pid

    def holds(self, folder: str) -> bool:
        """Whether something of a folder is being judged."""
        return any(part.window.folder == folder for part in self._parts.values())

    def is_paused(self, folder: str) -> bool:
        """Whether a folder is left alone for a while, because it could not be judged."""
        return self._paused.get(folder, 0.0) > self._setup.clock()

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def start(self, windows: Mapping[str, Window], moving: Collection[str]) -> None:
        """Hand over what is new, where it is time."""
        tick = self._setup.clock()
        if self.busy or tick < self._due:
            return
        while self._suspects and (self._suspects[0] not in moving or self.is_paused(self._suspects[0])):
            self._suspects.popleft()
        folders = [self._suspects[0]] if self._suspects else list(moving)
        self._count += 1
        spool = Spool(self._setup.folder / str(self._count), self._setup.root)
        parts: dict[str, Part] = {}
        for folder in folders:
            window = windows[folder]
            for run in () if self.is_paused(folder) else window.runs:
                if any(launch.dirty for launch in window.of(run)):
                    parts[str(len(parts))] = Part.of(window, run)
        if parts:
            self._ask(parts, spool, tick)

    def _ask(self, parts: dict[str, Part], spool: Spool, tick: float) -> None:
        try:
            self._setup.folder.mkdir(mode=0o700, exist_ok=True)
            for key, part in parts.items():
                lines = (line for launch in part.launches for line in launch.lines())
                spool.add(key, lines, part.window.files)
        except OSError as error:
            spool.remove()
            self.failures += 1
            self._due = tick + self._setup.limits.pause
            self.troubles[""] = f"{self._setup.folder}: nothing can be judged ({error.strerror})"
            return
        self.troubles.pop("", None)
        for part in parts.values():
            part.hand_over()
        self._parts, self._spool, self._began = parts, spool, tick
        names = {str(spool.folder / key): part.run for key, part in parts.items()}
        request = {
            "places": [str(spool.folder)],
            "limit": 0,
            "memory": self._setup.limits.memory,
            **self._setup.asked.request(names),
        }
        self._worker.ask(request, self._setup.limits.deadline)

    def collect(self, now: float) -> Iterator[Judgement]:
        """What was judged since the last time."""
        answer = self._worker.answer()
        if answer is None or self._spool is None:
            return
        parts, spool = self._parts, self._spool
        self._parts, self._spool = {}, None
        spool.remove()
        limits = self._setup.limits
        self.judgements += 1
        self.seconds += answer["seconds"]
        self._due = self._began + max(limits.beat, answer["seconds"] / limits.share)
        folders = list(dict.fromkeys(part.window.folder for part in parts.values()))
        if "error" in answer:
            self._fail(folders, parts, answer["error"])
            return
        for folder in folders:
            self.forget(folder)
            if self._suspects and self._suspects[0] == folder:
                self._suspects.popleft()
        answered: dict[str, dict[str, Said]] = defaultdict(dict)
        for one in answer["runs"]:
            run_id = one["report"]["run_id"]
            key = run_id.partition("#")[0]
            answered[key][run_id] = said(one, self._setup.catalogue, spool.original, spool.retold)
        for key, part in parts.items():
            if part.window.forgotten:
                continue
            yield from self._read(key, part, answered[key], now)
            if part.ends and not any(case.final for case in self._cases.in_folder(part.window.folder)):
                self.unended.append(part.window.folder)

    def _fail(self, folders: list[str], parts: Mapping[str, Part], why: str) -> None:
        """Judge the folders one by one from here on; leave one alone for a while that fails by itself."""
        self.failures += 1
        for part in parts.values():
            part.give_back()
        if len(folders) > 1:
            self._suspects = deque(folders)
            return
        (folder,) = folders
        if self._suspects and self._suspects[0] == folder:
            self._suspects.popleft()
        times = self._failed[folder] = self._failed.get(folder, 0) + 1
        if times > 1:  # once may be by chance
            pause = self._setup.limits.pause * 2 ** min(times - 2, LONGEST_PAUSE)
            self._paused[folder] = self._setup.clock() + pause
            self.troubles[folder] = f"{self._setup.home(folder)}: not judged ({why})"

    def forget(self, folder: str) -> None:
        """A folder is not to be judged any more."""
        for known in (self._failed, self._paused, self.troubles):
            known.pop(folder, None)

    def _read(self, key: str, part: Part, answered: Mapping[str, Said], now: float) -> Iterator[Judgement]:
        """What was said of one run, or of several where it turns out to be several."""
        folder = part.window.folder
        named = self._cases.names(key, part.run, folder, answered)
        if part.run in named:
            named[part.run] = named[part.run].moved(part.offset)
        part.settle(named)
        part.was_judged()
        for name, one in named.items():
            case = self._cases.of(name, folder)
            if case.final:
                continue
            if part.is_whole:
                case.attempts_then = case.attempts
                new = case.book.take_whole(one.report, one.found, now)
            else:
                new = case.book.take_window(one.report, one.found, part.lowest(name), now)
            points = case.tell(one.points, part.through(name))
            case.report = self._cases.newest_report(case, one.report, part.window, part.is_whole)
            case.final = part.ends
            yield case.judgement(
                new,
                points=tuple(points),
                late_ranks=part.late(name),
                judged_through=part.judged_through(name),
                whole=part.is_whole,
            )
        if part.ends:
            part.window.settle()
