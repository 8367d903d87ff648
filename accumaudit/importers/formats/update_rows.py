"""Makes attempts of rows that number updates and micro-steps, as loops number them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accumaudit.importers.reading.values import LARGEST

UPDATE_ID: Final = "optimizer_update_id"
MICRO_STEP: Final = "micro_step_id"
SKIPPED: Final = "optimizer_step_skipped"
OF_UPDATES: Final = (
    "grad_norm_before_clip",
    "grad_norm_after_clip",
    "global_valid_tokens_in_update",
    SKIPPED,
)
"""What is known at the step alone, if micro-steps have rows of their own."""

SHARE: Final = 0.3
"""Of the pairs of rows, those within one update, from which on rows are micro-steps."""

DRIFT: Final = 4
"""Records by which two writers are apart at most."""

KINDS: Final = 1000
"""Different distances of records that are counted."""

Attempt = tuple[int, int, dict[str, Any]]
"""The line, the number of the attempt, and its fields."""


@dataclass(slots=True)
class Row:
    """One row of a table."""

    line: int
    rank: int
    fields: dict[str, Any]

    @property
    def key(self) -> tuple[int, int]:
        """The rank and the optimizer, which have counters of their own."""
        return self.rank, self.fields.get("optimizer", 0)

    @property
    def update_id(self) -> int | None:
        return self.fields.get(UPDATE_ID)

    @property
    def micro_step(self) -> int | None:
        return self.fields.get(MICRO_STEP)

    @property
    def skipped(self) -> bool | None:
        return self.fields.get(SKIPPED)


class Shape:
    """What the first rows of a table tell of all."""

    def __init__(self, rows: Sequence[Row]) -> None:
        neighbours = list(_neighbours(rows))
        same = [pair for pair in neighbours if _are_of_one_update(*pair)]
        pairs = [pair for pair in neighbours if None not in (pair[0].micro_step, pair[1].micro_step)]
        inside = sum(row.micro_step == (before.micro_step or 0) + 1 for before, row in same)
        self.by_micro_step = inside > SHARE * len(pairs)
        """Each row is a micro-step: many follow one of the same update without any skip."""
        on = [pair for pair in pairs if (pair[1].update_id or 0) > (pair[0].update_id or 0)]
        back = sum((row.micro_step or 0) <= (before.micro_step or 0) for before, row in on)
        self.counts_on = 2 * back <= len(on)
        """Micro-steps are counted over the run; else they go back where the next update begins."""
        self.is_doubled = len(same) > SHARE * len(neighbours)
        """Two processes write each row."""
        filled = {name: sum(name in row.fields for row in rows) for name in OF_UPDATES}
        self.telling = [name for name, count in filled.items() if 0 < count < len(rows)]
        """The fields that only the rows of updates have."""


def _neighbours(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Each two rows of a rank in sequence."""
    latest: dict[tuple[int, int], Row] = {}
    for row in rows:
        before = latest.get(row.key)
        latest[row.key] = row
        if before is not None:
            yield before, row


def _are_of_one_update(before: Row, row: Row) -> bool:
    return row.update_id == before.update_id and row.skipped is not True and before.skipped is not True


class Attempts:
    """The attempts of one rank and optimizer, in the order of their rows."""

    def __init__(self, shape: Shape) -> None:
        self.launches = 1
        self._shape = shape
        self._held: Row | None = None
        """A micro-step after which the update may come."""
        self._skip: Row | None = None
        """A skipped attempt that has a number of its own, until the next tells what the number means."""
        self._before: Row | None = None
        self._attempt = 0
        self._distances: Counter[tuple[int, int | None]] = Counter()
        """How often the two counters went so far from one record to the next."""
        self._usual: tuple[int, int | None] = (1, None)
        """How far they usually go."""
        self._first = 0
        """The first number of an update."""

    def starts_again(self, row: Row) -> bool:
        """Whether both counters went back, further than a second writer is behind; one alone is a fault."""
        before = self._held or self._skip or self._before
        if before is None or before.update_id is None or row.update_id is None:
            return False
        back = before.update_id - row.update_id
        if back <= 0 or (row.update_id > self._first and back <= DRIFT * self._usual[0]):
            return False
        return before.micro_step is None or row.micro_step is None or row.micro_step < before.micro_step

    def take(self, row: Row) -> Iterator[Attempt]:
        """Give the attempts that are whole with this row."""
        if not self._shape.by_micro_step:
            yield from self._settled(row)
            return
        held, self._held = self._held, row
        if held is not None and not self._is_inside(held, row):
            yield from self._finished(held)

    def end(self) -> Iterator[Attempt]:
        """Nothing more is coming of this launch."""
        if self._held is not None:
            yield from self._finished(self._held)
        if self._skip is not None:
            yield self._numbered(_tried(self._skip))
        self._held = self._skip = self._before = None
        self._distances.clear()
        self._usual = (1, None)

    def _is_inside(self, held: Row, row: Row) -> bool:
        """Whether a micro-step belongs to the window of the row after it."""
        return (
            held.update_id == row.update_id
            and held.skipped is not True
            and self._is_update(held) <= self._is_update(row)
        )

    def _is_update(self, row: Row) -> bool:
        return any(name in row.fields for name in self._shape.telling)

    def _finished(self, row: Row) -> Iterator[Attempt]:
        """A window is over with this micro-step, or it is one of the next window."""
        if not self._shape.telling:
            if row.skipped:  # nor does it tell whose number this is
                row.fields.pop(UPDATE_ID, None)
            yield self._numbered(row)
        elif self._is_update(row):
            yield from self._settled(row)

    def _settled(self, row: Row) -> Iterator[Attempt]:
        """Where a loop numbers the update that is tried, the next attempt has the number of a skipped one."""
        skip, self._skip = self._skip, None
        if skip is not None:
            yield self._numbered(_tried(skip) if row.update_id == skip.update_id else skip)
        done = self._before.update_id if self._before else 0
        if row.skipped and row.update_id is not None and done is not None and row.update_id > done:
            self._skip = row
        else:
            yield self._numbered(row)

    def _numbered(self, row: Row) -> Attempt:
        if not self._shape.counts_on:  # the number within the window is none of the run
            row.fields.pop(MICRO_STEP, None)
        before, self._before = self._before, row
        if before is None:
            self._first = row.update_id or 0
            self._attempt = max(self._first, 1)
        else:
            self._attempt = min(max(self._attempt + self._between(before, row), 1), LARGEST)
        return row.line, self._attempt, row.fields

    def _between(self, before: Row, row: Row) -> int:
        """The attempts from one record to the next: as ever where micro-steps are, whatever the ids say."""
        if before.update_id is None or row.update_id is None:
            return 1
        updates, micro_steps = row.update_id - before.update_id, None
        if before.micro_step is not None and row.micro_step is not None:
            micro_steps = row.micro_step - before.micro_step
        if updates <= 0 and self._is_again(updates, micro_steps):
            return updates
        went = (updates, micro_steps)
        if went in self._distances or len(self._distances) < KINDS:
            self._distances[went] += 1
            if self._distances[went] > self._distances[self._usual] and updates > 0:
                self._usual = went
        usual = micro_steps is not None and micro_steps == self._usual[1]
        return max(self._usual[0] if usual else updates, 1)

    def _is_again(self, updates: int, micro_steps: int | None) -> bool:
        """Whether a record without any new update is of an attempt that was there: a second writer's."""
        if micro_steps is not None:
            return micro_steps <= 0
        return updates < 0 or self._shape.is_doubled


def _tried(row: Row) -> Row:
    """The skipped attempt with the number of updates that were applied by then."""
    return Row(row.line, row.rank, row.fields | {UPDATE_ID: (row.update_id or 1) - 1})
