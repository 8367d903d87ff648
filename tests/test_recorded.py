"""Records that leave something out on purpose: sums in place of lists, every k-th attempt, some ranks."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from accumaudit.engine import check_paths
from accumaudit.engine.findings import AuditReport, RunReport, Verdict
from accumaudit.outputs import text
from tests.records import write_run
from tests.tables import Rows, by_rank, column, query, windows, windows_by_run

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

WINDOW_COLUMNS = """
    valid_tokens, loss_weight, loss_weight_sq, total_weight, weight_cause, weight_factors[1], weight_uniform,
    distortion_min, distortion_max, equivalent_batch, loss, samples, input_positions, attended_positions,
    masked_positions, loss_scale_min, loss_scale_max, accumulation_steps, complete
"""
UPDATE_COLUMNS = """
    window_valid_tokens, window_loss_weight, window_loss_weight_sq, window_samples, window_input_positions,
    window_attended_positions, window_masked_positions, window_loss, weight_min, weight_max, weights_uniform,
    loss_scale_min, loss_scale_max
"""


def the_run(report: AuditReport) -> RunReport:
    (run,) = report.runs
    return run


def verdict(run: RunReport, code: str) -> Verdict:
    return next(one for one in run.verdicts if one.code == code)


def rounded(rows: Rows) -> Rows:
    """The rows without the last digits, which depend on the order of a sum."""
    return [
        tuple(float(f"{value:.12g}") if isinstance(value, float) else value for value in row) for row in rows
    ]


def spoken(report: AuditReport) -> str:
    """The report as a person reads it, its lines joined."""
    console = Console(record=True, width=200, file=io.StringIO())
    text.render(report, console)
    return re.sub(r"\s+", " ", console.export_text())


class TestSums:
    def both(self, tmp_path: Path, update: Mapping[str, Any], columns: str) -> tuple[Rows, Rows]:
        """The windows of a run with lists, and of the same with sums in their place."""
        runs = [
            write_run(tmp_path / detail, [{}, update], microbatch_detail=detail)
            for detail in ("full", "sums")
        ]
        full, sums = (windows(run, columns) for run in runs)
        return full, sums

    def test_the_windows_are_the_same(self, tmp_path: Path) -> None:
        updates: list[Mapping[str, Any]] = [
            {},
            {"total_weight": 4.0},
            {"total_weight": 0.5, "microbatches": 2},
            {"loss_weight": [0.25] * 4},
            {"weight_uniform": [True, False, True, True]},
            {"valid_tokens": [5.0, 0.0, 5.0, 5.0]},
            {"loss_scale": [1024.0, 1024.0, 512.0, 512.0]},
            {"skipped": True},
            by_rank({"loss_weight": [0.1, None, 0.1, 0.1]}),
            by_rank({"samples": [4, None, 4, 4]}),
        ]
        for place, update in enumerate(updates):
            for detail in ("full", "sums"):
                write_run(tmp_path / f"{detail} {place}", [{}, update], microbatch_detail=detail)
        found = windows_by_run(tmp_path, WINDOW_COLUMNS)
        for place in range(len(updates)):
            full, sums = found[f"full {place}"], found[f"sums {place}"]
            assert len(full) == 2
            assert rounded(sums) == rounded(full), updates[place]

    def test_the_updates_are_the_same(self, tmp_path: Path) -> None:
        update = {"valid_tokens": [50.0, 20.0, 30.0, 40.0]}
        found = [
            query(
                write_run(tmp_path / detail, [update], microbatch_detail=detail),
                f"SELECT {UPDATE_COLUMNS} FROM updates ORDER BY rank",
            )
            for detail in ("full", "sums")
        ]
        assert found[0][0][:1] == (140.0,)
        assert rounded(found[1]) == rounded(found[0])

    def test_a_number_that_is_not_finite_is_unknown_and_flagged(self, tmp_path: Path) -> None:
        updates = [{}, {"loss": [2.0, float("nan"), 2.0, 2.0]}, {}]
        run = write_run(tmp_path / "run", updates, 1, microbatch_detail="sums")
        columns = "window_sums.loss, window_loss, window_sums_nonfinite"
        assert query(run, f"SELECT {columns} FROM updates ORDER BY attempt_id") == [
            (2.0, 2.0, False),
            (None, None, True),
            (2.0, 2.0, False),
        ]

    def test_a_record_with_lists_has_no_sums_and_no_flag(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, 1)
        assert query(run, "SELECT window_sums, window_sums_nonfinite FROM updates") == [(None, None)]

    def test_there_are_no_micro_steps(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3, microbatch_detail="sums")
        assert query(run, "SELECT count(*) FROM microbatches") == [(0,)]
        assert query(run, "SELECT DISTINCT lists_agree, microbatches FROM updates") == [(True, 4)]

    def test_the_faults_of_totals_are_found(self, tmp_path: Path) -> None:
        updates = [{}, {"total_weight": 4.0}, {}]
        run = the_run(check_paths([write_run(tmp_path / "run", updates, microbatch_detail="sums")]))
        finding = verdict(run, "ACC104").finding
        assert finding is not None
        assert finding.first_update == 2
        assert run.unreadable == ()

    def test_what_needs_micro_steps_is_not_checked(self, tmp_path: Path) -> None:
        run = the_run(check_paths([write_run(tmp_path / "run", 6, microbatch_detail="sums")]))
        assert verdict(run, "ACC811").status == "not_checked"
        assert verdict(run, "ACC608").status == "not_checked"
        assert run.with_status("failed") == run.with_status("broken") == []


class TestEvery:
    def test_the_window_before_is_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 7, every=3, close=False)
        columns = (
            "attempt_id, previous_microbatches, previous_total_weight, previous_full_applied, recorded_every"
        )
        assert windows(run, columns) == [(attempt, None, None, None, 3) for attempt in (1, 4, 7)]

    def test_what_the_record_tells_is_known(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 7, every=3, accumulation_steps=None)
        columns = "accumulation_steps, accumulation_inferred, complete, weight_cause, ranks_missing"
        assert windows(run, columns) == [(4, True, True, "right", [])] * 3

    def test_an_epoch_may_have_ended_anywhere_between(self, tmp_path: Path) -> None:
        updates = [{"epoch": epoch} for epoch in (1, 1, 1, 2, 2, 2, 2)]
        (tmp_path / "all").mkdir()
        assert column(write_run(tmp_path / "all", updates), "epoch_changed") == [
            None, False, False, True, False, False, False,
        ]  # fmt: skip
        assert column(write_run(tmp_path / "some", updates, every=3), "epoch_changed") == [None, None, None]

    def test_attempts_are_counted_by_their_ids(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{}, {"skipped": True}, {}, {}, {}, {}, {"skipped": True}, {}]
        closed = the_run(check_paths([write_run(tmp_path / "closed", updates, every=3)]))
        assert (closed.attempts, closed.skipped, closed.updates, closed.recorded) == (8, 2, 6, 3)
        killed = the_run(check_paths([write_run(tmp_path / "killed", updates, every=3, close=False)]))
        assert (killed.attempts, killed.skipped, killed.updates, killed.recorded) == (7, 2, 5, 3)

    def test_each_attempt_counts_where_all_are_written(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{}, {"on": {0: None, 1: None}}, {"skipped": True}]
        run = the_run(check_paths([write_run(tmp_path / "run", updates)]))
        assert (run.attempts, run.skipped, run.recorded, run.remarks) == (2, 1, 2, ())

    def test_the_report_says_so(self, tmp_path: Path) -> None:
        updates = [{"total_weight": 4.0}] * 21
        report = check_paths([write_run(tmp_path / "run", updates, every=10)])
        run = the_run(report)
        assert run.remarks == ("every 10th attempt was recorded; those between are not checked",)
        assert run.holes == ()
        said = spoken(report)
        assert "run: 21 updates, 2 ranks, torch" in said
        assert "remark every 10th attempt was recorded" in said
        assert "3 of 3 recorded attempts" in said

    def test_a_right_run_has_no_fault(self, tmp_path: Path) -> None:
        run = the_run(check_paths([write_run(tmp_path / "run", 40, every=7)]))
        assert run.with_status("failed") == run.with_status("broken") == []
        assert verdict(run, "ACC104").status == "passed"

    def test_a_resume_supersedes_by_the_ids(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 9, every=3)
        resumed: dict[str, Any] = {
            "started_at": 1_700_100_000.0,
            "optimizer_state_step_at_attach": 5,
            "resumed_from_update": 5,
        }
        write_run(run, 4, launch="bbbb", first_update=6, every=3, **resumed)
        assert query(run, "SELECT DISTINCT optimizer_update_id FROM superseded") == [(7,)]
        assert query(run, "SELECT DISTINCT optimizer_update_id FROM updates ORDER BY ALL") == [
            (1,), (4,), (6,), (9,),
        ]  # fmt: skip


class TestRanks:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        """Eight ranks, of which 0 and 4 write."""
        silent: dict[int, None] = dict.fromkeys((1, 2, 3, 5, 6, 7))
        folder = write_run(tmp_path / "run", [{"on": silent}] * 3, ranks=8, recorded_ranks=[0, 4])
        for rank in silent:
            (folder / f"rank-00/{rank:05d}.aaaa.jsonl").unlink()
        return folder

    def test_none_of_those_that_write_is_missing(self, run: Path) -> None:
        assert windows(run, "ranks, ranks_missing, complete, world_size") == [(2, [], False, 8)] * 3

    def test_one_that_should_have_written_is(self, run: Path) -> None:
        file = run / "rank-00/00004.aaaa.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:2] + lines[3:]))
        assert column(run, "ranks_missing") == [[], [4], []]

    def test_the_total_over_all_ranks_is_unknown(self, run: Path) -> None:
        columns = "token_ranks, total_weight, valid_tokens, distortion_max, weight_cause, loss, samples"
        assert windows(run, columns) == [(8, None, None, None, None, None, None)] * 3

    def test_the_report_says_so(self, run: Path) -> None:
        report = check_paths([run])
        assert the_run(report).remarks == (
            "ranks 0 and 4 of 8 wrote records; what all ranks did together is not checked",
        )
        assert the_run(report).with_status("failed") == []
        assert verdict(the_run(report), "ACC104").status == "not_checked"
        said = spoken(report)
        assert "run: 3 updates, 2 ranks of 8, torch" in said
        assert "no record of rank" not in said

    def test_a_rank_that_wrote_nothing_is_named(self, run: Path) -> None:
        (run / "rank-00/00004.aaaa.jsonl").unlink()
        assert "1 rank of 8 (no record of rank 4)" in spoken(check_paths([run]))


class TestRemarks:
    def remarks(self, tmp_path: Path, *marks: dict[str, Any], ranks: int = 2) -> tuple[str, ...]:
        run = the_run(check_paths([write_run(tmp_path / "run", 2, ranks, marks=marks)]))
        assert run.remarks == run.holes
        return run.remarks

    def test_what_no_hook_sees(self, tmp_path: Path) -> None:
        """Said once, with the ranks that said it."""
        what = "a CUDA graph was captured: its replays are not recorded"
        assert self.remarks(tmp_path, {"kind": "not_recorded", "name": what}) == (f"{what} (ranks 0 and 1)",)

    def test_one_rank_alone(self, tmp_path: Path) -> None:
        mark = {"kind": "not_recorded", "name": "parameters lie on xla, a lazy device", "rank": 1}
        assert self.remarks(tmp_path, mark) == ("parameters lie on xla, a lazy device (rank 1)",)

    def test_without_a_name(self, tmp_path: Path) -> None:
        marks = {"kind": "not_recorded", "name": None}
        assert self.remarks(tmp_path, marks, ranks=6) == (
            "something was not recorded (ranks 0, 1, 2 and 3 more)",
        )

    def test_beside_lost_records(self, tmp_path: Path) -> None:
        marks = (
            {"kind": "gap", "lost_records": 3, "rank": 0},
            {"kind": "not_recorded", "name": "a step of SGD was compiled", "rank": 0},
        )
        assert self.remarks(tmp_path, *marks) == (
            "a step of SGD was compiled (rank 0)",
            "rank 0 could not write 3 of its records",
        )

    @pytest.mark.parametrize(
        ("every", "word"), [(2, "2nd"), (3, "3rd"), (11, "11th"), (21, "21st"), (112, "112th")]
    )
    def test_every(self, tmp_path: Path, every: int, word: str) -> None:
        run = write_run(tmp_path / "run", 1, 1, every=every)
        assert the_run(check_paths([run])).remarks[0].startswith(f"every {word} attempt was recorded;")
