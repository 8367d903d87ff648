"""What each of two runs is, as far as it decides what can be compared."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accumaudit.comparison.model import Side
from accumaudit.ledger.remote import is_url
from accumaudit.ledger.sources import LedgerError

if TYPE_CHECKING:
    import duckdb

    from accumaudit.ledger.reader import Ledger

_NUMBERED: Final = re.compile(r"(.+)#([1-9]\d{0,5})")

_FACTS: Final = """
SELECT (SELECT count(*) FROM attempts_{side}), (SELECT count(*) FROM attempts_{side} WHERE NOT skipped),
       (SELECT count(DISTINCT launch) FROM attempts_{side}),
       (SELECT count(*) FROM (
            SELECT DISTINCT launch, optimizer, attempt_id FROM superseded WHERE run_id = $run)),
       (SELECT count(DISTINCT rank) FROM runs WHERE run_id = $run),
       (SELECT max(world_size) FROM runs WHERE run_id = $run),
       (SELECT max(token_ranks) FROM runs WHERE run_id = $run),
       (SELECT mode(microbatches) FROM attempts_{side}), (SELECT mode(all_microbatches) FROM attempts_{side}),
       (SELECT avg(valid_tokens) FROM attempts_{side} WHERE NOT skipped),
       (SELECT mode(samples / nullif(all_microbatches, 0)) FROM attempts_{side}),
       (SELECT any_value(format) FROM runs WHERE run_id = $run),
       (SELECT max(coalesce(shard_size, 1) * coalesce(tensor_size, 1) * coalesce(pipeline_size, 1))
        FROM runs WHERE run_id = $run),
       (SELECT count(*) FROM attempts_{side} WHERE NOT grows),
       (SELECT count(tokens_end) FROM transactions_{side}), (SELECT count(step_end) FROM transactions_{side}),
       (SELECT count(*) FROM transactions_{side}), (SELECT min(number) FROM transactions_{side}),
       (SELECT max(recorded_every) FROM runs WHERE run_id = $run),
       (SELECT count(*) FROM attempts_{side} ANTI JOIN transactions_{side} USING (optimizer, number)),
       (SELECT count(*) FROM attempts_{side} WHERE complete IS FALSE),
       (SELECT list(DISTINCT rank ORDER BY rank) FROM updates WHERE run_id = $run),
       (SELECT coalesce(bool_or(reports_differ), false) FROM attempts_{side}),
       (SELECT coalesce(bool_or(coarse), false) FROM transactions_{side}),
       (SELECT bool_and(ends_with(versions ->> '$.torch', '+cpu')) IS TRUE FROM runs WHERE run_id = $run)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What decides how a run can be aligned."""

    attempts: int
    updates: int
    launches: int
    redone: int
    ranks: int
    world_size: int | None
    token_ranks: int | None
    micro_steps: int | None
    """Of a rank, in most updates."""
    all_micro_steps: int | None
    """Of all ranks."""
    tokens: float | None
    """The mean of an update."""
    rows: float | None
    """Samples of most micro-steps."""
    format: str
    parts: int | None
    """Into how many parts the parameters are cut."""
    renumbered: int
    """Attempts whose updates were counted through, because the record's own numbers start again."""
    with_tokens: int
    """Updates up to whose end all tokens are known."""
    with_steps: int
    places: int
    first_number: int | None
    every: int | None
    left_over: int
    """Skipped attempts of updates that are not recorded, as those after the last."""
    partial: int
    """Attempts of which a rank with tokens of its own has no record."""
    writers: list[int] | None
    """The ranks that wrote."""
    reports_differ: bool
    """The ranks report a loss each."""
    coarse: bool
    """Weights are in 16 bits."""
    on_cpu: bool
    """PyTorch knows no other device."""

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the log."""
        return self.format != "ledger"


def facts_of(connection: duckdb.DuckDBPyConnection, side: str, run_id: str) -> Facts:
    """What the tables of one side tell of the run."""
    row = connection.execute(_FACTS.format(side=side), {"run": run_id}).fetchone()
    assert row is not None
    return Facts(**dict(zip(Facts.__dataclass_fields__, row, strict=True)))


def side_of(facts: Facts, run_id: str, path: str, name: str) -> Side:
    """The run as outputs tell it."""
    return Side(
        name=name,
        run_id=run_id,
        path=path,
        format=facts.format,
        attempts=facts.attempts,
        updates=facts.updates,
        launches=facts.launches,
        redone=facts.redone,
        ranks=facts.ranks,
        world_size=facts.world_size,
        micro_steps=facts.micro_steps,
        tokens=facts.tokens,
    )


def unnumbered(place: Path | str) -> Path | str:
    """The path without the number of a run in it: `runs/first#2` is the second run of `runs/first`."""
    return _parted(place)[0]


def run_of(ledger: Ledger, place: Path | str) -> str:
    """The run that a path names, of a ledger that was read from it and perhaps from others.

    Raises:
        LedgerError: it names several, or none; the text says which there are.
    """
    path, number = _parted(place)
    found = _runs_at(ledger, path)
    if number is not None:
        numbered = [run_id for run_id in found if _NUMBERED.fullmatch(run_id) is not None]
        first = [run_id for run_id in found if run_id not in numbered]
        found = first if number == 1 else [one for one in numbered if one.endswith(f"#{number}")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise LedgerError(f"{place}: no record of a training there; give the folder or the file of one run")
    names = ", ".join(found[:5]) + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
    second = f"; {path}#2 is the second run of one folder" if any("#" in name for name in found) else ""
    raise LedgerError(f"{place}: {len(found):,} runs ({names}); give the folder or the file of one{second}")


def _parted(place: Path | str) -> tuple[Path | str, int | None]:
    found = _NUMBERED.fullmatch(str(place))
    if found is None or (not is_url(place) and os.path.lexists(place)):
        return place, None
    return (found[1] if is_url(place) else Path(found[1])), int(found[2])


def _runs_at(ledger: Ledger, place: Path | str) -> list[str]:
    """The runs whose files lie at or below a place, or beside a file of theirs that it names."""
    if is_url(place):
        names = [
            one for one in ledger.sources if one == place or one.startswith(f"{str(place).rstrip('/')}/")
        ]
    else:
        resolved = Path(place).resolve()
        names = [
            name for name, source in ledger.sources.items() if Path(source.absolute).is_relative_to(resolved)
        ]
    rows = ledger.connection.execute(
        "SELECT DISTINCT run_id FROM stored.homes SEMI JOIN (SELECT unnest($1) AS file) USING (file)", [names]
    ).fetchall()
    with_files = {run_id for (run_id,) in rows}
    return [run_id for run_id, _ in ledger.runs if run_id in with_files]
