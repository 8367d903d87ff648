"""Reports what was left out of a ledger: bad lines, lists that disagree, damaged files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb

from accumaudit.ledger import lines
from accumaudit.ledger.loading import Failure
from accumaudit.ledger.recovery import ENDS_EARLY
from accumaudit.ledger.sources import RunSource, Source

LISTED: Final = 100
"""Lines of one file that are reported one by one."""

BAD_ROWS: Final = """
SELECT file_id, count(*), list(ordinal ORDER BY ordinal) FILTER (place <= $1)
FROM (
    SELECT file_id, r.n - f.first_line + 1 AS ordinal,
           row_number() OVER (PARTITION BY file_id ORDER BY r.n) AS place
    FROM stored.records r JOIN stored.files f USING (file_id)
    WHERE r.record IS NULL OR NOT r.lists_agree
)
GROUP BY file_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A line that is no record, or a file (`line` is None) that could not be read to its end."""

    run_id: str
    file: str
    line: int | None
    why: str


def find_unreadable(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[RunSource], failures: Sequence[Failure]
) -> list[Unreadable]:
    """What `records` holds only in part or not at all, in the order of the files."""
    bad: dict[int, tuple[int, list[int]]] = {}
    if connection.execute("FROM stored.files WHERE unreadable > 0 LIMIT 1").fetchall():
        rows = connection.execute(BAD_ROWS, [LISTED]).fetchall()
        bad = {file_id: (count, ordinals) for file_id, count, ordinals in rows}
    found = []
    for run in runs:
        for source in run.files:
            reasons: list[tuple[int | None, str]] = [(f.line, f.why) for f in failures if f.source is source]
            if source.id in bad:
                reasons += _bad_lines(source, *bad[source.id])
            reasons = list(dict.fromkeys(reasons))
            file = source.name
            found += [Unreadable(run_id=run.run_id, file=file, line=line, why=why) for line, why in reasons]
    return found


def _bad_lines(source: Source, count: int, ordinals: Sequence[int]) -> Iterator[tuple[int | None, str]]:
    seen = {
        ordinal: (number, lines.explain(text)) for ordinal, number, text in lines.find_lines(source, ordinals)
    }
    for ordinal in ordinals:
        # A gzipped line that is not found stands where the data end.
        yield seen.get(ordinal, (None, ENDS_EARLY) if source.kind == "gzip" else (ordinal, "no record"))
    if count > len(ordinals):
        yield None, f"{count - len(ordinals):,} more lines are no records"
