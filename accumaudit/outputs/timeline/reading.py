"""Reads timelines from an audited ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from accumaudit.engine.rule import SEVERITIES
from accumaudit.outputs.timeline import queries
from accumaudit.outputs.timeline.model import (
    Attempt,
    Fault,
    Mark,
    MicroStep,
    RankDetail,
    Section,
    Timeline,
)

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport, RunReport
    from accumaudit.ledger.reader import Ledger

What = Literal["overview", "all"] | int
"""The beginning, the end and everything faulty; every attempt; or those around an update."""

Places = Sequence[tuple[int, int, int]]
"""Launches, optimizers and their attempts."""

ALWAYS: Final = ("gap", "hook_error", "not_recorded", "close")
"""Marks that an overview has wherever they stand; others come with the attempts beside them."""

OF_ONE_KIND: Final = 20
"""Of these marks, so many of each kind."""

Row = dict[str, Any]
Key = tuple[int, ...]
"""Launch, optimizer, attempt_id and, where it is about one, the rank."""

K = TypeVar("K")
T = TypeVar("T")


def timelines(ledger: Ledger, report: AuditReport, what: What = "overview") -> list[Timeline]:
    """The timeline of each run of a ledger that has just been audited.

    Around an update there are also the faults' messages and what each rank wrote, and a section that
    does not reach to this update is left out.
    """
    return [_Reading(ledger, run, what).timeline() for run in report.runs]


def sections_beside(ledger: Ledger, run: RunReport, places: Places, near: int) -> tuple[Section, ...]:
    """The attempts at some places of a run that has just been audited, and so many before and after each."""
    return _Reading(ledger, run, "overview", (places, near)).timeline().sections


class _Reading:
    """Reads one run."""

    def __init__(
        self, ledger: Ledger, run: RunReport, what: What, beside: tuple[Places, int] | None = None
    ) -> None:
        self._ledger = ledger
        self._run = run
        self._what = what
        self._aimed = beside
        """Places of which the neighbours are wanted, and how many."""

    def timeline(self) -> Timeline:
        attempts = self._attempts()
        counts = self._rows(queries.SECTIONS)
        heads = list(_heads(self._rows(queries.LAUNCHES), counts))
        marks = self._marks({head["launch"]: head["optimizer"] for head in reversed(heads)})
        sections = []
        for head in heads:
            key = (head["launch"], head["optimizer"])
            own = attempts.get(key, [])
            if own or not self._is_part:
                beside = self._beside(head, own, marks.get(key, ()))
                sections.append(Section(**head, attempts=tuple(own), marks=tuple(beside)))
        ids = [row[end] for row in counts for end in ("first_id", "last_id") if row[end] is not None]
        return Timeline(
            run=self._run,
            sections=tuple(sections),
            first_update=min(ids, default=None),
            last_update=max(ids, default=None),
        )

    @property
    def _is_part(self) -> bool:
        """Whether a part of the run is asked for, so that sections may lie outside."""
        return isinstance(self._what, int) or self._aimed is not None

    def _rows(self, query: str, **more: object) -> list[Row]:
        cursor = self._ledger.connection.execute(query, {"run": self._run.run_id, **more})
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _attempts(self) -> dict[Key, list[Attempt]]:
        """Those that are wanted, by launch and optimizer."""
        choice, values = self._choice()
        self._rows(queries.SHOWN % {"gap": queries.SMALL_GAP + 1, **choice}, **values)
        found = [_attempt(row) for row in self._rows(queries.ATTEMPTS)]
        if isinstance(self._what, int):
            faults, ranks = self._faults(), self._ranks()
            keys = [(one.launch, one.optimizer, one.attempt_id) for one in found]
            found = [
                replace(one, faults=tuple(faults.get(key, ())), ranks=tuple(ranks.get(key, ())))
                for key, one in zip(keys, found, strict=True)
            ]
        return _grouped(((one.launch, one.optimizer), one) for one in found)

    def _choice(self) -> tuple[dict[str, str], dict[str, object]]:
        """The conditions of what is wanted, and the values in them."""
        if self._aimed is not None:
            places, near = self._aimed
            names = ("launch", "optimizer", "attempt_id")
            around = [dict(zip(names, place, strict=True)) for place in places]
            return {"here": queries.AT_PLACES, "wanted": queries.BESIDE % {"near": near}}, {"around": around}
        if isinstance(self._what, int):
            return {"here": queries.AT_UPDATE, "wanted": queries.AROUND}, {"around": self._what}
        return {"here": "false", "wanted": "true" if self._what == "all" else queries.OVERVIEW}, {}

    def _marks(self, first: Mapping[int, int]) -> dict[Key, list[Mark]]:
        """The marks by launch and optimizer; one that is about all stands with the launch's first."""
        marks = [Mark(**{**row, "ranks": tuple(row["ranks"])}) for row in self._rows(queries.MARKS)]
        return _grouped(
            ((one.launch, first.get(one.launch, 0) if one.optimizer is None else one.optimizer), one)
            for one in marks
        )

    def _beside(self, head: Row, attempts: Sequence[Attempt], marks: Iterable[Mark]) -> Iterator[Mark]:
        """The marks that belong to what is shown."""
        shown = [attempt.attempt_id for attempt in attempts]
        step = head["recorded_every"] or 1
        seen: Counter[str] = Counter()
        for mark in marks:
            seen[mark.kind] += 1
            place = bisect_right(shown, mark.attempt_id)
            near = (place > 0 and mark.attempt_id - shown[place - 1] < step) or (
                place < len(shown) and shown[place] - mark.attempt_id <= step
            )
            always = not self._is_part and mark.kind in ALWAYS and seen[mark.kind] <= OF_ONE_KIND
            if near or always or self._what == "all":
                yield mark

    def _faults(self) -> dict[Key, list[Fault]]:
        names = {verdict.code: verdict.name for verdict in self._run.verdicts}

        def fault(row: Row) -> Fault:
            severity = SEVERITIES[row.pop("severity")]
            return Fault(**row, name=names.get(row["code"], ""), severity=severity)

        return _by_attempt(self._rows(queries.FAULTS), fault)

    def _ranks(self) -> dict[Key, list[RankDetail]]:
        rows = self._rows(queries.RANKS)
        lines = self._lines(rows)
        steps = _grouped((_pop_key(row, "rank"), MicroStep(**row)) for row in self._rows(queries.STEPS))
        found = []
        for row in rows:
            key = _pop_key(row)
            row["line"] = lines.get((row["file"], row["line"]), row["line"])
            # A record of sums alone has no micro-steps, only their number.
            own = steps.get((*key, row["rank"]), []) if row["window_sums"] is None else []
            found.append((key, RankDetail(**row, micro_steps=tuple(own))))
        return _grouped(found)

    def _lines(self, rows: Iterable[Row]) -> dict[tuple[str, int], int]:
        """The numbers of the lines as an editor counts them."""
        wanted = _grouped((row["file"], row["line"]) for row in rows if row["file"] and row["line"])
        return {
            (file, ordinal): number
            for file, ordinals in wanted.items()
            for ordinal, number in self._ledger.locate(file, ordinals).items()
        }


def _attempt(row: Row) -> Attempt:
    severity = row.pop("severity")
    return Attempt(
        **{**row, "codes": tuple(row["codes"] or ())},
        severity=None if severity is None else SEVERITIES[severity],
    )


def _heads(launches: Iterable[Row], counts: Sequence[Row]) -> Iterator[Row]:
    """A section's fields without its rows, for each optimizer of each launch that is known."""
    known = {(row["launch"], row["optimizer"]): row for row in counts}
    described = {row["launch"]: row for row in launches}
    named = {
        (launch, one["index"]): one
        for launch, row in described.items()
        for one in row["optimizers"] or ()
        if one["index"] is not None
    }
    pairs = {*known, *named}
    pairs |= {(launch, 0) for launch in set(described) - {launch for launch, _ in pairs}}
    of_launch = Counter(launch for launch, _ in pairs)
    for launch, optimizer in sorted(pairs):
        row = described.get(launch, {})
        own = named.get((launch, optimizer), {})
        counted = known.get((launch, optimizer), {"total": 0, "faulty": 0})
        yield {
            "launch": launch,
            "launches": len(of_launch),
            "optimizer": optimizer,
            "optimizers": of_launch[launch],
            "optimizer_class": own.get("class"),
            "optimizer_name": own.get("name"),
            "total": counted["total"],
            "faulty": counted["faulty"],
            "ranks": tuple(row.get("ranks") or ()),
            **{name: row.get(name) for name in queries.DECLARED},
        }


def _pop_key(row: Row, *more: str) -> Key:
    return tuple(row.pop(name) for name in ("launch", "optimizer", "attempt_id", *more))


def _by_attempt(rows: Iterable[Row], made: Callable[[Row], T]) -> dict[Key, list[T]]:
    return _grouped((_pop_key(row), made(row)) for row in rows)


def _grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups
