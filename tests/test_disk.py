"""The disk fills while a training runs: the training goes on, and what can be written is whole."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
import torch

import accumaudit
from accumaudit.engine import check_paths
from tests.loops import TinyModel, Training, plain
from tests.test_writer import file_limit


def parts() -> Training:
    """A training that is always the same."""
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return Training(model, optimizer, scheduler, accumaudit.Audit(None))


def test_a_training_outlives_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three of nine updates meet a full disk: one warning, a marked gap, whole records, the same weights."""
    bare, recorded = parts(), parts()
    for _ in range(3):
        plain(bare)
    with (
        caplog.at_level(logging.WARNING, "accumaudit"),
        accumaudit.attach(
            recorded.model,
            recorded.optimizer,
            recorded.scheduler,
            log_dir=tmp_path,
            accumulation_steps=4,
            summary=False,
        ),
    ):
        plain(recorded)
        (path,) = tmp_path.glob("rank-00/*.jsonl")
        deadline = time.monotonic() + 30
        while len(path.read_bytes().splitlines()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        with file_limit(path.stat().st_size + 300):
            plain(recorded)
            deadline = time.monotonic() + 30
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
        plain(recorded)
    assert len(caplog.records) == 1
    assert all(map(torch.equal, bare.model.parameters(), recorded.model.parameters()))
    lines = path.read_bytes().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith(b"}")]
    written = [entry["attempt_id"] for entry in whole if entry["record"] == "update"]
    assert written[0] == 1
    assert written[-2:] == [8, 9]
    assert sum(entry.get("lost_records", 0) for entry in whole) == 9 - len(written)
    (run,) = check_paths([tmp_path]).runs
    assert run.attempts == len(written)
    assert run.remarks == (f"rank 0 could not write {9 - len(written)} of its records",)
    assert len(run.unreadable) <= 1
    assert not [verdict for verdict in run.verdicts if verdict.status == "broken"]
