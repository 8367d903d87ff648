"""The newest records of one launch, and up to which attempt all of its ranks have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accumaudit.ledger.launches import JOIN_SECONDS
from accumaudit.service.counters import integer, number

LASTING: Final = ("declare", "not_recorded", "resume", "close", "gap", "hook_error")
"""Marks that say something of later attempts, or of the run."""

MARKS: Final = 10_000
"""Marks of one launch that are kept."""

RANKS: Final = 100_000
"""Ranks of one launch that are followed."""

OPTIMIZERS: Final = 64
"""Optimizers of one launch that are told apart."""

NAMED: Final = 1_000
"""Ranks that are named as late."""

SPANS: Final = 3
"""Spans of attempts judged without some ranks that are told."""

UNJUDGED: Final = 4
"""How many times their room attempts may take that were not judged yet."""

Attempt = tuple[int, int]
"""An optimizer and the number of an attempt in its launch."""


class Kept(NamedTuple):
    """A line and where it stands."""

    file: int
    """Its place in the window's list of files."""
    number: int
    text: bytes


class Mark(NamedTuple):
    """A line that is a mark."""

    kind: str
    attempt_id: int
    line: Kept


@dataclass(slots=True)
class Group:
    """The records of one attempt."""

    seen: float
    """When the first of them came, by a clock that only grows."""
    lines: list[Kept] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class Missed:
    """Attempts that are judged without some ranks."""

    first: int
    last: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Track:
    """How far one optimizer of a launch has come."""

    last: dict[int, int] = field(default_factory=dict)
    """The newest attempt of each rank."""
    through: int = 0
    """Every attempt up to this one can be judged."""
    lowest: int = 0
    """Attempts below are not kept any more."""
    sent: int = 0
    """Attempts up to this one were handed over to be judged."""
    judged: int = 0
    """Attempts up to this one were judged."""
    late: set[int] = field(default_factory=set)
    """Ranks that are behind and not waited with any more."""
    missed: list[Missed] = field(default_factory=list)

    def take(self, rank: int, attempt: int) -> None:
        """A rank has written an attempt."""
        self.last[rank] = max(attempt, self.last.get(rank, 0))
        if self.last[rank] < self.through:
            self.late.add(rank)
        else:
            self.late.discard(rank)

    @property
    def newest(self) -> int:
        """The newest attempt that any rank has written."""
        return max(self.last.values(), default=0)

    def common(self) -> int:
        """The attempt up to which every rank that is waited with has written."""
        return min((last for rank, last in self.last.items() if rank not in self.late), default=0)

    def leave_behind(self, last: int, ranks: Sequence[int]) -> None:
        """Judge up to an attempt without the ranks, of these and of those that wrote, that are behind it."""
        behind = {rank for rank in (*ranks, *self.last) if self.last.get(rank, 0) < last}
        self.late |= behind
        named, first = tuple(sorted(behind)[:NAMED]), self.through + 1
        before = self.missed[-1] if self.missed else None
        if before is not None and before.ranks == named and before.last + 1 >= first:
            before.last = last
        else:
            self.missed = [*self.missed[1 - SPANS :], Missed(first, last, named)]
        self.through = last

    def mend(self) -> None:
        """Forget what was missed and has come while it is kept."""
        self.missed = [
            one
            for one in self.missed
            if one.first < self.lowest or any(self.last.get(rank, 0) < one.last for rank in one.ranks)
        ]


@dataclass(slots=True, kw_only=True, eq=False)
class Launch:
    """One launch: what is kept of it."""

    token: str
    started_at: float
    run: str
    """The name of its run."""
    number: int = 0
    """In its run, from 1; 0 until it was judged."""
    starts: dict[int, float] = field(default_factory=dict)
    """When each rank began, as its run line says."""
    ranks: tuple[int, ...] = ()
    """Those that are to write, as far as they can be named."""
    expected: int = 1
    """How many are to write."""
    heads: dict[int, Kept] = field(default_factory=dict)
    """The run line of each rank."""
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    """By the place of their file, and their line."""
    groups: dict[Attempt, Group] = field(default_factory=dict)
    tracks: dict[int, Track] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    over: bool = False
    """It has ended: marks that stand after its last recorded attempt are judged too."""
    records: int = 0
    """Lines that are kept."""
    size: int = 0
    """Their bytes."""
    dropped: bool = False
    """Some of its lines are not kept any more."""
    before: int = 0
    """Lines that were kept when it was saved, and are to be read again."""
    passed_over: int = 0
    """Attempts that were dropped before they were judged."""
    patient: bool = True
    """Ranks that have not written at all are still waited for."""
    dirty: bool = False
    """There is something in it to judge anew."""

    @property
    def is_whole(self) -> bool:
        """Whether every line is kept."""
        return not self.dropped and self.records >= self.before

    @property
    def is_closed(self) -> bool:
        """Whether each of its ranks has written its last record."""
        return bool(self.closed) and len(self.closed) >= max(self.expected, len(self.starts))

    @property
    def late(self) -> set[int]:
        """The ranks that the others are not waited with for any more."""
        return {rank for track in self.tracks.values() for rank in track.late}

    def holds(self, rank: int, started_at: float) -> bool:
        """Whether a run line belongs to it: a rank that starts again begins another launch."""
        return (
            started_at - self.started_at <= JOIN_SECONDS and self.starts.get(rank, started_at) == started_at
        )

    def take(self, record: Mapping[str, Any], line: Kept, now: float, *, again: bool) -> None:
        """Take in a record; one that is read again has been judged as far as is known."""
        was_dirty, rank = self.dirty, record["rank"]
        if rank not in self.starts and len(self.starts) >= RANKS:
            self.dropped = True
            return
        if record["record"] == "run":
            self._begin(record, line)
        elif record["record"] == "mark":
            self._mark(record, line)
        else:
            self._update(record, line, now)
        self.dirty = was_dirty or (self.dirty and not again)

    def _begin(self, record: Mapping[str, Any], line: Kept) -> None:
        rank, recorded = record["rank"], record.get("recorded_ranks")
        if rank not in self.heads:
            self.heads[rank] = line
            self._count(1, len(line.text))
        self.starts[rank] = number(record.get("started_at")) or 0.0
        self.dirty = True
        if isinstance(recorded, list) and recorded:
            ranks = [one for one in recorded if integer(one) is not None]
            self.expected, self.ranks = len(ranks), tuple(ranks[:NAMED])
        else:
            self.expected = max(integer(record.get("world_size")) or 1, 1)
            self.ranks = tuple(range(min(self.expected, NAMED)))

    def _mark(self, record: Mapping[str, Any], line: Kept) -> None:
        kind = record.get("kind")
        if kind == "close" and len(self.closed) < RANKS:
            self.closed.add(record["rank"])
        if len(self.marks) >= MARKS:
            self.dropped = True
        else:
            attempt = integer(record.get("attempt_id")) or 0
            self.dirty = True
            self._add(Mark(kind if isinstance(kind, str) else "", attempt, line))

    def _update(self, record: Mapping[str, Any], line: Kept, now: float) -> None:
        rank, optimizer, attempt = record["rank"], record["optimizer"], record["attempt_id"]
        if optimizer not in self.tracks and len(self.tracks) >= OPTIMIZERS:
            self.dropped = True
            return
        track = self.tracks.setdefault(optimizer, Track())
        if rank not in track.last and len(track.last) >= RANKS:
            self.dropped = True
            return
        track.take(rank, attempt)
        self.closed.discard(rank)
        self.over = False
        if attempt < track.lowest:
            self.dropped = True
            return
        group = self.groups.setdefault((optimizer, attempt), Group(now))
        group.lines.append(line)
        group.size += len(line.text)
        self._count(1, len(line.text))
        self.dirty |= attempt <= track.through

    def advance(self, now: float, patience: float, *, ended: bool) -> None:
        """Move on as far as all ranks have come, or as patience lasts.

        Args:
            ended: a later launch has begun.
        """
        ended = ended or self.is_closed
        self.over |= ended
        for optimizer, track in self.tracks.items():
            before = track.through
            if ended:
                track.through = max(track.through, track.newest)
                track.late.clear()
            else:
                self._advance(optimizer, track, now - patience)
            track.mend()
            self.dirty |= track.through > before

    def _advance(self, optimizer: int, track: Track, since: float) -> None:
        if not self.patient or len(track.last.keys() | track.late) >= self.expected:
            track.through = max(track.through, track.common())
        overdue = max(
            (
                attempt
                for (index, attempt), group in self.groups.items()
                if index == optimizer and attempt > track.through and group.seen <= since
            ),
            default=None,
        )
        if overdue is not None:
            self.patient = False
            track.leave_behind(overdue, self.ranks)

    def judged_from(self, optimizer: int) -> int:
        """The first attempt that is judged: where some were dropped, the first that is kept stands for them.

        Without what was before it, it would be judged by less than when its turn was.
        """
        track = self.tracks[optimizer]
        kept = min((attempt for index, attempt in self.groups if index == optimizer), default=track.lowest)
        return kept + 1 if track.lowest and kept <= track.judged else track.lowest

    def close(self) -> None:
        """Nothing more is waited for, and nothing that was written is left out of the last judgement."""
        self.over = True
        for track in self.tracks.values():
            track.through = max(track.through, track.newest)
            track.missed = []

    def waiting(self) -> bool:
        """Whether an attempt has records and is not to be judged yet."""
        return any(track.newest > track.through for track in self.tracks.values())

    def lines(self) -> Iterator[Kept]:
        """What can be judged."""
        yield from self.heads.values()
        for (optimizer, attempt), group in self.groups.items():
            if attempt <= self.tracks[optimizer].through:
                yield from group.lines
        through = max((track.through for track in self.tracks.values()), default=0)
        for mark in self.marks.values():
            if self.over or mark.attempt_id <= through:
                yield mark.line

    def shrink(self, records: int, size: int, overlap: int) -> None:
        """Drop the oldest attempts until so many lines and bytes are left, if there are so many to drop.

        Args:
            overlap: attempts of each optimizer that stay beside those that were not judged; the latter may
                take several times the room.
        """
        judged = {index: self._stays_from(index, overlap, track.sent) for index, track in self.tracks.items()}
        judgeable = {
            index: self._stays_from(index, overlap, track.through) for index, track in self.tracks.items()
        }
        for key in list(self.groups):
            if self.records <= records and self.size <= size:
                break
            optimizer, attempt = key
            track = self.tracks[optimizer]
            full = self.records > UNJUDGED * records or self.size > UNJUDGED * size
            if attempt < (judgeable if full else judged)[optimizer]:
                group = self.groups.pop(key)
                self._count(-len(group.lines), -group.size)
                self.passed_over += attempt > track.sent
                track.lowest = max(track.lowest, attempt + 1)
                self.dropped = True
        lowest = min((track.lowest for track in self.tracks.values()), default=0)
        self._keep_marks(lambda one: one.kind in LASTING or one.attempt_id >= lowest - 1)

    def empty(self) -> None:
        """Keep nothing but that it was there."""
        self.heads.clear()
        self.marks.clear()
        self.groups.clear()
        self.records = self.size = 0
        self.dropped, self.dirty = True, False
        for track in self.tracks.values():
            track.lowest = track.through + 1

    def drop_file(self, file: int) -> None:
        """Forget the lines of a file that is no more."""
        for key, group in list(self.groups.items()):
            gone = [line for line in group.lines if line.file == file]
            group.lines = [line for line in group.lines if line.file != file]
            size = sum(len(line.text) for line in gone)
            group.size -= size
            self._count(-len(gone), -size)
            if not group.lines:
                del self.groups[key]
        for rank, line in list(self.heads.items()):
            if line.file == file:
                self._count(-1, -len(line.text))
                del self.heads[rank]
        self._keep_marks(lambda one: one.line.file != file)

    def saved(self, files: Sequence[str]) -> dict[str, Any]:
        """What another process goes on from, as JSON: all but the lines of attempts, which are read again."""
        return {
            "token": self.token,
            "started_at": self.started_at,
            "run": self.run,
            "number": self.number,
            "starts": list(self.starts.items()),
            "heads": [
                [files[line.file], line.number, line.text.decode()]
                for line in self.heads.values()
                if line.number > 1
            ],
            "closed": sorted(self.closed),
            "marks": [
                [one.kind, one.attempt_id, files[one.line.file], one.line.number, one.line.text.decode()]
                for one in self.marks.values()
            ],
            "tracks": [[index, track.judged, track.lowest] for index, track in self.tracks.items()],
            "dropped": self.dropped,
            "records": max(self.records, self.before),
            "passed_over": self.passed_over,
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any], place: Callable[[str], int]) -> Launch:
        """The one that was saved; `place` gives the place of a file in the window's list."""
        launch = cls(token=saved["token"], started_at=saved["started_at"], run=saved["run"])
        launch.number, launch.dropped = saved["number"], saved["dropped"]
        launch.passed_over, launch.before = saved["passed_over"], saved["records"]
        launch.starts = dict(saved["starts"])
        launch.closed = set(saved["closed"])
        for file, number_, text in saved["heads"]:
            launch._begin(json.loads(text), Kept(place(file), number_, text.encode()))
        for kind, attempt, file, number_, text in saved["marks"]:
            launch._add(Mark(kind, attempt, Kept(place(file), number_, text.encode())))
        for index, judged, lowest in saved["tracks"]:
            launch.tracks[index] = Track(through=judged, sent=judged, judged=judged, lowest=lowest)
        launch.dirty = False
        return launch

    def _add(self, mark: Mark) -> None:
        """Keep a mark; one that is kept already has been read again."""
        key = mark.line.file, mark.line.number
        if key not in self.marks:
            self._count(1, len(mark.line.text))
        self.marks[key] = mark

    def _keep_marks(self, keeps: Callable[[Mark], bool]) -> None:
        for key, mark in list(self.marks.items()):
            if not keeps(mark):
                del self.marks[key]
                self._count(-1, -len(mark.line.text))

    def _stays_from(self, optimizer: int, overlap: int, last: int) -> int:
        """The lowest attempt that stays: one of those up to the last."""
        attempts = sorted(one for index, one in self.groups if index == optimizer and one <= last)
        return attempts[-overlap] if len(attempts) >= overlap else 0

    def _count(self, records: int, size: int) -> None:
        self.records += records
        self.size += size
