"""A run of many ranks that is being written: each rank appends one record a second, by the clock.

    python -m tests.live_load FOLDER --ranks 1000 --seconds 120

The run is right, but for one update that is to be found. A process of its own writes, so that its cost is
not counted as that of who reads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accumaudit.testing.records import Record, build_run, to_line

MOVING = (
    *("attempt_id", "optimizer_update_id", "micro_step_id", "time", "cumulative_train_tokens", "seq"),
    *("reported_global_step", "optimizer_state_step", "scheduler_step", "learning_rate", "learning_rates"),
    "scheduler_rate",
)
"""Fields that differ from attempt to attempt."""


def main() -> None:
    """Write for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--fault-at", type=int, default=0, help="the update whose weights are halved")
    asked = parser.parse_args()
    write(asked.folder, asked.ranks, asked.seconds, asked.fault_at)


def write(folder: Path, ranks: int, seconds: int, fault_at: int = 0) -> None:
    """Write one attempt of every rank a second; a rank's lines are appended with one write each."""
    files = [folder / f"rank-{rank // 1000:02d}" / f"{rank:05d}.load.jsonl" for rank in range(ranks)]
    runs, right, faulty = templates(ranks)
    for file, run in zip(files, runs, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_line(run))
    begin = time.time()
    for attempt in range(1, seconds + 1):
        constant = faulty if attempt == fault_at else right
        for place, (file, line) in enumerate(zip(files, constant, strict=True)):
            # The ranks are spread over the second.
            time.sleep(max(0.0, begin + attempt - 1 + place / ranks - time.time()))
            with file.open("a", encoding="utf-8") as opened:
                opened.write(line + moving(attempt))


def templates(ranks: int) -> tuple[list[Record], list[str], list[str]]:
    """The run lines; the beginnings of the lines of a right attempt and of one with half the weights."""
    attempts: list[Record] = [{}, {"total_weight": 0.5}]
    built = build_run(attempts, ranks, launch="load", close=False, started_at=time.time())
    lines = list(built.values())
    right, faulty = ([_constant(records[place]) for records in lines] for place in (1, 2))
    return [records[0] for records in lines], right, faulty


def _constant(record: Record) -> str:
    return json.dumps({name: value for name, value in record.items() if name not in MOVING})[:-1]


def moving(attempt: int) -> str:
    """The rest of the line of an attempt."""
    rate, following = (1e-3 / (1 + 0.01 * (attempt + ahead)) for ahead in (0, 1))
    fields: dict[str, Any] = {
        "attempt_id": attempt,
        "optimizer_update_id": attempt,
        "micro_step_id": 4 * attempt,
        "time": time.time(),
        "seq": attempt + 1,
        "reported_global_step": attempt,
        "optimizer_state_step": attempt,
        "scheduler_step": attempt,
        "learning_rate": rate,
        "learning_rates": [rate],
        "scheduler_rate": following,
    }
    return ", " + json.dumps(fields)[1:] + "\n"


def processes(root: int) -> Iterator[int]:
    """A process and those that it has started, as far as they run."""
    yield root
    for file in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from processes(int(child))


def cpu_seconds(root: int) -> float:
    """CPU time of a process, of those that it has started and of those among them that have ended."""
    total = 0.0
    for process in processes(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / 100  # in clock ticks, 100 a second
    return total


def memory_bytes(root: int) -> int:
    """Memory of a process and those that it has started; what they share counts once."""
    return sum(map(_memory, processes(root)))


def _memory(process: int) -> int:
    """The proportional set size."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
