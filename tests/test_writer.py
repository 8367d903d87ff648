"""The writer: whole lines, a bounded queue, a full disk that ends nothing, a child that writes nothing."""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accumaudit.ledger import writer as writer_module
from accumaudit.ledger.writer import LedgerWriter, encode, ledger_path

HEAD = {"record": "run", "launch": "one", "rank": 0}


def lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n") if line]


def record(number: int) -> dict[str, Any]:
    return {"record": "update", "attempt_id": number, "filler": "x" * 200}


def test_files_of_ranks_lie_in_folders_by_the_thousand() -> None:
    """rank-00/00000 and rank-12/12345."""
    assert ledger_path(Path("run"), 0, "a") == Path("run/rank-00/00000.a.jsonl")
    assert ledger_path(Path("run"), 12345, "a") == Path("run/rank-12/12345.a.jsonl")


def test_non_finite_floats_become_strings() -> None:
    """Every line is strict JSON."""
    line = encode({"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": (1.5, None)})
    assert json.loads(line) == {"a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": [1.5, None]}
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1


def test_records_are_written_in_order_and_numbered(tmp_path: Path) -> None:
    """seq is the number of the line; a job may have nothing to write."""
    writer = LedgerWriter(tmp_path / "deep" / "file.jsonl", HEAD)
    for number in range(1, 4):
        writer.submit(lambda number=number: record(number))  # type: ignore[misc]
    writer.submit(lambda: None)
    writer.close()
    writer.close()
    writer.submit(lambda: record(9))
    found = [json.loads(line) for line in lines(writer.path)]
    assert [entry["seq"] for entry in found] == [1, 2, 3, 4]
    assert [entry.get("attempt_id") for entry in found] == [None, 1, 2, 3]


def test_a_torn_line_before_is_left_behind(tmp_path: Path) -> None:
    """A second launch in the same file begins on a fresh line."""
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"record": "upd')
    LedgerWriter(path, HEAD).close()
    assert lines(path)[0] == b'{"record": "upd'
    assert json.loads(lines(path)[1])["record"] == "run"


def test_a_failing_job_costs_its_record_and_is_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gap is marked before the next record."""

    def fails() -> None:
        raise ZeroDivisionError("in a job")

    with caplog.at_level(logging.WARNING, "accumaudit"):
        writer = LedgerWriter(tmp_path / "file.jsonl", HEAD)
        writer.submit(fails)
        writer.submit(fails)
        writer.submit(lambda: record(1))
        writer.close()
    kinds = [(entry["record"], entry.get("lost_records")) for entry in map(json.loads, lines(writer.path))]
    assert kinds == [("run", None), ("mark", 2), ("update", None)]
    assert len(caplog.records) == 1


def test_a_full_queue_loses_records_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is counted."""
    monkeypatch.setattr(writer_module, "QUEUE_LIMIT", 2)
    free = threading.Event()
    writer = LedgerWriter(tmp_path / "file.jsonl", HEAD)

    def waits() -> None:
        free.wait(30)

    for _ in range(10):
        writer.submit(waits)
    free.set()
    writer.submit(lambda: None)
    writer.close()
    gap = json.loads(lines(writer.path)[-1])
    assert gap["kind"] == "gap"
    assert 7 <= gap["lost_records"] <= 9


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Files of this process end at a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def drained(writer: LedgerWriter) -> None:
    """Wait until the thread has done what was queued so far."""
    done = threading.Event()
    writer.submit(lambda: done.set())
    assert done.wait(30)


def test_a_full_disk_costs_records_only_while_it_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; a torn line stays alone; records after the space is back are whole, after a gap mark."""
    with caplog.at_level(logging.WARNING, "accumaudit"):
        writer = LedgerWriter(tmp_path / "file.jsonl", HEAD)
        with file_limit(800):
            for number in range(1, 9):
                writer.submit(lambda number=number: record(number))  # type: ignore[misc]
            drained(writer)
        for number in range(9, 12):
            writer.submit(lambda number=number: record(number))  # type: ignore[misc]
        writer.close()
    found = lines(writer.path)
    whole = [json.loads(line) for line in found if line.endswith(b"}")]
    torn = [line for line in found if not line.endswith(b"}")]
    assert len(torn) == 1
    written = [entry["attempt_id"] for entry in whole if entry["record"] == "update"]
    assert written[-3:] == [9, 10, 11]
    assert sum(entry.get("lost_records", 0) for entry in whole) == 11 - len(written)
    assert len(caplog.records) == 1
    assert "Training goes on" in caplog.text


def test_a_deleted_file_is_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its head, and with a mark of what went with it."""
    writer = LedgerWriter(tmp_path / "run" / "file.jsonl", HEAD)
    for number in (1, 2):
        writer.submit(lambda number=number: record(number))  # type: ignore[misc]
    drained(writer)
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.WARNING, "accumaudit"):
        for number in (3, 4):
            writer.submit(lambda number=number: record(number))  # type: ignore[misc]
        writer.close()
    found = [json.loads(line) for line in lines(writer.path)]
    assert [(entry["seq"], entry.get("attempt_id"), entry.get("lost_records")) for entry in found] == [
        (1, None, None),
        (2, None, 2),
        (3, 3, None),
        (4, 4, None),
    ]
    assert "deleted" in caplog.text


def test_an_unwritable_folder_raises(tmp_path: Path) -> None:
    """Before training, not during it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        LedgerWriter(tmp_path / "file" / "deeper.jsonl", HEAD)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A child has no thread and no right to its parent's file."""
    writer = LedgerWriter(tmp_path / "file.jsonl", HEAD)
    child = os.fork()
    if child == 0:
        writer.submit(lambda: record(1))
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.submit(lambda: record(2))
    writer.close()
    assert [json.loads(line).get("attempt_id") for line in lines(writer.path)] == [None, 2]


SCRIPT = """
import sys, torch, accumaudit
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
audit = accumaudit.attach(model, optimizer, log_dir=sys.argv[1], summary=False)
for number in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[2] == "raise":
    raise KeyError("the loop fails")
"""


@pytest.mark.parametrize(("ending", "status"), [("return", 0), ("raise", 1)])
def test_what_is_queued_is_written_at_exit(ending: str, status: int, tmp_path: Path) -> None:
    """A script that never closes loses nothing, and its close mark says that it did not finish."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), ending], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == status
    (path,) = tmp_path.glob("rank-00/*.jsonl")
    found = [json.loads(line) for line in lines(path)]
    assert [entry["attempt_id"] for entry in found if entry["record"] == "update"] == [1, 2, 3, 4, 5]
    assert (found[-1]["kind"], found[-1]["reason"], found[-1]["finished"]) == ("close", "exit", False)
