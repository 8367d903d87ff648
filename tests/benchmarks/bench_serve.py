"""What `accumaudit serve` costs while many ranks write, and how far it falls behind.

    python -m tests.benchmarks.bench_serve [--ranks 1000] [--seconds 120] [--idle-files 10000]

A process of its own writes one record a second for each rank; its cost is not counted. The aims on two
cores: less than 5 seconds behind, less than half a core, less than 600 MB; 10,000 idle files for less than
5 % of a core; a scrape of 10,000 ranks within 0.3 seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.live_load import cpu_seconds, memory_bytes, templates, write
from tests.serving import serving

CODE = "ACC104"
"""What finds the halved weights."""


@dataclass(slots=True)
class Cost:
    """What a service has used up."""

    share: float = 0.0
    """Of a core."""
    peak: int = 0
    """Bytes."""


def main() -> None:
    """Measure the three, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--idle-files", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        load(Path(scratch), asked.ranks, asked.seconds)
        idle(Path(scratch), asked.idle_files)


def load(scratch: Path, ranks: int, seconds: int) -> None:
    """A run that is being written."""
    folder = scratch / "load"
    folder.mkdir()
    fault_at = seconds // 2
    print(f"{ranks:,} ranks, one update a second each, for {seconds} s")
    with serving(folder, scratch / "load.sqlite") as service:
        arguments = [str(folder), f"--ranks={ranks}", f"--seconds={seconds}", f"--fault-at={fault_at}"]
        writer = subprocess.Popen([sys.executable, "-m", "tests.live_load", *arguments])
        began, used = time.monotonic(), cpu_seconds(service.process.pid)
        cost, lags, found = Cost(), [], None
        while writer.poll() is None:
            time.sleep(1.0)
            cost.peak = max(cost.peak, memory_bytes(service.process.pid))
            newest = service.metric("accumaudit_last_record_timestamp_seconds", run="load")
            if newest is not None and time.monotonic() - began < seconds:
                lags.append(time.time() - newest)
            if found is None and service.metric("accumaudit_findings_active", rule=CODE):
                found = time.time()
        cost.share = (cpu_seconds(service.process.pid) - used) / (time.monotonic() - began)
        lags.sort()
        print(f"  behind      {lags[len(lags) // 2]:5.1f} s in the middle, {lags[-1]:.1f} s at most (aim 5)")
        print(f"  CPU         {100 * cost.share:5.0f} % of a core (aim 50)")
        print(f"  memory      {cost.peak / 1e6:5.0f} MB with its children (aim 600)")
        wrong = _time_of(folder, fault_at)
        print(f"  finding     {found - wrong:5.1f} s after its record" if found else "  finding     NONE")


def _time_of(folder: Path, attempt: int) -> float:
    """When the last rank wrote an attempt."""
    times = []
    for file in folder.glob("rank-*/*.jsonl"):
        for line in file.open():
            record = json.loads(line)
            if record.get("attempt_id") == attempt:
                times.append(record["time"])
    return float(max(times))


def idle(scratch: Path, files: int) -> None:
    """A run of many ranks that nobody writes any more, and a scrape of it."""
    folder = scratch / "idle"
    print(f"{files:,} files that nobody writes")
    runs, right, _ = templates(files)
    assert len(runs) == len(right) == files
    write(folder, files, 1)
    with serving(folder, scratch / "idle.sqlite") as service:
        time.sleep(20)  # what has just been read is looked at often for a while
        began, used = time.monotonic(), cpu_seconds(service.process.pid)
        time.sleep(30)
        share = (cpu_seconds(service.process.pid) - used) / (time.monotonic() - began)
        print(f"  CPU         {100 * share:5.1f} % of a core (aim 5)")
        for path in ("/metrics", "/metrics/ranks?run=idle"):
            times = []
            text = ""
            for _ in range(5):
                start = time.monotonic()
                text = service.get(path)
                times.append(time.monotonic() - start)
            print(f"  scrape      {min(times):5.2f} s of {path}, {len(text):,} bytes (aim 0.3)")


if __name__ == "__main__":
    main()
