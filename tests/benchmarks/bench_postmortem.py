"""What a post-mortem of a very long run costs once it is read and judged, and what memory all of it takes.

    python -m tests.benchmarks.bench_postmortem [--folder FOLDER] [--memory 2500MB] [--only single|ranks]

Two ledgers are written, as Parquet with sums in place of the lists: a run of 1,000,000 updates on one rank,
and one of 100,000 updates on 64 ranks. Each is read, judged by all rules and told in a process of its own,
under a limit for the database: what does not fit goes to the temporary folder. ACCUMAUDIT_BENCH_SHARE, 1 by
default, makes both runs shorter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.long_ledgers import Size, spike_of, write_long

MODULE: Final = "tests.benchmarks.bench_postmortem"
MEMORY: Final = "2500MB"
"""Of the database; the process takes about a tenth more."""

SIZES: Final = {"single": Size(attempts=1_000_000, ranks=1), "ranks": Size(attempts=100_000, ranks=64)}


def main() -> None:
    """Write both ledgers, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep the ledgers there; those that are there are taken")
    parser.add_argument("--memory", default=MEMORY, help="the database's limit")
    parser.add_argument("--only", choices=SIZES, help="one of the two runs")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measured(asked.measure, asked.memory)))
        return
    share = float(os.environ.get("ACCUMAUDIT_BENCH_SHARE", "1"))
    with tempfile.TemporaryDirectory() as scratch:
        for name, size in SIZES.items():
            if asked.only in (None, name):
                shorter = Size(attempts=max(2_000, round(size.attempts * share)), ranks=size.ranks)
                show(asked.folder or Path(scratch), name, shorter, asked.memory)


def show(folder: Path, name: str, size: Size, memory: str) -> None:
    """Measure one run and print what was seen."""
    run = folder / f"{name}-{size.attempts}"
    if not run.exists():
        write_long(run, size)
    command = [sys.executable, "-m", MODULE, "--measure", str(run), "--memory", memory]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    print(f"{size.attempts:,} attempts of {size.ranks} rank{'s' if size.ranks > 1 else ''}, limit {memory}")
    for part, (clock, cpu) in seen["parts"].items():
        print(f"  {part:12} {clock:7.1f} s clock {cpu:7.1f} s CPU")
    print(f"  {seen['bytes'] / 1e6:.2f} MB of HTML, {seen['peak']:,.0f} MB of memory at most")
    print(f"  the spike of update {spike_of(size):,} is drawn: {seen['spike']}")
    print(f"  first wrong: {seen['first_wrong']}; ranks that stand out: {seen['ranks']}")


def measured(run: Path, memory: str) -> dict[str, Any]:
    """Read, judge, tell and write one run as `accumaudit postmortem --memory` does."""
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.judge import audit
    from accumaudit.ledger.reader import read_ledger
    from accumaudit.outputs.postmortem import html
    from accumaudit.postmortem import post_mortems

    parts: dict[str, tuple[float, float]] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        parts[name] = (time.perf_counter() - clock, time.process_time() - cpu)

    with timed("reading"):
        ledger = read_ledger([run], memory_limit=memory)
    with timed("judging"):
        report = audit(ledger, load_rules())
    with timed("post-mortem"):
        (telling,) = post_mortems(ledger, report)
    with timed("HTML"):
        text = html.rendered([telling])
    ledger.close()
    norms = telling.histories[0].curve("grad_norm_before")
    return {
        "parts": parts,
        "bytes": len(text.encode()),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "spike": norms is not None and 50.0 in norms.y,
        "first_wrong": telling.first_wrong and telling.first_wrong.verdict.code,
        "ranks": [row.rank for row in telling.strip.rows] if telling.strip else [],
    }


if __name__ == "__main__":
    main()
