"""What the hooks say at the start and at the close of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from accumaudit import summary
from tests.records import write_run

pytestmark = pytest.mark.slow  # each waits for the check of a subprocess


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither wait for ranks nor lower the priority of the tests."""
    monkeypatch.setattr(summary, "PATIENCE", 0.0)
    monkeypatch.setattr(os, "nice", lambda _: 0)


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert summary.main([str(argument) for argument in arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


class TestStart:
    def test_a_healthy_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", 3, close=False)
        assert said(capsys, run, "--attempts", 3) == [
            "accumaudit: 3 updates judged: T 1.000, tokens weigh 1.00 to 1.00, sync ok, schedule ok"
        ]

    def test_later_attempts_are_not_judged(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Ranks write at different times: what lies beyond may be half there."""
        later: dict[str, Any] = {"total_weight": 0.5, "on": {1: None}}
        run = write_run(tmp_path / "run", [{}, {}, {}, later], close=False)
        (line,) = said(capsys, run, "--attempts", 3)
        assert line.endswith("3 updates judged: T 1.000, tokens weigh 1.00 to 1.00, sync ok, schedule ok")

    def test_faults_are_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        wrong: list[dict[str, Any]] = [
            {"total_weight": 4.0},
            {"total_weight": 4.0},
            {"total_weight": 4.0, "events": "ZfbfbfbfbOS"},
        ]
        (line,) = said(capsys, write_run(tmp_path / "run", wrong, close=False), "--attempts", 3)
        assert "T 4.000, tokens weigh 4.00 to 4.00" in line
        assert "sync error ACC501 update-without-sync" in line
        assert line.endswith("schedule ok, error ACC104 wrong-total-weight")

    def test_without_weights(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", [{"loss_weight": None}] * 3, close=False)
        (line,) = said(capsys, run, "--attempts", 3)
        assert "3 updates judged: weights unknown, sync ok" in line

    def test_other_ranks_lag(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", [{}, {}, {"on": {1: None}}], close=False)
        (line,) = said(capsys, run, "--attempts", 3)
        assert line.startswith("accumaudit: 3 updates judged, rank 0 alone: ")

    def test_the_last_launch_speaks(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", [{"total_weight": 4.0}] * 3)
        later: dict[str, Any] = {
            "started_at": 1_700_100_000.0,
            "optimizer_state_step_at_attach": 3,
            "scheduler_step_at_attach": 3,
        }
        write_run(run, 3, launch="bbbb", first_update=4, close=False, **later)
        (line,) = said(capsys, run, "--attempts", 3)
        assert line.startswith("accumaudit: 3 updates judged: T 1.000,")


class TestClose:
    def test_a_healthy_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (line,) = said(capsys, write_run(tmp_path / "run", 3))
        assert line.startswith("accumaudit: Found no fault in 1 run (")

    def test_faults_have_a_line_each(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", [{}, {"total_weight": 4.0}, {}])
        first, last = said(capsys, run)
        assert first.startswith("accumaudit: error ACC104 wrong-total-weight, update 2: ")
        assert last.startswith("accumaudit: Found 1 fault in 1 run (")
        assert last.endswith(f" `accumaudit check {run}` says more.")

    def test_no_records(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (line,) = said(capsys, tmp_path / "nowhere")
        assert line.startswith("accumaudit: the records cannot be judged: ")

    def test_without_duckdb_it_says_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        assert said(capsys, write_run(tmp_path / "run", 3)) == []
