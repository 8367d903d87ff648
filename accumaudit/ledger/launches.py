"""Tells the launches of a run apart, and a resume from a new run in the same folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import duckdb

from accumaudit.ledger.columns import rare
from accumaudit.ledger.sources import RunSource, unique

JOIN_SECONDS: Final = 600.0
"""The ranks of one launch start within this time."""

END: Final = 2**62
"""Above the number of any record."""

RUN_LINES: Final = f"""
SELECT n, file_id, launch, rank, {rare("started_at")} AS started_at,
       coalesce({rare("optimizer_state_step_at_attach")}, 0) = 0
       AND coalesce({rare("scheduler_step_at_attach")}, 0) = 0 AND {rare("resumed_from_update")} IS NULL
FROM stored.records WHERE record = 'run' ORDER BY started_at, n
"""
STRETCHES: Final = """
SELECT file_id, launch, rank, coalesce(min(time), 0)
FROM stored.records WHERE record <> 'run' GROUP BY ALL ORDER BY ALL
"""
FIRST_UPDATES: Final = f"""
SELECT s.run_id, s.launch,
       min(r.optimizer_update_id - (r.optimizer_step_skipped IS NOT TRUE)::BIGINT)
           FILTER (r.record = 'update'),
       coalesce(bool_or({rare("kind")} = 'declare' AND (
           CASE WHEN json_valid({rare("name")}) THEN {rare("name")} END ->> '$.resumed_from_update')
           IS NOT NULL), false)
FROM stored.records r
JOIN stored.segments s
  ON r.file_id = s.file_id AND r.launch = s.token AND r.rank = s.rank AND r.n >= s.first AND r.n < s.last
WHERE r.record <> 'run'
GROUP BY ALL
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Launch:
    """Run lines that begin together, and what says whether they continue an earlier launch."""

    token: str
    started_at: float
    starts: dict[int, float] = field(default_factory=dict)
    """When each rank started."""
    starts_at_zero: bool = True
    """Neither optimizer nor schedule had stepped, and nothing was declared to be resumed."""
    run_id: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The lines of one file, launch token and rank from one run line up to the next."""

    file_id: int
    token: str
    rank: int
    first: int
    last: int
    launch: Launch


@dataclass(frozen=True, slots=True)
class _RunLine:
    n: int
    file_id: int
    token: str
    rank: int
    started_at: float
    starts_at_zero: bool


@dataclass(frozen=True, slots=True)
class _Stretch:
    """All lines of one file, token and rank that are no run lines."""

    file_id: int
    token: str
    rank: int
    time: float


def place_records(connection: duckdb.DuckDBPyConnection, runs: Sequence[RunSource]) -> dict[str, RunSource]:
    """Fill `stored.segments`, which gives each record its run and launch; return the runs by run_id."""
    segments = _find_segments(connection, runs)
    launches = {run.run_id: _in_order(segments[run.run_id]) for run in runs}
    for run_id, ordered in launches.items():
        for number, launch in enumerate(ordered, 1):
            launch.run_id, launch.number = run_id, number
    everything = [segment for run in runs for segment in segments[run.run_id]]
    _store(connection, everything)
    if any(len(ordered) > 1 for ordered in launches.values()):
        starts = {(run, launch): rest for run, launch, *rest in connection.execute(FIRST_UPDATES).fetchall()}
        taken = set(launches)
        for run in runs:
            _split(launches[run.run_id], starts, taken, foreign=run.format != "ledger")
        _store(connection, everything)
    return {
        run_id: run
        for run in runs
        for run_id in [run.run_id, *(launch.run_id for launch in launches[run.run_id])]
    }


def _find_segments(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[RunSource]
) -> dict[str, list[Segment]]:
    run_of = {source.id: run.run_id for run in runs for source in run.files}
    lines: dict[str, list[_RunLine]] = defaultdict(list)
    stretches: dict[str, list[_Stretch]] = defaultdict(list)
    for row in connection.execute(RUN_LINES).fetchall():
        line = _RunLine(*row)
        lines[run_of[line.file_id]].append(line)
    for row in connection.execute(STRETCHES).fetchall():
        stretch = _Stretch(*row)
        stretches[run_of[stretch.file_id]].append(stretch)
    return {run.run_id: _segments(lines[run.run_id], stretches[run.run_id]) for run in runs}


def _segments(lines: Sequence[_RunLine], stretches: Sequence[_Stretch]) -> list[Segment]:
    starts: dict[tuple[int, str, int], list[tuple[int, Launch]]] = defaultdict(list)
    launches: list[Launch] = []
    for line, launch in _join(lines):
        starts[line.file_id, line.token, line.rank].append((line.n, launch))
        launches.append(launch)
    for stretch in stretches:
        key = (stretch.file_id, stretch.token, stretch.rank)
        if key not in starts:
            launches.append(_launch_of(stretch, launches))
            starts[key].append((0, launches[-1]))
    segments = []
    for key, ordered in starts.items():
        ordered.sort(key=lambda start: start[0])
        firsts = [0, *(n for n, _ in ordered[1:])]  # what stands before its run line still belongs to it
        for first, last, (_, launch) in zip(firsts, [*firsts[1:], END], ordered, strict=True):
            segments.append(Segment(*key, first, last, launch))
    return segments


def _join(lines: Sequence[_RunLine]) -> list[tuple[_RunLine, Launch]]:
    """Join run lines of one token that start together; a rank that starts again begins a new launch.

    A run line of the very same time is a copy of one.
    """
    latest: dict[str, Launch] = {}
    joined = []
    for line in lines:
        launch = latest.get(line.token)
        if (
            launch is None
            or line.started_at - launch.started_at > JOIN_SECONDS
            or launch.starts.get(line.rank, line.started_at) != line.started_at
        ):
            launch = latest[line.token] = Launch(token=line.token, started_at=line.started_at)
        launch.starts[line.rank] = line.started_at
        launch.starts_at_zero &= line.starts_at_zero
        joined.append((line, launch))
    return joined


def _launch_of(stretch: _Stretch, launches: Sequence[Launch]) -> Launch:
    """The launch of records whose run line was lost: of those of its token, the last begun by then."""
    same = sorted((one for one in launches if one.token == stretch.token), key=lambda one: one.started_at)
    begun = [launch for launch in same if launch.started_at <= stretch.time]
    if same:
        return begun[-1] if begun else same[0]
    return Launch(token=stretch.token, started_at=stretch.time, starts_at_zero=False)


def _in_order(segments: Iterable[Segment]) -> list[Launch]:
    launches = {id(segment.launch): segment.launch for segment in segments}
    return sorted(launches.values(), key=lambda launch: (launch.started_at, launch.token))


def _split(
    launches: Sequence[Launch],
    starts: Mapping[tuple[str, int], Sequence[int | None]],
    taken: set[str],
    *,
    foreign: bool,
) -> None:
    """Make a launch that starts over at update 1, after others that have updates, a run of its own.

    A foreign log numbers few of its updates; it says itself what continues an earlier launch.
    """
    count, recorded = 0, False
    run_id = launches[0].run_id if launches else ""
    for launch in launches:
        done_before, declares_resume = starts.get((launch.run_id, launch.number), (None, False))
        starts_over = launch.starts_at_zero and not declares_resume
        if foreign:
            at_zero = (launch.run_id, launch.number) in starts
        else:
            at_zero = done_before is not None and done_before <= 0
        if recorded and starts_over and at_zero:
            run_id = unique(launches[0].run_id, taken)
            taken.add(run_id)
            count, recorded = 0, False
        count += 1
        recorded = recorded or done_before is not None or (foreign and at_zero)
        launch.run_id, launch.number = run_id, count


def _store(connection: duckdb.DuckDBPyConnection, segments: Sequence[Segment]) -> None:
    connection.execute("""
        CREATE OR REPLACE TABLE stored.segments (
            file_id BIGINT, token VARCHAR, rank BIGINT, first BIGINT, last BIGINT,
            run_id VARCHAR, launch BIGINT)
    """)
    rows = [(s.file_id, s.token, s.rank, s.first, s.last, s.launch.run_id, s.launch.number) for s in segments]
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        unnested = ", ".join(["unnest(?)"] * len(columns))
        connection.execute(f"INSERT INTO stored.segments SELECT {unnested}", columns)
