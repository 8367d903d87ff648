"""Rule ACC206 on hand-made ledgers: windows that begin in one epoch and end in the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def step(microbatches: int, word: str | None = None, **more: Any) -> dict[str, Any]:
    """An attempt after this many micro-steps; its weights add up to 1 unless said otherwise."""
    return {"microbatches": microbatches} | ({"events": word} if word else {}) | more


class TestWindowStraddlesEpochs:
    CODE = "ACC206"
    LEAK = step(6, "FBFB|FBFBFBFBOS", total_weight=1.5, epoch=2)
    """The rest of one epoch and a whole window of the next, divided by the usual number."""

    def test_a_rest_that_leaks_into_the_next_epoch_is_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), self.LEAK, step(4, epoch=2)], ranks=1)
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.severity) == (2, "error")
        assert row.observed == pytest.approx(1.5)
        assert row.message == (
            "the data ended and began again inside the window: it weighs 1.500 of an update"
        )

    def test_one_that_leaks_is_no_measure_for_the_next(self, tmp_path: Path) -> None:
        leaks = [self.LEAK | {"epoch": epoch} for epoch in (2, 3, 4)]
        run = write_run(tmp_path / "run", [step(4), *leaks], ranks=1)
        assert [row.severity for row in judge(self.CODE, run) if row.fault] == ["error"] * 3

    def test_marks_place_it(self, tmp_path: Path) -> None:
        marks = [
            {"kind": "end_of_data", "attempt_id": 1, "micro_step_id": 6, "epoch": 1},
            {"kind": "epoch_end", "attempt_id": 1, "micro_step_id": 6, "epoch": 1},
        ]
        run = write_run(tmp_path / "run", [step(4), self.LEAK], marks=marks)
        assert the_fault(self.CODE, run).message == (
            "the data ended after 2 of 6 micro-steps and began again inside the window: "
            "it weighs 1.500 of an update"
        )

    def test_it_explains_what_follows(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), self.LEAK], ranks=1)
        codes = ["ACC104", "ACC204", "ACC206"]
        verdicts = {v.code: v for v in check_paths([run], select=codes).runs[0].verdicts}
        assert verdicts["ACC104"].reason == verdicts["ACC204"].reason
        assert (verdicts["ACC204"].reason or "").startswith("a cause was found by ACC206")

    @pytest.mark.parametrize(
        ("change", "severity", "words"),
        [
            ({"microbatches": 4, "events": "FBFB|FBFBOS", "total_weight": 1.0}, "note", "weighs 1.000, as"),
            ({"total_weight": 1.0}, "warning", "weighs 1.000, as a window should"),
            ({"loss_weight": None}, "warning", "what it weighs is not known"),
        ],
        ids=["an endless stream", "by its own tokens", "unknown"],
    )
    def test_right_and_unknown_windows_are_less(
        self, tmp_path: Path, change: dict[str, Any], severity: str, words: str
    ) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [step(4), self.LEAK | change], ranks=1))
        assert row.severity == severity
        assert words in row.message

    @pytest.mark.parametrize(("total", "severity"), [(0.3, "note"), (0.45, "error")])
    def test_a_coefficient_of_all_windows_is_not_wrong(
        self, tmp_path: Path, total: float, severity: str
    ) -> None:
        straddling = step(4, "FBFB|FBFBOS", epoch=2, total_weight=total)
        run = write_run(tmp_path / "run", [step(4, total_weight=0.3), straddling], ranks=1)
        assert the_fault(self.CODE, run).severity == severity

    def test_a_first_window_may_straddle(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4, "ZFBFBFB|FBOS", epoch=2)], ranks=1)
        assert faults(self.CODE, run) == [True]

    def test_honest_windows_pass(self, tmp_path: Path) -> None:
        cases = {
            "the data ends after the window": [step(4), step(4, "ZFBFBFBFBOS|"), step(4, epoch=2)],
            "a tail that was cleared": [
                step(4),
                step(4, "FBFB|ZFBFBFBFBOS", discarded_microbatches=2, epoch=2),
            ],
            "between clear and first forward": [step(4), step(4, "Z|FBFBFBFBOS", epoch=2)],
            "an end seen while the last micro-step is fetched": [step(4), step(4, "ZFBFBFB|FBOS")],
            "before the step": [step(4), step(2, "ZFBFB|OS")],
            "no end at all": [step(4), step(4)],
        }
        run = run_of_cases(tmp_path, cases)
        found = by_case(self.CODE, run, cases)
        assert {fault for rows in found.values() for fault in rows} == {False}

    def test_epochs_of_one_window_whose_end_is_seen_ahead(self, tmp_path: Path) -> None:
        """Each epoch is one window, and the loader sees its end one batch before the loop does."""
        updates, marks = [], []
        for epoch in (1, 2, 3):
            updates.append(step(4, "ZFBFBFB|FBOS", epoch=epoch))
            place = {"attempt_id": epoch - 1, "epoch": epoch}
            marks.append({"kind": "end_of_data", "micro_step_id": 4 * epoch - 1} | place)
            marks.append({"kind": "epoch_end", "micro_step_id": 4 * epoch} | place | {"attempt_id": epoch})
        assert faults(self.CODE, write_run(tmp_path / "run", updates, marks=marks)) == [False] * 3

    def test_skipped_attempts_are_out_of_scope(self, tmp_path: Path) -> None:
        """An overflow in the window that crosses the epochs hides its weight, and uses nothing of it."""
        crossing = step(4, "ZFBFB|FBFBXS", epoch=2, skipped=True, loss_weight=None)
        run = write_run(tmp_path / "run", [step(4), crossing, step(4, epoch=2)], ranks=1)
        assert faults(self.CODE, run) == [False, False]

    def test_closures_and_single_micro_steps_are_out_of_scope(self, tmp_path: Path) -> None:
        updates = [step(2, "(ZFB|FB)O", epoch=2), step(1, "FB|OS")]
        assert judge(self.CODE, write_run(tmp_path / "run", updates, ranks=1)) == []

    def test_data_that_is_not_watched_and_words_that_are_lost_are_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "data", [step(4, epoch=None), step(4, epoch=None)], ranks=1)
        assert faults(self.CODE, run) == [None, None]
        assert faults(self.CODE, write_run(tmp_path / "word", [step(4, events=None)], ranks=1)) == [None]
