"""The launches in one folder: which lines are whose, and which launch begins a run of its own."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from accumaudit.ledger.launches import JOIN_SECONDS
from accumaudit.service.counters import RANKS, Record, integer, number
from accumaudit.service.lines import Chunk

LAUNCHES: Final = 1_000
"""Launches in one folder that are told apart; the newest."""


@dataclass(slots=True, eq=False)
class Launch:
    """Run lines of one token that begin together, as `check` joins them."""

    token: str
    key: str
    run: str
    started_at: float
    ranks: dict[int, float | None] = field(default_factory=dict)
    """When each rank began, where its run line has been seen."""
    held: list[Record] | None = None
    """Its run lines, as long as nothing has told whether it resumes a run or starts over: it has none yet."""
    held_size: int = 0

    def holds(self, rank: int, started_at: float) -> bool:
        """Whether a run line belongs to it: a rank that starts again begins another launch."""
        together = abs(started_at - self.started_at) <= JOIN_SECONDS
        return together and self.ranks.get(rank) in (None, started_at)


@dataclass(slots=True)
class Folder:
    """What is known of the launches in one folder."""

    newest: str
    """The run that began last."""
    launches: dict[str, list[Launch]] = field(default_factory=dict)
    """By their token."""
    order: deque[Launch] = field(default_factory=deque)
    """All of them, the oldest first."""
    current: dict[tuple[str, int], Launch] = field(default_factory=dict)
    """The one that the lines of a token and rank belong to, from their last run line on."""

    def add(self, launch: Launch) -> None:
        """Take in a launch; the oldest goes where they are too many."""
        self.launches.setdefault(launch.token, []).append(launch)
        self.order.append(launch)
        if len(self.order) > LAUNCHES:
            oldest = self.order.popleft()
            rest = [one for one in self.launches.pop(oldest.token) if one is not oldest]
            if rest:
                self.launches[oldest.token] = rest
            for rank in oldest.ranks:
                if self.current.get((oldest.token, rank)) is oldest:
                    del self.current[oldest.token, rank]

    def place(self, token: str, rank: int, launch: Launch) -> None:
        """From here on the lines of a token and rank belong to this launch."""
        if (token, rank) in self.current or len(self.current) < RANKS:
            self.current[token, rank] = launch
            launch.ranks.setdefault(rank, None)


def starts_over(record: Record) -> bool | None:
    """Whether a launch begins at its first update, as `check` sees it, where this record of it tells."""
    if record["record"] == "update":
        update_id = integer(record.get("optimizer_update_id"))
        return update_id is not None and update_id <= (record.get("optimizer_step_skipped") is not True)
    if record["record"] == "run":
        steps = (record.get("optimizer_state_step_at_attach"), record.get("scheduler_step_at_attach"))
        resumes = any(map(integer, steps)) or record.get("resumed_from_update") is not None
    else:
        # A launch without an attempt is one of the run that was there.
        resumes = record.get("kind") == "close" or _declares_resume(record)
    return False if resumes else None


def _declares_resume(mark: Record) -> bool:
    try:
        declared = json.loads(mark["name"]) if mark.get("kind") == "declare" else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
    return isinstance(declared, dict) and declared.get("resumed_from_update") is not None


def in_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """By their folders, and there files that begin launches last and in the order in which these began.

    Which launch starts over depends on what was there before, and names of files do not tell. The chunks of
    a file stay as they follow each other.
    """
    given = list(chunks)
    begins: dict[str, float] = {}
    for chunk in given:
        if chunk.file not in begins:
            begins[chunk.file] = _begins_at(chunk)
    return sorted(given, key=lambda chunk: (chunk.run, begins[chunk.file]))


def _begins_at(chunk: Chunk) -> float:
    """When the launch began whose run line is the first of a file."""
    if not chunk.lines or chunk.lines[0].number != 1:
        return 0.0
    try:
        record = json.loads(chunk.lines[0].text)
    except (ValueError, RecursionError):
        return 0.0
    return (number(record.get("started_at")) or 0.0) if isinstance(record, dict) else 0.0
