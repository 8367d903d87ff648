"""What could not be checked, and what is to be known of the record itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import duckdb

from accumaudit.engine.findings import BROKEN, NOT_CHECKED, RunReport, Verdict
from accumaudit.outputs.words import absent_ranks, number, plural, spans
from accumaudit.postmortem import remedies
from accumaudit.postmortem.model import Unchecked

SHOWN: Final = 5
"""Kinds, ranks or launches of one remark that are named one by one."""

CLOCK: Final = 1.0
"""Seconds by which clocks of ranks may differ."""


# Long windows alone are summed, so a record without sums says nothing of the others.
_SUMMED: Final = "SELECT 1 FROM updates WHERE run_id = $1 AND window_sums IS NOT NULL LIMIT 1"


def unchecked(connection: duckdb.DuckDBPyConnection, run: RunReport) -> tuple[Unchecked, ...]:
    """The rules that could not judge, by the reason; those that something would have shown come first."""
    summed = bool(connection.execute(_SUMMED, [run.run_id]).fetchall())
    groups: dict[str, list[Verdict]] = {}
    is_empty = not run.attempts and not run.is_foreign  # no rule is missing anything else
    for verdict in run.with_status(NOT_CHECKED):
        reason = "no attempt was recorded" if is_empty else verdict.reason or ""
        groups.setdefault(reason, []).append(verdict)
    found = [
        _group(reason, verdicts, remedies.remedy(reason, run, summed=summed))
        for reason, verdicts in groups.items()
    ]
    found.sort(key=lambda one: (one.remedy is None, -len(one.verdicts), one.verdicts[0].code))
    broken = [
        _group(f"it is broken: {one.reason}", [one], "mend the rule") for one in run.with_status(BROKEN)
    ]
    return (*broken, *found)


def _group(reason: str, verdicts: Sequence[Verdict], remedy: str | None) -> Unchecked:
    in_order = tuple(sorted(verdicts, key=lambda one: one.code))
    return Unchecked(reason=reason, verdicts=in_order, remedy=remedy)


def quality(connection: duckdb.DuckDBPyConnection, run: RunReport) -> tuple[str, ...]:
    """What to know of a run's record, in sentences; none where it is whole."""
    return tuple(_remarks(connection, run))


def _remarks(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    yield from map(_sentence, run.remarks)
    yield from _unreadable(run)
    yield from _absent_ranks(run)
    yield from _missing_records(connection, run)
    yield from _holes(connection, run)
    yield from _superseded(connection, run)
    yield from _duplicates(connection, run)
    yield from _clock(connection, run)
    yield from _unclosed(connection, run)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _unreadable(run: RunReport) -> Iterator[str]:
    """Lines that were left out, and files that end too early."""
    kinds: Counter[str] = Counter()
    for one in run.unreadable:
        more = re.match(r"([\d,]+) more lines are no records", one.why)
        kind = "no records" if more else re.split(r" \(|: ", one.why)[0]
        kinds[kind] += int(more[1].replace(",", "")) if more else 1
    if not kinds:
        return
    named = [f"{kind} ({count:,})" for kind, count in kinds.most_common(SHOWN)]
    if len(kinds) > SHOWN:
        named.append(f"{len(kinds) - SHOWN:,} other kinds")
    verb = "was" if sum(kinds.values()) == 1 else "were"
    yield f"{plural(sum(kinds.values()), 'place')} could not be read and {verb} left out: {'; '.join(named)}."


def _absent_ranks(run: RunReport) -> Iterator[str]:
    """Ranks that were to write and of which no file was read."""
    absent = "" if run.is_foreign else absent_ranks(run)
    if absent:
        several = "s" if set(absent) & set(",-") else ""
        yield f"No record of rank{several} {absent}, of {run.world_size or len(run.ranks):,} in all."


# What a rank that wrote at all did not write.
_MISSING: Final = """
SELECT rank, count(*), arg_min(attempt_id, (launch, attempt_id)), min(launch), count(DISTINCT launch)
FROM (SELECT launch, attempt_id, unnest(ranks_missing) AS rank FROM windows
      WHERE run_id = $run AND len(ranks_missing) > 0)
WHERE list_contains($ranks, rank) GROUP BY rank ORDER BY count(*) DESC, rank
"""


def _missing_records(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """Attempts that some ranks recorded and others did not."""
    if run.is_foreign or len(run.ranks) < 2:
        return
    rows = connection.execute(_MISSING, {"run": run.run_id, "ranks": list(run.ranks)}).fetchall()
    for rank, count, first, launch, launches in rows[:SHOWN]:
        where = f"the first is attempt {first:,}" + (
            f" of launch {launch}" if launch > 1 or launches > 1 else ""
        )
        yield f"Rank {rank} has no record of {plural(count, 'attempt')} that other ranks recorded; {where}."
    if len(rows) > SHOWN:
        yield f"{plural(len(rows) - SHOWN, 'more rank')} lack records of attempts that others recorded."


# A ledger that records every attempt, or each so many, has no other distance between two. A foreign log may:
# there a hole is ten times as long as what is usual.
_HOLES: Final = """
WITH steps AS (
    SELECT launch, optimizer, attempt_id, coalesce(recorded_every, 1) AS every,
           lag(attempt_id) OVER (PARTITION BY launch, optimizer ORDER BY attempt_id) AS before
    FROM windows WHERE run_id = $run
), apart AS (
    SELECT *, attempt_id - coalesce(before, if($foreign, attempt_id, 1 - every)) AS distance FROM steps
)
SELECT count(*), sum(distance // every - 1)::BIGINT,
       arg_max({'launch': launch, 'optimizer': optimizer, 'before': before, 'after': attempt_id}, distance)
FROM apart WHERE distance >= if($foreign, 10, 2) * every
"""


def _holes(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """Attempts that no rank recorded."""
    asked = {"run": run.run_id, "foreign": run.is_foreign}
    ((holes, lost, longest),) = connection.execute(_HOLES, asked).fetchall()
    if not holes:
        return
    inside = f" of launch {longest['launch']}" if longest["launch"] > 1 else ""
    inside += f" of optimizer {longest['optimizer']}" if longest["optimizer"] > 0 else ""
    noun = "step" if run.is_foreign else "attempt"
    before, after = longest["before"], longest["after"]
    where = f"before {noun} {after:,}" if before is None else f"between {noun}s {before:,} and {after:,}"
    several = f", the longest of {holes:,} such holes" if holes > 1 else ""
    if run.is_foreign:
        yield f"The log holds no record {where}{inside}{several}."
    else:
        yield f"{plural(lost, 'attempt')} without any record: no rank wrote one {where}{inside}{several}."


_SUPERSEDED: Final = """
SELECT launch, count(*), min(number), max(number)
FROM (SELECT DISTINCT launch, optimizer, attempt_id, if($foreign, attempt_id, optimizer_update_id) AS number
      FROM superseded WHERE run_id = $run)
GROUP BY launch ORDER BY launch
"""


def _superseded(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """What a later launch did again."""
    asked = {"run": run.run_id, "foreign": run.is_foreign}
    rows = connection.execute(_SUPERSEDED, asked).fetchall()
    for launch, count, first, last in rows[:SHOWN]:
        noun = "step" if run.is_foreign else "update"
        which = (
            ""
            if first is None
            else f" ({noun} {first:,})"
            if first == last
            else f" ({noun}s {first:,} to {last:,})"
        )
        again = (
            "was done again by a later launch and is"
            if count == 1
            else "were done again by a later launch and are"
        )
        what = plural(count, "record" if run.is_foreign else "attempt")
        yield f"{what} of launch {launch}{which} {again} left out here."
    if len(rows) > SHOWN:
        yield f"So it is with attempts of {len(rows) - SHOWN:,} further launches."


def _duplicates(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """Second records of the same rank and attempt."""
    query = "SELECT count(*), count(DISTINCT rank) FROM duplicates WHERE run_id = $1"
    ((count, ranks),) = connection.execute(query, [run.run_id]).fetchall()
    if count:
        of = "" if run.is_foreign or len(run.ranks) == 1 else f", of {plural(ranks, 'rank')}"
        stand = "stands" if count == 1 else "stand"
        yield f"{plural(count, 'record')} {stand} in the files a second time{of}; the first of each is read."


_CLOCK: Final = """
SELECT count(*), max(back), arg_min({'launch': launch, 'attempt': attempt_id}, (launch, attempt_id))
FROM (SELECT launch, attempt_id,
             lag(time) OVER (PARTITION BY launch, optimizer ORDER BY attempt_id) - time AS back
      FROM windows WHERE run_id = $1)
WHERE back > $2
"""


def _clock(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """Times that lie before those of an earlier attempt."""
    ((count, back, first),) = connection.execute(_CLOCK, [run.run_id, CLOCK]).fetchall()
    if count:
        noun = "step" if run.is_foreign else "attempt"
        inside = f" of launch {first['launch']}" if first["launch"] > 1 else ""
        times = "once" if count == 1 else f"{count:,} times, first"
        most = "by" if count == 1 else "and by at most"
        yield f"The clock goes back {times} at {noun} {first['attempt']:,}{inside}, {most} {number(back)} s."


_UNCLOSED: Final = """
SELECT launch, list_sort(list(rank))
FROM (SELECT DISTINCT launch, rank FROM runs WHERE run_id = $1)
ANTI JOIN (SELECT launch, rank FROM marks WHERE run_id = $1 AND kind = 'close') USING (launch, rank)
GROUP BY launch ORDER BY launch
"""


def _unclosed(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Iterator[str]:
    """Launches whose end the record does not hold."""
    rows = connection.execute(_UNCLOSED, [run.run_id]).fetchall()
    if run.is_foreign:
        query = "SELECT max(launch) FROM runs WHERE run_id = $1"
        ((last,),) = connection.execute(query, [run.run_id]).fetchall()
        if rows and rows[-1][0] == last:
            yield "Nothing in the log says that the run has ended."
        return
    for launch, ranks in rows[:SHOWN]:
        which = "" if list(run.ranks) == ranks else f" on {_ranks(ranks)}"
        yield f"Launch {launch} has no closing record{which}, as where it was killed or still runs."
    if len(rows) > SHOWN:
        yield f"Nor have {len(rows) - SHOWN:,} further launches."


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"
