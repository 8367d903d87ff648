"""How fast logs of other programs are read, beside a plain pass over the lines of the same files.

    python -m tests.benchmarks.bench_import [--megabytes 40] [--large 200] [--folder FOLDER]

First each grammar, from the file to the records of the schema on one core; then one large log of Megatron,
into the database (`import`), and with all tables that the rules ask (`tables`). ACCUMAUDIT_BENCH_LARGE sets
the size of that too, in megabytes. Each measurement has a process of its own; the fastest of a few rounds
counts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accumaudit import importers
from accumaudit.ledger import loading
from accumaudit.ledger.reader import read_ledger
from accumaudit.ledger.sources import find_runs

ROUNDS = 2
STEPS = 100_000
"""Of the event file."""
MODULE = "tests.benchmarks.bench_import"
MODULES = (
    "accumaudit.importers.reading.fields",
    "accumaudit.importers.reading.grep",
    "accumaudit.importers.arrow",
    "pandas",
)
"""What importers load late."""


def main() -> None:
    """Write the logs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40, help="of each grammar")
    large = int(os.environ.get("ACCUMAUDIT_BENCH_LARGE", "200"))
    parser.add_argument("--large", type=int, default=large, help="megabytes of the large log")
    parser.add_argument("--folder", type=Path, help="keep the logs there; those that are there are taken")
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        side, file = asked.measure
        print(json.dumps(measured(SIDES[side], Path(file))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        grammars(folder, asked.megabytes)
        large_log(folder, asked.large)
        event_file(folder)


def grammars(folder: Path, megabytes: int) -> None:
    """Measure each grammar."""
    from tests.benchmarks.foreign_logs import GRAMMARS

    print(f"logs of {megabytes} MB into records, one core, CPU time")
    print("  grammar           plain MB/s  import MB/s   ratio   records   peak MB")
    for name in GRAMMARS:
        file = written(folder, name, megabytes)
        plain, read = best("plain", file), best("records", file)
        size = file.stat().st_size / 1e6
        print(
            f"  {name:16s} {size / plain['cpu']:11,.0f} {size / read['cpu']:12,.0f} "
            f"{read['cpu'] / plain['cpu']:7.1f} {read['count']:9,} {read['peak']:9,.0f}"
        )


def large_log(folder: Path, megabytes: int) -> None:
    """Measure one large log, into the database and with all tables."""
    file = written(folder, "megatron", megabytes)
    size = file.stat().st_size / 1e6
    print(f"a log of {size / 1000:.2f} GB")
    for side in ("plain", "import", "tables"):
        found = in_a_process(side, file)
        print(
            f"  {side:7s} {found['cpu']:7.2f} s CPU {found['clock']:7.2f} s clock "
            f"{size / found['clock']:6,.0f} MB/s {found['peak']:7,.0f} MB peak, {found['count']:,} records"
        )


def event_file(folder: Path) -> None:
    """Measure an event file of four scalars a step, with all checksums."""
    from tests.event_files import Scalar, write_events

    def scalars() -> Iterator[Scalar]:
        for step in range(1, STEPS + 1):
            yield step, "train/loss", 3.0 / step
            yield step, "train/grad_norm", 1.0
            yield step, "train/learning_rate", 1e-4
            yield step, "train/epoch", step / STEPS

    file = write_events(folder / "events.out.tfevents.1700000000.host.1.0", scalars())
    found = best("records", file)
    rate = 4 * STEPS / found["cpu"]
    print(f"an event file: {rate:,.0f} scalars/s of CPU time, {found['peak']:,.0f} MB peak")


def written(folder: Path, grammar: str, megabytes: int) -> Path:
    """The file of a grammar, as long as it is to be."""
    from tests.benchmarks.foreign_logs import write

    file = folder / f"{grammar.replace(', ', '-')}-{megabytes}.log"
    if not file.exists():
        write(file, grammar, megabytes * 1_000_000)
    return file


def best(side: str, file: Path) -> dict[str, Any]:
    """The round that took the least CPU time."""
    return min((in_a_process(side, file) for _ in range(ROUNDS)), key=lambda one: float(one["cpu"]))


def in_a_process(side: str, file: Path) -> dict[str, Any]:
    """Measure one side in a process of its own."""
    command = [sys.executable, "-m", MODULE, "--measure", side, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measured(action: Callable[[Path], int], file: Path) -> dict[str, Any]:
    """CPU time of all threads, time on the clock, and the largest memory that the process had.

    What the modules take to be imported is no part of it.
    """
    for name in MODULES:
        importlib.import_module(name)
    begun, clock = time.process_time(), time.perf_counter()
    count = action(file)
    cpu, clock = time.process_time() - begun, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"cpu": cpu, "clock": clock, "peak": peak, "count": count}


def plain(file: Path) -> int:
    """The plainest loop that sees each line."""
    count = 0
    with file.open("rb") as lines:
        for _ in lines:
            count += 1
    return count


def records(file: Path) -> int:
    """The importer alone."""
    log = importers.Log(file)
    format_ = importers.recognise(log).format
    assert format_ is not None
    count, damaged = importers.read(log, format_, lambda _: None)
    assert not damaged, damaged[:3]
    return count


def imported(file: Path) -> int:
    """The importer, and its records stored as the tables have them."""
    runs, _ = find_runs([file])
    sources = [source for run in runs for source in run.files]
    with loading.connect(sources) as connection:
        loading.load(connection, sources)
        return counted(connection, "stored.records")


def tables(file: Path) -> int:
    """All that comes before the rules."""
    with read_ledger([file]) as ledger:
        return counted(ledger.connection, "windows")


def counted(connection: Any, table: str) -> int:
    """The rows of a table."""
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


SIDES: dict[str, Callable[[Path], int]] = {
    "plain": plain,
    "records": records,
    "import": imported,
    "tables": tables,
}


if __name__ == "__main__":
    main()
