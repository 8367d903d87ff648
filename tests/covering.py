"""A pairwise covering array: few combinations in which every two choices meet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Choice = tuple[str, Hashable]
"""A factor and one of its levels."""

Row = dict[str, Any]
Allowed = Callable[[Row], bool]


def covering_array(factors: Mapping[str, Sequence[Hashable]], allowed: Allowed) -> Iterator[Row]:
    """Rows that give every factor a level, until every pair of levels that may meet has met.

    Greedy: a row starts from a pair that has not met yet, and each further factor takes
    the level that makes most new pairs. `allowed` judges rows that may still be incomplete.
    """
    open_pairs = {pair: None for pair in _pairs(factors) if allowed(dict(pair))}
    while open_pairs:
        row: Row | None = dict(next(iter(open_pairs)))
        first = tuple(row.items()) if row else ()
        for factor in (name for name in factors if name not in dict(first)):
            row = row and _extended(row, factor, factors[factor], open_pairs, allowed)
        if row is None:
            raise ValueError(f"{first} fits no row, though the two may meet")
        for pair in _pairs({name: [level] for name, level in row.items()}):
            open_pairs.pop(pair, None)
        yield {name: row[name] for name in factors}


def _pairs(factors: Mapping[str, Sequence[Hashable]]) -> Iterator[tuple[Choice, Choice]]:
    for left, right in combinations(sorted(factors), 2):
        yield from (((left, a), (right, b)) for a in factors[left] for b in factors[right])


def _extended(
    row: Row,
    factor: str,
    levels: Sequence[Hashable],
    open_pairs: Mapping[tuple[Choice, Choice], None],
    allowed: Allowed,
) -> Row | None:
    def new_pairs(candidate: Row) -> int:
        mine = (factor, candidate[factor])
        met = (tuple(sorted((mine, other), key=lambda choice: choice[0])) for other in row.items())
        return sum(pair in open_pairs for pair in met)

    candidates = [candidate for level in levels if allowed(candidate := {**row, factor: level})]
    return max(candidates, key=new_pairs, default=None)
