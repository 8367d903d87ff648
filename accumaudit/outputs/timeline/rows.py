"""A section line by line: its attempts, the marks between them, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from accumaudit.outputs.timeline.marks import mark_text
from accumaudit.outputs.timeline.model import Attempt, Section

NEVER: Final = 2**63
"""An attempt that no mark lies after."""


@dataclass(frozen=True, slots=True)
class Note:
    """What stands between attempts: a mark, or how many more there are."""

    text: str


def rows(section: Section) -> Iterator[Attempt | Note]:
    """All lines, in the order of the record."""
    marks = list(section.marks)

    def marks_before(attempt_id: int) -> Iterator[Note]:
        while marks and marks[0].attempt_id < attempt_id:
            yield Note(f"- {mark_text(marks.pop(0), section)}")

    last = seen = faulty = 0
    for attempt in section.attempts:
        yield from marks_before(last + 1)
        yield from _gap(attempt.place - 1 - seen, attempt.faulty_so_far - bool(attempt.codes) - faulty)
        yield from marks_before(attempt.attempt_id)
        yield attempt
        last, seen, faulty = attempt.attempt_id, attempt.place, attempt.faulty_so_far
    yield from marks_before(last + 1)
    yield from _gap(section.total - seen, section.faulty - faulty)
    yield from marks_before(NEVER)


def _gap(count: int, faulty: int) -> Iterator[Note]:
    if count:
        which = f", {'all' if faulty == count else f'{faulty:,} of them'} with a fault" if faulty else ""
        yield Note(f"... {count:,} more{which}")
