"""ACC704, ACC804 and ACC806 on logs of other programs: skips that were counted, steps that stand twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.series import Row, faults_of, megatron_line, rows_of, write_jsonl

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def megatron(path: Path, windows: Sequence[Mapping[str, Any]], interval: int = 10) -> Path:
    """A log with a line for each window of iterations."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [megatron_line(interval * number, **window) for number, window in enumerate(windows, 1)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def skipped(count: int, scale: float, interval: int = 10) -> dict[str, Any]:
    """A window in which so many iterations were skipped; without any other it has no loss."""
    loss = {"lm loss": None} if count == interval else {}
    return {"number of skipped iterations": count, "loss scale": scale, **loss}


SETTLING = [skipped(10, 2.0**22), skipped(8, 2.0**15), skipped(1, 2.0**14), *[skipped(0, 2.0**14)] * 7]
"""19 skips bring the scale from 2^32 to 2^14, one of them by hysteresis."""


class TestSkipStorm:
    CODE = "ACC704"

    def test_skips_that_the_scale_explains_pass(self, tmp_path: Path) -> None:
        tried_again = [skipped(int(number % 10 == 0) * 2, 2.0**14) for number in range(1, 100)]
        cases = {
            "settling": SETTLING,
            "still settling": [skipped(1, 2.0 ** (32 - step)) for step in range(3)],
            "one after each growth": tried_again,
            "none": [skipped(0, 12.0)] * 5,
        }
        for case, windows in cases.items():
            megatron(tmp_path / f"{case}.log", windows, 1 if case == "still settling" else 10)
        rows = rows_of(self.CODE, tmp_path)
        assert {run_id: [row["fault"] for row in found] for run_id, found in rows.items()} == {
            f"{case}.log": [False] for case in cases
        }
        assert rows["settling.log"][0]["message"] == "19 of 100 attempts were skipped"

    @pytest.mark.parametrize(
        ("began", "windows", "message"),
        [
            (
                30,
                [skipped(0, 8.0), skipped(4, 1.0), *[skipped(10, 1.0)] * 3],
                "34 of 50 attempts were skipped, up to 30 in a row with the loss scale at 1 or below, "
                "from attempt 21 on",
            ),
            (
                20,
                [skipped(0, 4096.0), skipped(10, 4096.0), skipped(10, 4096.0), skipped(0, 4096.0)],
                "20 of 40 attempts were skipped, up to 20 in a row while the loss scale stayed at 4096, "
                "from attempt 11 on",
            ),
            (
                110,
                [*SETTLING, *[skipped(5, 2.0**14)] * 20],
                "119 of 300 attempts were skipped, 100 of them in the 260 attempts after the scale "
                "had settled",
            ),
            (
                20,
                [{"loss scale": None}, *[skipped(10, 1.0) | {"loss scale": None}] * 12],
                "120 of 130 attempts were skipped, 120 on end, from attempt 11 on",
            ),
        ],
        ids=["floor", "stuck", "after", "endless"],
    )
    def test_storms_are_found(
        self, tmp_path: Path, began: int, windows: list[dict[str, Any]], message: str
    ) -> None:
        [rows] = faults_of(self.CODE, megatron(tmp_path / "train.log", windows)).values()
        assert [(row["attempt_id"], row["message"]) for row in rows] == [(began, message)]

    def test_a_log_without_counts_says_so(self, tmp_path: Path) -> None:
        log = write_log(tmp_path / "trainer_log.jsonl", [(step, 1.0, 1e-4) for step in range(1, 9)])
        [run] = check_paths([log], select=[self.CODE]).runs
        assert run.verdicts[0].reason is not None
        assert run.verdicts[0].reason.endswith("holds no word of skipped steps")


class TestAmbiguousStepCounter:
    CODE = "ACC804"

    def test_iterations_that_were_skipped_are_counted_too(self, tmp_path: Path) -> None:
        [rows] = faults_of(self.CODE, megatron(tmp_path / "train.log", SETTLING)).values()
        assert [(row["observed"], row["expected"]) for row in rows] == [(90.0, 81.0)]
        assert rows[0]["message"].endswith("it counts attempts, skipped ones included")

    def test_without_a_skip_it_counts_updates(self, tmp_path: Path) -> None:
        assert not faults_of(self.CODE, megatron(tmp_path / "train.log", SETTLING[3:]))


def write_log(path: Path, records: Sequence[tuple[int, float, float]]) -> Path:
    """A log of (step, loss, rate), as LLaMA-Factory writes it."""
    lines = [
        {
            "current_steps": step,
            "total_steps": 1000,
            "loss": loss,
            "lr": rate,
            "epoch": step / 100,
            "percentage": step / 10,
            "elapsed_time": "0:00:10",
            "remaining_time": "0:10:00",
        }
        for step, loss, rate in records
    ]
    return write_jsonl(path, lines)


class TestDuplicatedRecords:
    CODE = "ACC806"
    STEPS = range(10, 210, 10)

    def rows(self, folder: Path, records: Sequence[tuple[int, float, float]]) -> list[Row]:
        found = faults_of(self.CODE, write_log(folder / "trainer_log.jsonl", records))
        return [row for rows in found.values() for row in rows]

    def test_two_processes_have_other_losses(self, tmp_path: Path) -> None:
        records = [(step, 1 / step + writer / 1000, 1 / step) for step in self.STEPS for writer in (0, 1)]
        rows = self.rows(tmp_path, records)
        assert [row["attempt_id"] for row in rows] == list(self.STEPS)
        assert {row["severity"] for row in rows} == {"warning"}
        assert rows[2]["message"] == (
            "20 of 20 steps stand more than once in this log, with other losses: two processes wrote it; "
            "this one again on line 6"
        )
        log = tmp_path / "trainer_log.jsonl"
        [verdict] = check_paths([log], select=[self.CODE]).runs[0].with_status("failed")
        assert verdict.finding is not None
        assert [example.line for example in verdict.finding.examples] == [1, 3, 5]

    def test_copies_have_the_same_values(self, tmp_path: Path) -> None:
        records = [(step, 1 / step, 1e-4) for step in self.STEPS for _ in range(2)]
        assert "with the same values: several processes" in self.rows(tmp_path, records)[0]["message"]

    def test_engines_have_other_rates(self, tmp_path: Path) -> None:
        records = [(step, 1 / step + rate, rate) for step in self.STEPS for rate in (1e-4, 5e-6)]
        assert "with other rates: two engines" in self.rows(tmp_path, records)[0]["message"]

    def test_a_step_that_an_epoch_sums_up_again_is_none(self, tmp_path: Path) -> None:
        records = [(step, 1 / step, 1e-4) for step in self.STEPS]
        records.insert(10, (100, 0.02, 1e-4))
        assert self.rows(tmp_path, records) == []

    def test_a_log_that_counts_once_passes(self, tmp_path: Path) -> None:
        log = write_log(tmp_path / "trainer_log.jsonl", [(step, 1 / step, 1e-4) for step in self.STEPS])
        [rows] = rows_of(self.CODE, log).values()
        assert [row["fault"] for row in rows] == [False] * 20
