"""The runs below a folder as their records tell them: which launch is whose, and what each run has done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from accumaudit.ledger.launches import JOIN_SECONDS
from accumaudit.ledger.sources import unique
from accumaudit.service.counters import (
    SILENCE,
    Optimizer,
    Ranks,
    Record,
    integer,
    number,
    rank_view,
)
from accumaudit.service.lines import Chunk
from accumaudit.service.snapshot import RUNNING, OptimizerView, Point, RankView

KINDS: Final = ("run", "update", "mark")

LAUNCHES: Final = 1_000
"""Launches of one token in one folder that are told apart."""

OPTIMIZERS: Final = 64
"""Optimizers of a run that are told apart."""

WIDEST_FOLDERS: Final = 100_000
"""Folders beyond the limit of runs that are counted."""

RANKS: Final = 100_000
"""Ranks of a run whose last records are kept."""


def parse(text: bytes) -> dict[str, Any] | None:
    """A record with the fields that say whose it is, or nothing."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("record") not in KINDS:
        return None
    if not isinstance(record.get("launch"), str) or integer(record.get("rank")) is None:
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

    def take(self, record: Record, launch: str) -> None:
        """Count a record of a launch."""
        kind = record["record"]
        if kind == "run":
            self._begin(record, launch)
        elif kind == "update":
            self._update(record, launch)
        elif record.get("kind") == "close":
            self._close(record, launch)
        time = number(record.get("time"))
        if time is not None:
            self.last_record_time = max(time, self.last_record_time or time)

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
            if index is not None and (index in self.optimizers or len(self.optimizers) < OPTIMIZERS):
                optimizer = self.optimizers.setdefault(index, Optimizer())
                optimizer.name = _word(one.get("name")) or _word(one.get("class")) or ""

    def _close(self, record: Record, launch: str) -> None:
        if launch == self.ranks.launch:
            self.ranks.closed[record["rank"]] = record.get("finished") is True
        last_attempt, index = integer(record.get("attempt_id")), integer(record.get("optimizer"))
        if self.every > 1 and last_attempt is not None:
            for one in self.optimizers.values() if index is None else (self.optimizers.get(index),):
                if one is not None:
                    one.reach(launch, last_attempt)

    def _update(self, record: Record, launch: str) -> None:
        index, rank = record["optimizer"], record["rank"]
        if index not in self.optimizers and len(self.optimizers) >= OPTIMIZERS:
            return
        optimizer = self.optimizers.setdefault(index, Optimizer())
        optimizer.count(record, launch, has_tokens=self.ranks.token_ranks.get(rank, True))
        if (rank, index) in self.ranks.views or len(self.ranks.views) < RANKS:
            self.ranks.views[rank, index] = rank_view(record, rank, index)

    def again(self, record: Record, launch: str) -> None:
        """Take in a record that was counted before the service was started anew."""
        if record["record"] == "run":
            self.ranks.begin(record, launch, number(record.get("started_at")) or 0.0)
        elif record["record"] == "update" and launch == self.ranks.launch:
            rank, index = record["rank"], record["optimizer"]
            self.ranks.views[rank, index] = rank_view(record, rank, index)

    def settle(self, now: float) -> bool:
        """Say what state it is in at this time of the monotonic clock; whether it has changed."""
        seconds = [view.window_seconds or 0.0 for view in self.ranks.views.values()]
        silent = now - self.heard_at > SILENCE + 10 * max(seconds, default=0.0)
        before, self.state = self.state, self.ranks.state(silent)
        self.version += before != self.state
        return before != self.state

    def optimizer_views(self) -> tuple[OptimizerView, ...]:
        """Its optimizers, in their order."""
        return tuple(self.optimizers[index].view(index) for index in sorted(self.optimizers))

    def rank_views(self) -> tuple[RankView, ...]:
        """The last records of its ranks, in their order."""
        return tuple(self.ranks.views[key] for key in sorted(self.ranks.views))

    def judged(self, points: Iterable[Point]) -> list[Point]:
        """Keep attempts that were judged; give them with the tokens of the whole run."""
        return [self.optimizers.setdefault(point.optimizer, Optimizer()).judged(point) for point in points]

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
            "state": self.state,
            "optimizers": [[index, one.saved()] for index, one in self.optimizers.items()],
        }

    @classmethod
    def restored(cls, name: str, saved: Mapping[str, Any], now: float) -> Run:
        """The one that was saved; its silence is counted from now, and its ranks' last records come again."""
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
            state=saved["state"],
            heard_at=now,
        )


@dataclass(slots=True)
class _Launch:
    """Run lines of one token that begin together, as `check` joins them."""

    key: str
    run: str
    started_at: float
    ranks: dict[int, float] = field(default_factory=dict)
    """When each rank began."""

    def holds(self, rank: int, started_at: float) -> bool:
        """Whether a run line belongs to it: a rank that starts again begins another launch."""
        together = abs(started_at - self.started_at) <= JOIN_SECONDS
        return together and self.ranks.get(rank, started_at) == started_at


class Runs(Mapping[str, Run]):
    """All runs by name; at most so many, the rest are left out and counted."""

    def __init__(self, home: str, limit: int) -> None:
        self._home = home
        self._limit = limit
        self._runs: dict[str, Run] = {}
        self._newest: dict[str, str] = {}
        """The newest run in each folder."""
        self._launches: dict[tuple[str, str], list[_Launch]] = {}
        """The launches of each token in each folder."""
        self._current: dict[tuple[str, str, int], _Launch] = {}
        """The one that a rank's lines belong to, from its last run line on."""
        self._left_out: set[str] = set()

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

    def take(self, chunk: Chunk, now: float) -> Iterator[tuple[Run, Record | None]]:
        """Count the lines of a chunk; give each new one with its run, and None where it is no record."""
        if not self._knows(chunk.run):
            return
        for line in chunk.lines:
            record = parse(line.text)
            if record is None:
                run = self._runs[self._newest[chunk.run]]
                run.malformed += not chunk.again
            else:
                launch = self._launch(chunk.run, record)
                run = self._runs[launch.run]
                if chunk.again:
                    run.again(record, launch.key)
                else:
                    run.take(record, launch.key)
            if not chunk.again:
                run.heard_at = now
                run.version += 1
                yield run, record

    def _knows(self, folder: str) -> bool:
        """Whether the folder has a run, now at the latest."""
        if folder in self._newest:
            return True
        if len(self._runs) >= self._limit:
            if len(self._left_out) < WIDEST_FOLDERS:
                self._left_out.add(folder)
            return False
        self._add(self._home if folder == "." else folder, folder)
        return True

    def _launch(self, folder: str, record: Record) -> _Launch:
        """The launch of a record; a run line may begin one."""
        token, rank = record["launch"], record["rank"]
        launches = self._launches.setdefault((folder, token), [])
        if record["record"] == "run":
            started_at = number(record.get("started_at")) or 0.0
            launch = next((one for one in launches if one.holds(rank, started_at)), None)
            if launch is None:
                self._open_run(folder, record)
                launch = self._begin(folder, token, started_at)
            launch.ranks[rank] = started_at
            self._current[folder, token, rank] = launch
        elif (folder, token, rank) not in self._current:  # its run line was lost
            launch = (
                launches[-1] if launches else self._begin(folder, token, number(record.get("time")) or 0.0)
            )
            self._current[folder, token, rank] = launch
        return self._current[folder, token, rank]

    def _begin(self, folder: str, token: str, started_at: float) -> _Launch:
        run = self._runs[self._newest[folder]]
        run.launches += 1
        launches = self._launches[folder, token]
        launches.append(_Launch(f"{token} {run.launches}", run.name, started_at))
        del launches[:-LAUNCHES]
        return launches[-1]

    def _open_run(self, folder: str, record: Record) -> None:
        """Open another run in the folder where a launch starts over."""
        if _starts_over(record, self._runs[self._newest[folder]]):
            self._add(unique(self._first(folder), self._runs), folder)

    def _add(self, name: str, folder: str) -> None:
        if name in self._runs:
            name = unique(name, self._runs)
        self._runs[name] = Run(name=name, folder=folder)
        self._newest[folder] = name

    def _first(self, folder: str) -> str:
        return next(name for name, run in self._runs.items() if run.folder == folder)

    def forget(self, name: str) -> None:
        """Drop a run that ended long ago."""
        run = self._runs.pop(name)
        if self._newest.get(run.folder) == name:
            del self._newest[run.folder]
        for launches in self._launches.values():
            launches[:] = [one for one in launches if one.run != name]
        self._current = {key: one for key, one in self._current.items() if one.run != name}

    def saved(self, name: str) -> dict[str, Any]:
        """What another process of the service goes on from, as JSON."""
        folder = self._runs[name].folder
        tokens = [
            [token, one.key, one.started_at, self._ranks_in(one) if len(launches) > 1 else []]
            for (place, token), launches in self._launches.items()
            for one in launches
            if place == folder and one.run == name
        ]
        return {**self._runs[name].saved(), "tokens": tokens}

    def _ranks_in(self, launch: _Launch) -> list[int]:
        """The ranks whose lines belong to it now; asked where a token has several launches."""
        return [rank for (_, _, rank), one in self._current.items() if one is launch]

    def restore(self, saved: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Go on from what was saved."""
        for name, one in saved.items():
            run = self._runs[name] = Run.restored(name, one, now)
            self._newest[run.folder] = name
            for token, key, started_at, ranks in one["tokens"]:
                launch = _Launch(key, name, started_at)
                self._launches.setdefault((run.folder, token), []).append(launch)
                self._current |= {(run.folder, token, rank): launch for rank in ranks}


def _starts_over(record: Record, newest: Run) -> bool:
    """Whether a launch begins a new run in the folder of another, which has updates: nothing is resumed."""
    if not any(one.updates for one in newest.optimizers.values()):
        return False
    steps = (record.get("optimizer_state_step_at_attach"), record.get("scheduler_step_at_attach"))
    return not any(map(integer, steps)) and record.get("resumed_from_update") is None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None
