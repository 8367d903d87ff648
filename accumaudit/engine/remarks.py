"""What a run's record tells of its own holes: the declared ones, and those that came about."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import duckdb

_DECLARED: Final = """
SELECT run_id, any_value(format) <> 'ledger', max(recorded_every), list_sort(list(DISTINCT rank)),
       max(world_size), max(recorded_ranks)
FROM runs WHERE recorded_every > 1 OR recorded_ranks IS NOT NULL GROUP BY run_id
"""
_NOT_RECORDED: Final = """
SELECT run_id, coalesce(name, 'something was not recorded'), list_sort(list(DISTINCT rank))
FROM marks WHERE kind = 'not_recorded' GROUP BY run_id, name ORDER BY run_id, min(place)
"""
_LOST: Final = """
SELECT run_id, rank, sum(lost_records) FILTER (kind = 'gap'),
       count(*) FILTER (kind = 'hook_error'), min_by(name, place) FILTER (kind = 'hook_error')
FROM marks WHERE kind IN ('gap', 'hook_error') GROUP BY run_id, rank ORDER BY run_id, rank
"""


Texts = dict[str, list[str]]
"""What is said of each run."""


def declared(connection: duckdb.DuckDBPyConnection) -> Texts:
    """What was never to be recorded."""
    found: Texts = defaultdict(list)
    for run_id, foreign, every, ranks, world_size, chosen in connection.execute(_DECLARED).fetchall():
        if foreign:
            if every is not None and every > 1:
                found[run_id].append(f"one record for {every:,} steps; those between are not checked")
            continue
        if every is not None and every > 1:
            found[run_id].append(
                f"every {_ordinal(every)} attempt was recorded; those between are not checked"
            )
        if chosen is not None and len(chosen) < (world_size or 0):
            found[run_id].append(
                f"{_ranks(ranks)} of {world_size:,} wrote records; what all ranks did together is not checked"
            )
    return found


def holes(connection: duckdb.DuckDBPyConnection) -> Texts:
    """What was to be recorded and is not."""
    found: Texts = defaultdict(list)
    for run_id, what, ranks in connection.execute(_NOT_RECORDED).fetchall():
        found[run_id].append(f"{what} ({_ranks(ranks)})")
    for run_id, rank, lost, errors, first in connection.execute(_LOST).fetchall():
        if lost:
            found[run_id].append(f"rank {rank} could not write {int(lost):,} of its records")
        if errors:
            found[run_id].append(f"a hook failed on rank {rank}, so records may be incomplete ({first})")
    return found


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _ranks(ranks: list[int]) -> str:
    """`rank 0`, `ranks 0 and 4`, `ranks 0, 2 and 1,021 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4:
        return f"ranks {', '.join(map(str, ranks[:3]))} and {len(ranks) - 3:,} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
