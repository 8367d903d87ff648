"""`python -m accumaudit.summary RUN`: what the hooks say at the start and at the close of a run.

It runs beside the training as a process of low priority, and says nothing where duckdb is not
installed. With `--attempts 3` it says one line about the first attempts of the last launch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import duckdb

    from accumaudit.engine.findings import AuditReport, Verdict
    from accumaudit.ledger.reader import Ledger

PATIENCE: Final = 10.0
"""Seconds that other ranks may lag."""

SHOWN: Final = 5
"""Faults that are named one by one at the close."""

FAMILIES: Final = {"sync": ("ACC5",), "schedule": ("ACC30", "ACC311")}  # ACC310 is about weight decay


def main(arguments: list[str] | None = None) -> int:
    """Print the summary; always successful, because a training has started it."""
    parser = argparse.ArgumentParser(prog="python -m accumaudit.summary", description=__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--attempts", type=int, help="judge the first attempts of the last launch alone")
    asked = parser.parse_args(arguments)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    try:
        import duckdb
    except ModuleNotFoundError:
        return 0
    from accumaudit.ledger.reader import LedgerError
    from accumaudit.outputs.words import printable

    try:
        lines = [at_start(asked.run, asked.attempts)] if asked.attempts else list(at_close(asked.run))
    except (LedgerError, duckdb.Error) as error:
        lines = [f"the records cannot be judged: {error}"]
    for line in lines:
        sys.stdout.write(printable(f"accumaudit: {line}") + "\n")
    return 0


def at_start(run: Path, attempts: int) -> str:
    """One line about the first attempts, over the ranks that have written them within ten seconds."""
    ledger = _read_when(run, lambda connection: _lagging(connection, attempts))
    where = ""
    if _lagging(ledger.connection, attempts):
        ledger, where = _rank_0_alone(run, ledger), ", rank 0 alone"
    try:
        _keep_first(ledger.connection, attempts)
        judged = _value(ledger.connection, "SELECT count(DISTINCT attempt_id) FROM windows")
        parts = [*_weights(ledger.connection), *_families(_judge(ledger))]
        noun = "update" if judged == 1 else "updates"
        return f"{judged} {noun} judged{where}: {', '.join(parts)}"
    finally:
        ledger.connection.close()


def at_close(run: Path) -> Iterator[str]:
    """The verdict on the run: a line for each finding and one that counts."""
    from accumaudit.engine.findings import FAILED
    from accumaudit.outputs.words import footer, headline

    ledger = _read_when(run, _not_closed)
    try:
        report = _judge(ledger)
    finally:
        ledger.connection.close()
    failed = [(verdict, one) for one in report.runs for verdict in one.with_status(FAILED)]
    faults = [(verdict, one) for verdict, one in failed if verdict.severity != "note"]
    for verdict, one in faults[:SHOWN]:
        yield headline(verdict, one)
    yield footer(report) + (f" `accumaudit check {run}` says more." if failed else "")


def _read_when(run: Path, lagging: Callable[[duckdb.DuckDBPyConnection], bool]) -> Ledger:
    """Read the run, again and again until no rank lags or patience ends."""
    from accumaudit.ledger.reader import read_ledger

    end = time.monotonic() + PATIENCE
    pause = 0.5
    while True:
        ledger = read_ledger([run])
        if not lagging(ledger.connection) or time.monotonic() + pause > end:
            return ledger
        ledger.connection.close()
        time.sleep(pause)
        pause = min(2 * pause, end - time.monotonic())


_LAST: Final = "SELECT run_id, launch FROM runs ORDER BY started_at DESC LIMIT 1"
"""The last launch, the one that has started this process."""


def _lagging(connection: duckdb.DuckDBPyConnection, attempts: int) -> bool:
    """Whether a rank of the last launch has not written so many attempts, of those that it is to write."""
    return bool(
        _value(
            connection,
            f"""
            WITH written AS (
                SELECT rank, max(attempt_id) AS attempts FROM updates
                WHERE (run_id, launch) IN ({_LAST}) GROUP BY rank
            ), expected AS (
                SELECT max(coalesce(len(recorded_ranks), world_size)) AS ranks,
                       {attempts - 1:d} - {attempts - 1:d} % max(coalesce(recorded_every, 1)) + 1 AS attempts
                FROM runs WHERE (run_id, launch) IN ({_LAST})
            )
            SELECT count(*) FILTER (written.attempts >= expected.attempts) < any_value(expected.ranks)
            FROM expected LEFT JOIN written ON true
            """,
        )
    )


def _not_closed(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a rank of the last launch is still to write its last record."""
    return bool(
        _value(
            connection,
            f"""
            SELECT count(*) > 0 FROM runs WHERE (run_id, launch) IN ({_LAST}) AND rank NOT IN (
                SELECT rank FROM marks WHERE kind = 'close' AND (run_id, launch) IN ({_LAST})
            )
            """,
        )
    )


def _rank_0_alone(run: Path, ledger: Ledger) -> Ledger:
    from accumaudit.ledger.reader import read_ledger

    token = _value(ledger.connection, "SELECT arg_max(launch_token, started_at) FROM runs")
    file = run / "rank-00" / f"00000.{token}.jsonl"
    if not file.is_file():
        return ledger
    ledger.connection.close()
    return read_ledger([file])


def _keep_first(connection: duckdb.DuckDBPyConnection, attempts: int) -> None:
    """Hide all tables behind those of the first attempts of the last launch."""
    (last,) = connection.execute(_LAST).fetchall()
    for table in ("updates", "windows", "microbatches", "marks"):
        connection.execute(
            f"CREATE TEMP TABLE {table} AS "
            f"FROM {table} WHERE run_id = ? AND launch = ? AND (attempt_id <= ?) IS NOT FALSE",
            [*last, attempts],
        )


def _judge(ledger: Ledger) -> AuditReport:
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.judge import audit

    return audit(ledger, load_rules())


def _weights(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The total weight and the weight of a token, or that they are unknown."""
    values = """
        SELECT min(total_weight), max(total_weight), min(distortion_min), max(distortion_max) FROM windows
    """
    ((low, high, lightest, heaviest),) = connection.execute(values).fetchall()
    if low is None:
        return ["weights unknown"]
    total = f"T {low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"T {low:.3f} to {high:.3f}"
    if lightest is None:
        return [total]
    return [total, f"tokens weigh {lightest:.2f} to {heaviest:.2f}"]


def _families(report: AuditReport) -> list[str]:
    """Whether synchronisation and schedule are right, then the other faults by name."""
    verdicts = [verdict for run in report.runs for verdict in run.verdicts]
    parts = []
    for word, prefixes in FAMILIES.items():
        family = [verdict for verdict in verdicts if verdict.code.startswith(prefixes)]
        parts.append(f"{word} {_state(family)}")
    told = sum(FAMILIES.values(), ())
    rest = [verdict for verdict in verdicts if not verdict.code.startswith(told)]
    return parts + _faults(rest)


def _state(verdicts: list[Verdict]) -> str:
    faults = _faults(verdicts)
    if faults:
        return " and ".join(faults)
    judged = any(verdict.judged for verdict in verdicts)
    return "ok" if judged else "not checked"


def _faults(verdicts: Iterable[Verdict]) -> list[str]:
    return [
        f"{verdict.severity} {verdict.code} {verdict.name}"
        for verdict in verdicts
        if verdict.finding and verdict.severity != "note"
    ]


def _value(connection: duckdb.DuckDBPyConnection, query: str) -> object:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    sys.exit(main())
