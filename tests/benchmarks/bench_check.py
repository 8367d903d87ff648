"""What `accumaudit check` costs beside reading the same files into a table, and which of its parts cost most.

    python -m tests.benchmarks.bench_check [--records 1000000] [--folder FOLDER]

ACCUMAUDIT_BENCH_RECORDS sets the number of records too. Both sides run in processes of their own, in
turns, on the same threads; the fastest of a few rounds counts, in CPU time and on the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROUNDS = 2
SHOWN = 8
MODULE = "tests.benchmarks.bench_check"


def main() -> None:
    """Write the records, measure both sides, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    records = int(os.environ.get("ACCUMAUDIT_BENCH_RECORDS", "100000"))
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--folder", type=Path, help="keep the records there; those that are there are taken")
    parser.add_argument("--measure", choices=("baseline", "check"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure = {"baseline": baseline, "check": check}[asked.measure]
        print(json.dumps(measured(measure, sorted(asked.folder.glob("rank-*/*.jsonl")))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        compare(asked.folder or Path(scratch), asked.records)


def compare(folder: Path, records: int) -> None:
    """Measure the two sides in turns."""
    from tests.benchmarks.many_records import write_many

    files = sorted(folder.glob("rank-*/*.jsonl")) or write_many(folder, records)
    size = sum(file.stat().st_size for file in files)
    print(f"check of about {records:,} records, {size / 1e9:.2f} GB of JSON, {len(files)} ranks, all rules")
    rounds = [[in_a_process(side, folder) for side in ("baseline", "check")] for _ in range(ROUNDS)]
    plain, audit = (min(side, key=lambda one: one["cpu"]) for side in zip(*rounds, strict=True))
    clocks = [min(one["clock"] for one in side) for side in zip(*rounds, strict=True)]
    print(f"  baseline    {plain['cpu']:7.2f} s CPU {clocks[0]:7.2f} s clock {plain['peak']:7,.0f} MB")
    print(f"  check       {audit['cpu']:7.2f} s CPU {clocks[1]:7.2f} s clock {audit['peak']:7,.0f} MB")
    print(f"  ratio       {audit['cpu'] / plain['cpu']:7.2f}       {clocks[1] / clocks[0]:9.2f}")
    for name, costs in audit["parts"].items():
        print(f"  {name}, s CPU:")
        for label, cost in costs:
            print(f"    {cost:7.3f}  {label}")


def in_a_process(side: str, folder: Path) -> dict[str, Any]:
    """Measure one side in a process of its own."""
    command = [sys.executable, "-m", MODULE, "--measure", side, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measured(action: Callable[[Sequence[Path]], object], files: Sequence[Path]) -> dict[str, Any]:
    """CPU time of all threads, time on the clock, and the largest memory that the process had."""
    begun, clock = time.process_time(), time.perf_counter()
    parts = action(files)
    cpu, clock = time.process_time() - begun, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"cpu": cpu, "clock": clock, "peak": peak, "parts": parts}


def baseline(files: Sequence[Path]) -> None:
    """The plainest statement that has all fields of all records."""
    import duckdb

    from accumaudit.ledger.schema import FIELDS

    types = {field.name: field.type for kind in FIELDS.values() for field in kind} | {"record": "VARCHAR"}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT * "
            f"FROM read_json($1, format = 'newline_delimited', columns = {{{columns}}})",
            [[str(file) for file in files]],
        )


def check(files: Sequence[Path]) -> dict[str, list[tuple[str, float]]]:
    """The audit, and what its statements cost."""
    import duckdb

    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.judge import audit
    from accumaudit.ledger import loading
    from accumaudit.ledger.reader import read_ledger

    costs: list[tuple[str, float]] = []

    class Stopwatch:
        """A connection that notes the time of each statement."""

        def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def execute(self, query: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
            if parameters is None:
                statements: list[Any] = self._connection.extract_statements(query)
            else:
                statements = [query]
            for statement in statements:
                begun = time.process_time()
                self._connection.execute(statement, parameters)
                costs.append(
                    (label(query if statement is query else statement.query), time.process_time() - begun)
                )
            return self._connection

    connect = loading.connect
    loading.connect = lambda *given: Stopwatch(connect(*given))  # type: ignore[assignment] # to watch
    catalogue = load_rules()
    with read_ledger(files) as ledger:
        read = len(costs)
        audit(ledger, catalogue)
    return {"statements of reading": dearest(costs[:read]), "rules": dearest(costs[read:])}


def label(statement: str) -> str:
    """A rule's code and name, or how another statement begins."""
    rule = re.search(r'^code = "(\w+)"\nname = "([\w-]+)"', statement, re.MULTILINE)
    if rule:
        return f"{rule[1]} {rule[2]}"
    plain = re.sub(r"/\*.*?\*/|--[^\n]*", "", statement, flags=re.DOTALL)
    return re.sub(r"\s+", " ", plain).strip()[:60]


def dearest(costs: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The labels that cost most, each with its sum."""
    sums: dict[str, float] = {}
    for name, cost in costs:
        sums[name] = sums.get(name, 0.0) + cost
    return sorted(sums.items(), key=lambda one: -one[1])[:SHOWN]


if __name__ == "__main__":
    main()
