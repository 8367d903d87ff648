"""The runs below a folder as their records tell them: which launch is whose, and what each run has done."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from accumaudit.ledger.sources import unique
from accumaudit.service.counters import (
    LONGEST_WAIT,
    RANKS,
    SILENCE,
    Optimizer,
    Ranks,
    Record,
    integer,
    number,
    rank_view,
)
from accumaudit.service.folders import Folder, Launch, starts_over
from accumaudit.service.lines import Chunk
from accumaudit.service.snapshot import RUNNING, FindingView, OptimizerView, Point, RankView

KINDS: Final = ("run", "update", "mark")

OPTIMIZERS: Final = 64
"""Optimizers of a run that are told apart."""

HELD: Final = 32 * 2**20
"""Bytes of run lines that all launches may hold until they know their runs."""

WIDEST_FOLDERS: Final = 100_000
"""Folders beyond the limit of runs that are counted."""

LONGEST_TOKEN: Final = 200
"""Characters of the token of a launch."""

LONGEST_WORD: Final = 200
"""Characters that are kept of a name."""


def parse(text: bytes) -> dict[str, Any] | None:
    """A record with the fields that say whose it is, or nothing."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("record") not in KINDS:
        return None
    token = record.get("launch")
    if not isinstance(token, str) or len(token) > LONGEST_TOKEN or integer(record.get("rank")) is None:
        return None
    if record["record"] == "update" and (
        integer(record.get("attempt_id")) is None or integer(record.get("optimizer")) is None
    ):
        return None
    return record


@dataclass(slots=True)
class Run:
    """One run."""

    name: str
    folder: str
    """Below the one that is watched."""
    ranks: Ranks = field(default_factory=Ranks)
    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    launches: int = 0
    started_at: float | None = None
    last_record_time: float | None = None
    wrapper: str | None = None
    runtime: str | None = None
    every: int = 1
    """Attempts to one record."""
    heard_at: float = 0.0
    """By the monotonic clock of this process."""
    state: str = RUNNING
    version: int = 0
    malformed: int = 0
    most: dict[str, int] = field(default_factory=dict)
    """The most attempts that each rule's finding has ever had."""

    def take(self, record: Record, launch: str) -> None:
        """Count a record of a launch."""
        kind = record["record"]
        if kind == "run":
            self._begin(record, launch)
        elif kind == "update":
            self._update(record, launch)
        elif record.get("kind") == "close":
            self._close(record, launch)
        written = number(record.get("time"))
        if written is not None:
            # A clock that was ahead for a moment is not to be believed until it is caught up with.
            written = min(written, time.time())
            self.last_record_time = max(written, self.last_record_time or written)

    def _begin(self, record: Record, launch: str) -> None:
        started_at = number(record.get("started_at"))
        self.ranks.begin(record, launch, started_at or 0.0)
        if started_at is not None:
            self.started_at = min(started_at, self.started_at or started_at)
        self.every = integer(record.get("recorded_every")) or 1
        self.wrapper = _word(record.get("wrapper"))
        self.runtime = _word(record.get("runtime"))
        described = record.get("optimizers")
        for one in described if isinstance(described, list) else []:
            index = integer(one.get("index")) if isinstance(one, dict) else None
            if index is not None and self._has(index):
                self.optimizers[index].name = _word(one.get("name")) or _word(one.get("class")) or ""

    def _close(self, record: Record, launch: str) -> None:
        closed, rank = self.ranks.closed, record["rank"]
        if launch == self.ranks.launch and (rank in closed or len(closed) < RANKS):
            closed[rank] = record.get("finished") is True
        last_attempt, index = integer(record.get("attempt_id")), integer(record.get("optimizer"))
        if self.every > 1 and last_attempt is not None:
            for one in self.optimizers.values() if index is None else (self.optimizers.get(index),):
                if one is not None:
                    one.reach(launch, last_attempt)

    def _update(self, record: Record, launch: str) -> None:
        index, rank = record["optimizer"], record["rank"]
        if not self._has(index):
            return
        self.optimizers[index].count(record, launch, has_tokens=self.ranks.token_ranks.get(rank, True))
        self._see(record, rank, index)

    def _see(self, record: Record, rank: int, index: int) -> None:
        """Keep the last record of a rank."""
        if (rank, index) in self.ranks.views or len(self.ranks.views) < RANKS:
            self.ranks.views[rank, index] = rank_view(record, rank, index)

    def again(self, record: Record, launch: str) -> None:
        """Take in a record that was counted before the service was started anew."""
        if record["record"] == "run":
            self.ranks.begin(record, launch, number(record.get("started_at")) or 0.0)
        elif record["record"] == "update" and launch == self.ranks.launch:
            self._see(record, record["rank"], record["optimizer"])

    def settle(self, now: float) -> bool:
        """Say what state it is in at this time of the monotonic clock; whether it has changed."""
        seconds = max((view.window_seconds or 0.0 for view in self.ranks.views.values()), default=0.0)
        silent = now - self.heard_at > SILENCE + min(10 * seconds, LONGEST_WAIT)
        before, self.state = self.state, self.ranks.state(silent)
        self.version += before != self.state
        return before != self.state

    @property
    def has_ended(self) -> bool:
        """Whether its ranks have closed, or it was silent when its state was seen last."""
        return self.state != RUNNING or self.ranks.state(silent=False) != RUNNING

    def optimizer_views(self) -> tuple[OptimizerView, ...]:
        """Its optimizers, in their order."""
        return tuple(self.optimizers[index].view(index) for index in sorted(self.optimizers))

    def rank_views(self) -> tuple[RankView, ...]:
        """The last records of its ranks, in their order."""
        return tuple(self.ranks.views[key] for key in sorted(self.ranks.views))

    def judged(self, points: Iterable[Point]) -> list[Point]:
        """Keep attempts that were judged; give them with the tokens of the whole run."""
        return [
            self.optimizers[point.optimizer].judged(point) for point in points if self._has(point.optimizer)
        ]

    def _has(self, index: int) -> bool:
        """Whether the optimizer is one of those that are told apart, now at the latest."""
        if index not in self.optimizers and len(self.optimizers) < OPTIMIZERS:
            self.optimizers[index] = Optimizer()
        return index in self.optimizers

    def found(self, findings: Iterable[FindingView]) -> bool:
        """Note how large findings are; whether one has never been so large."""
        grown = {one.code: count for one in findings if (count := one.count) > self.most.get(one.code, 0)}
        self.most |= grown
        return bool(grown)

    def saved(self) -> dict[str, Any]:
        """What another process of the service goes on from, as JSON."""
        return {
            "folder": self.folder,
            "launches": self.launches,
            "launch": self.ranks.launch,
            "launch_started_at": self.ranks.launch_started_at,
            "every": self.every,
            "world_size": self.ranks.world_size,
            "expected": self.ranks.expected,
            "closed": list(self.ranks.closed.items()),
            "started_at": self.started_at,
            "last_record_time": self.last_record_time,
            "wrapper": self.wrapper,
            "runtime": self.runtime,
            "malformed": self.malformed,
            "most": self.most,
            "state": self.state,
            "optimizers": [[index, one.saved()] for index, one in self.optimizers.items()],
        }

    @classmethod
    def restored(cls, name: str, saved: Mapping[str, Any], now: float) -> Run:
        """The one that was saved; its silence goes on, and its ranks' last records come again."""
        return cls(
            name=name,
            folder=saved["folder"],
            ranks=Ranks(
                world_size=saved["world_size"],
                expected=saved["expected"],
                launch=saved["launch"],
                launch_started_at=saved["launch_started_at"],
                closed=dict(saved["closed"]),
            ),
            optimizers={index: Optimizer.restored(one) for index, one in saved["optimizers"]},
            launches=saved["launches"],
            started_at=saved["started_at"],
            last_record_time=saved["last_record_time"],
            wrapper=saved["wrapper"],
            runtime=saved["runtime"],
            every=saved["every"],
            malformed=saved["malformed"],
            most=dict(saved["most"]),
            state=saved["state"],
            heard_at=now if saved["state"] == RUNNING else -math.inf,
        )


class Runs(Mapping[str, Run]):
    """All runs by name; at most so many, the rest are left out and counted."""

    def __init__(self, home: str, limit: int) -> None:
        self._home = home
        self._limit = limit
        self._runs: dict[str, Run] = {}
        self._folders: dict[str, Folder] = {}
        self._left_out: set[str] = set()
        self._held = 0
        """Bytes of the lines that launches hold."""

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def left_out(self) -> int:
        """Folders beyond the limit."""
        return len(self._left_out)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another run."""
        return len(self._runs) >= self._limit

    def take(self, chunk: Chunk, now: float) -> Iterator[tuple[Run, Record | None]]:
        """Count the lines of a chunk; give each new one with its run, and None where it is no record."""
        if not self.admit(chunk.run):
            return
        for line in chunk.lines:
            record = parse(line.text)
            if record is None:
                run = self._runs[self._folders[chunk.run].newest]
                run.malformed += not chunk.again
            else:
                run = self._take(chunk.run, record, len(line.text), again=chunk.again)
            if not chunk.again:
                run.heard_at = now
                run.version += 1
                yield run, record

    def is_new(self, folder: str) -> bool:
        """Whether nothing of a folder has come so far."""
        return folder not in self._folders and folder not in self._left_out

    def admit(self, folder: str) -> bool:
        """Whether a folder has a run, now at the latest; one that was left out stays so."""
        if folder in self._folders:
            return True
        if self.is_full or folder in self._left_out:
            if len(self._left_out) < WIDEST_FOLDERS:
                self._left_out.add(folder)
            return False
        name = self._first(folder)
        self._add(unique(name, self._runs) if name in self._runs else name, folder)
        return True

    def welcome(self, folder: str) -> None:
        """A folder that was left out is to have a run, once its lines come again from the first one on."""
        self._left_out.discard(folder)

    def in_folder(self, folder: str) -> list[Run]:
        """The runs in a folder."""
        return [run for run in self._runs.values() if run.folder == folder]

    def forget(self, folder: str) -> None:
        """Drop the runs in a folder."""
        for run in self.in_folder(folder):
            del self._runs[run.name]
        known = self._folders.pop(folder, None)
        self._held -= sum(one.held_size for one in known.order) if known else 0

    def _take(self, folder: str, record: Record, size: int, *, again: bool) -> Run:
        """Have the run of a record count it; the newest of the folder is given where there is none yet."""
        launch, known = self._launch(folder, record), self._folders[folder]
        if launch.held is not None:
            anew = starts_over(record)
            if anew is None and self._held + size <= HELD:
                if record["record"] == "run":  # a mark that does not tell is not counted either
                    launch.held.append(record)
                    launch.held_size += size
                    self._held += size
                return self._runs[known.newest]
            self._decide(known, launch, anew is True)
        run = self._runs[launch.run]
        if again:
            run.again(record, launch.key)
        else:
            run.take(record, launch.key)
        return run

    def _decide(self, known: Folder, launch: Launch, anew: bool) -> None:
        """Give a launch its run, another one where it starts over and there is room, and what was held."""
        newest = self._runs[known.newest]
        has_attempts = any(one.attempts for one in newest.optimizers.values())
        if anew and has_attempts and not self.is_full:
            self._add(unique(self._first(newest.folder), self._runs), newest.folder)
        self._held -= launch.held_size
        held, launch.held, launch.held_size = launch.held or [], None, 0
        self._enter(known, launch)
        for record in held:
            self._runs[launch.run].take(record, launch.key)

    def _launch(self, folder: str, record: Record) -> Launch:
        """The launch of a record; a run line may begin one."""
        token, rank, known = record["launch"], record["rank"], self._folders[folder]
        launches = known.launches.get(token, [])
        if record["record"] == "run":
            started_at = number(record.get("started_at")) or 0.0
            launch = next((one for one in launches if one.holds(rank, started_at)), None)
            if launch is None:
                for earlier in [one for one in known.order if one.held is not None]:
                    self._decide(known, earlier, anew=False)
                launch = self._begin(known, token, started_at, starts_over(record))
            known.place(token, rank, launch)
            if rank in launch.ranks:
                launch.ranks[rank] = started_at
        else:
            launch = known.current.get((token, rank))
            if launch is None:  # its run line was lost
                began = number(record.get("time")) or 0.0
                launch = launches[-1] if launches else self._begin(known, token, began)
                known.place(token, rank, launch)
        return launch

    def _begin(self, known: Folder, token: str, started_at: float, anew: bool | None = False) -> Launch:
        """A launch that is the newest run's, or waits until its records tell."""
        launch = Launch(token, "", "", started_at)
        if anew is None and self._runs[known.newest].launches:
            launch.held = []
        else:
            self._enter(known, launch)
        known.add(launch)
        return launch

    def _enter(self, known: Folder, launch: Launch) -> None:
        """Make a launch the newest run's."""
        run = self._runs[known.newest]
        run.launches += 1
        launch.run, launch.key = run.name, f"{launch.token} {run.launches}"

    def _first(self, folder: str) -> str:
        """The name of the first run in a folder."""
        return self._home if folder == "." else folder

    def _add(self, name: str, folder: str) -> None:
        self._runs[name] = Run(name=name, folder=folder)
        self._folders.setdefault(folder, Folder(name)).newest = name

    def saved(self, name: str) -> dict[str, Any]:
        """What another process of the service goes on from, as JSON."""
        known = self._folders[self._runs[name].folder]
        tokens = [
            [one.token, one.key, one.started_at, self._ranks_in(known, one)]
            for one in known.order
            if one.run == name
        ]
        return {**self._runs[name].saved(), "tokens": tokens, "is_newest": known.newest == name}

    def _ranks_in(self, known: Folder, launch: Launch) -> list[int]:
        """The ranks whose lines belong to it now; asked where a token has several launches."""
        if len(known.launches[launch.token]) == 1:
            return []
        return [rank for rank in launch.ranks if known.current.get((launch.token, rank)) is launch]

    def restore(self, saved: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Go on from what was saved."""
        for name, one in saved.items():
            run = self._runs[name] = Run.restored(name, one, now)
            known = self._folders.setdefault(run.folder, Folder(name))
            if one["is_newest"]:
                known.newest = name
            for token, key, started_at, ranks in one["tokens"]:
                launch = Launch(token, key, name, started_at)
                known.add(launch)
                for rank in ranks:
                    known.place(token, rank, launch)


def _word(value: object) -> str | None:
    return value[:LONGEST_WORD] if isinstance(value, str) else None
