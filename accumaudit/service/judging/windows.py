"""The newest lines of the runs in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from accumaudit.ledger.lines import explain
from accumaudit.service.counters import number
from accumaudit.service.judging.launches import Kept, Launch
from accumaudit.service.judging.spool import SourceFile
from accumaudit.service.lines import Chunk, Line
from accumaudit.service.runs import parse

OVERLAP: Final = 2
"""Attempts of every optimizer that are kept at least."""

LISTED: Final = 100
"""Lines of a folder that are no records and are told one by one."""

LAUNCHES: Final = 1_000
"""Launches of a folder that are known by name."""


class Window:
    """One folder."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.files: list[SourceFile] = []
        self.launches: list[Launch] = []
        """In the order in which they began."""
        self.malformed: list[tuple[str, int, str]] = []
        """File, line, and why."""
        self.caught_up = False
        """The whole record was read, for attempts that were there before they could be judged one by one."""
        self.ends = False
        """Its runs have ended, and the next judgement of what is kept, which is all of them, is the last."""
        self.forgotten = False
        """Nothing is to be known of it any more, whatever is being judged."""
        self.incomplete: set[str] = set()
        """Runs whose first launches are not kept any more."""
        self._name = name
        self._places: dict[str, int] = {}
        self._beyond: list[int] = []
        """The number of the line after the last one that was read of each file."""
        self._latest: dict[str, Launch] = {}

    @property
    def runs(self) -> list[str]:
        """The names of its runs, in the order in which they began."""
        return list(dict.fromkeys(launch.run for launch in self.launches)) or [self._name]

    @property
    def records(self) -> int:
        """The number of lines that are kept."""
        return sum(launch.records for launch in self.launches)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(launch.size for launch in self.launches)

    def take(self, chunk: Chunk, now: float) -> None:
        """Keep the lines of a file."""
        place = self._place(chunk.file)
        if chunk.begins_anew:
            self._drop_file(place)
        for line in chunk.lines:
            self._take(line, chunk, place, now)
            self._beyond[place] = line.number + 1

    def _drop_file(self, place: int) -> None:
        """What was read of a file is no more."""
        for launch in self.launches:
            launch.drop_file(place)
        self.malformed = [one for one in self.malformed if one[0] != self.files[place].name]

    def _take(self, line: Line, chunk: Chunk, place: int, now: float) -> None:
        record = parse(line.text)
        if record is None or not _is_sound(line.text):
            if len(self.malformed) < LISTED and not chunk.again:
                self.malformed.append((chunk.file, line.number, explain(line.text + b"\n")))
                for launch in self.launches[-1:]:
                    launch.dirty = True
            return
        if self.files[place].rank is None:
            self.files[place] = SourceFile(chunk.file, record["rank"])
        kept = Kept(place, line.number, line.text)
        launch = self._launch(record)
        launch.take(record, kept, now, again=chunk.again)

    def _launch(self, record: Mapping[str, Any]) -> Launch:
        """The launch of a record: that of its token, or a new one that its run line begins."""
        token, rank = record["launch"], record["rank"]
        begins = record["record"] == "run"
        started_at = number(record.get("started_at" if begins else "time")) or 0.0
        launch = self._latest.get(token)
        if begins and launch is not None:
            same = [one for one in self.launches if one.token == token]
            launch = next((one for one in same if one.starts.get(rank) == started_at), launch)
        if launch is None or (begins and not launch.holds(rank, started_at)):
            launch = Launch(token=token, started_at=started_at, run=self.runs[-1])
            self._latest[token] = launch
            self.launches.append(launch)
            self.launches.sort(key=lambda one: (one.started_at, one.token))
            self._trim()
        return launch

    def _trim(self) -> None:
        """Forget the oldest launches where they are too many."""
        for launch in self.launches[:-LAUNCHES]:
            self.incomplete.add(launch.run)
            if self._latest.get(launch.token) is launch:
                del self._latest[launch.token]
        del self.launches[:-LAUNCHES]

    def advance(self, now: float, patience: float) -> None:
        """See what can be judged by now."""
        for launch in self.launches:
            launch.advance(now, patience, ended=launch is not self.launches[-1])

    @property
    def moves(self) -> bool:
        """Whether anything is to be judged, now or when other ranks or patience allow."""
        return any(launch.dirty or launch.waiting() for launch in self.launches)

    @property
    def is_dirty(self) -> bool:
        """Whether anything is to be judged now."""
        return any(launch.dirty for launch in self.launches)

    def of(self, run: str) -> list[Launch]:
        """The launches of a run of which lines are kept."""
        return [launch for launch in self.launches if launch.run == run and (launch.heads or launch.groups)]

    def is_whole(self, run: str) -> bool:
        """Whether every line of the run is kept."""
        return run not in self.incomplete and all(
            launch.is_whole for launch in self.launches if launch.run == run
        )

    @property
    def is_behind(self) -> bool:
        """Whether attempts have to be judged from the whole record before the newest are."""
        return not self.caught_up and any(launch.passed_over for launch in self.launches)

    def shrink(self, records: int, size: int) -> None:
        """Drop the oldest lines until so many are left; the last attempts stay, whatever they are."""
        for place, launch in enumerate(self.launches):
            rest = self.launches[place + 1 :]
            left_records = max(records - sum(one.records for one in rest), 0)
            left_size = max(size - sum(one.size for one in rest), 0)
            if launch.records <= left_records and launch.size <= left_size:
                return
            if any(one.run == launch.run and one.groups for one in rest[:-1]):
                self.incomplete.add(launch.run)
                launch.empty()
            else:
                launch.shrink(left_records, left_size, OVERLAP)

    def finish(self) -> bool:
        """Its runs have ended; whether what is kept tells as much as their files."""
        if not all(map(self.is_whole, self.runs)) or len(self.malformed) >= LISTED:
            return False
        if not all(launch.is_closed for launch in self.launches):
            return False  # its files may end in lines that are torn
        self.ends = True
        for launch in self.launches:
            launch.dirty = True
            launch.close()
        return True

    def forgive(self, run: str, told: Mapping[tuple[int, int], int]) -> None:
        """Attempts of a run that were passed over have been told after all."""
        for launch in self.launches:
            if launch.run == run:
                gaps = [
                    track.lowest - 1 - told.get((launch.number, index), 0)
                    for index, track in launch.tracks.items()
                ]
                launch.passed_over = max(0, *gaps) if gaps else 0

    def settle(self) -> None:
        """Keep the last attempts alone: the whole record was judged."""
        for launch in self.launches[:-1]:
            self.incomplete.add(launch.run)
            launch.empty()
        for launch in self.launches[-1:]:
            launch.shrink(0, 0, OVERLAP)

    def keep_from(self) -> dict[str, int]:
        """The first line of each file that is needed again after a restart, beside the file's first line."""
        needed = dict(enumerate(self._beyond))
        for launch in self.launches:
            for group in launch.groups.values():
                for line in group.lines:
                    needed[line.file] = min(line.number, needed[line.file])
        return {self.files[place].name: number for place, number in needed.items()}

    def saved(self) -> dict[str, Any]:
        """What another process goes on from, as JSON; the lines are read again."""
        return {
            "incomplete": sorted(self.incomplete),
            "caught_up": self.caught_up,
            "malformed": self.malformed,
            "launches": [launch.saved([one.name for one in self.files]) for launch in self.launches],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self.incomplete = set(saved["incomplete"])
        self.caught_up = saved["caught_up"]
        self.malformed = [(file, line, why) for file, line, why in saved["malformed"]]
        for one in saved["launches"]:
            launch = Launch.restored(one, self._place)
            self.launches.append(launch)
            self._latest[launch.token] = launch

    def _place(self, file: str) -> int:
        """The place of a file in the list, which it enters where it is new."""
        if file not in self._places:
            self._places[file] = len(self.files)
            self.files.append(SourceFile(file))
            self._beyond.append(1)
        return self._places[file]


def _is_sound(text: bytes) -> bool:
    """Whether a reader of strict UTF-8 and JSON takes it too."""
    if b"\\u" not in text and text.isascii():
        return b"\0" not in text
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except ValueError:
        return False
    return True
