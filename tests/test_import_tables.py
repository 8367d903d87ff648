"""Logs that are tables: of Lightning, wandb and MAE, with named fields, and of whatever columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from accumaudit import importers
from accumaudit.engine import check_paths
from accumaudit.importers import Log, Options
from tests.imported import DATA, imported
from tests.real_logs import real_logs


class TestLightning:
    LOG = DATA / "lightning" / "metrics.csv"

    def test_rows_of_a_step_are_one_record_and_steps_count_from_0(self) -> None:
        log = imported(self.LOG)
        assert (log.format, log.count, log.damaged) == ("lightning_csv", 7, [])
        assert log.column("attempt_id", "reported_global_step", "epoch", "learning_rate", "seq") == [
            (10, 9, 1, 1e-4, 2),
            (20, 19, 1, 2e-4, 4),
            (30, 29, 2, 3e-4, 8),
            (40, 39, 2, 4e-4, 10),
        ]
        assert [str(loss) for loss in log.column("reported_loss")] == ["4.5", "4.0", "nan", "3.5"]

    def test_rows_of_the_validation_and_of_an_epoch_are_no_updates(self) -> None:
        assert imported(self.LOG).marks("attempt_id", "epoch", "finished") == [
            ("eval", 25, 1, None),
            ("epoch_end", 25, 1, None),
            ("eval", 40, 2, None),
            ("close", 40, None, True),
        ]

    def test_what_the_module_saved_is_known_and_objects_in_it_are_not_made(self) -> None:
        (run,) = imported(self.LOG).runs
        assert {
            name: run[name] for name in ("accumulation_steps", "planned_updates", "peak_learning_rate")
        } == {
            "accumulation_steps": 4,
            "planned_updates": 40,
            "peak_learning_rate": 0.0005,
        }

    def test_a_table_of_one_s_own_counts_as_it_does(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("epoch,loss,step\n0,3.5,10\n0,3.4,20\n1,3.3,30\n")
        log = imported(path)
        assert log.column("attempt_id", "reported_global_step") == [(10, 10), (20, 20), (30, 30)]
        assert "runtime" not in log.runs[0]

    def test_the_rate_of_each_micro_batch_is_no_second_writer(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.csv"
        rows = "".join(
            f",{rate},{step},\n" * 3 + f"0,,{step},{3 - step}\n" for step, rate in enumerate((2, 1))
        )
        path.write_text(f"epoch,lr-AdamW,step,train_loss\n{rows}")
        log = imported(path)
        assert log.column("attempt_id", "learning_rate", "reported_loss") == [(1, 2.0, 3.0), (2, 1.0, 2.0)]
        path.write_text("epoch,lr-AdamW,step,train_loss\n,2,0,\n,2,0,\n0,,0,3\n0,,0,3.5\n")
        assert imported(path).column("reported_loss") == [3.0, 3.5]

    def test_a_row_that_was_torn_costs_itself(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.csv"
        path.write_text('epoch,step,train_loss\n0,4,3.5\n0,9,3.4\n0,"14,3.3\n0,x,3.2\n0,19,3.1\n0,24')
        log = imported(path)
        assert log.column("attempt_id") == [5, 10, 20]
        assert [line for line, _ in log.damaged] == [4, 5, 7]


class TestMae:
    def test_each_object_is_the_end_of_an_epoch(self) -> None:
        log = imported(DATA / "mae" / "log.txt")
        assert (log.format, log.count) == ("mae", 2)
        assert log.marks("epoch", "attempt_id") == [("epoch_end", 1, None), ("epoch_end", 2, None)]
        assert [line for line, _ in log.damaged] == [3]


class TestWandb:
    def test_the_last_values_of_nanogpt_are_an_update(self) -> None:
        log = imported(DATA / "wandb" / "chars.wandb-summary.json")
        assert (log.format, log.count) == ("wandb_summary", 1)
        assert log.column("attempt_id", "learning_rate", "time") == [(41, 1e-4, 1700000040.5)]

    def test_those_of_a_trainer_that_ended_are_its_end(self) -> None:
        log = imported(DATA / "wandb" / "done.wandb-summary.json")
        assert log.marks("attempt_id", "finished") == [("close", 12, True)]

    def test_a_history_numbers_what_it_logged_of_updates_and_not_its_calls(self) -> None:
        log = imported(DATA / "wandb" / "wandb-history.jsonl")
        assert (log.format, log.count) == ("wandb_history", 4)
        assert log.column("attempt_id", "reported_global_step", "time") == [
            (1, None, 1600000001.0),
            (2, None, 1600000002.0),
            (3, None, 1600000004.0),
        ]
        assert str(log.column("reported_loss", "grad_norm_before_clip")[-1]) == "(nan, inf)"

    def test_the_loop_s_own_counter_goes_before_that_of_the_calls(self, tmp_path: Path) -> None:
        path = tmp_path / "wandb-history.jsonl"
        rows = [{"iter": 10 * call, "lr": 0.1, "_step": call, "_timestamp": call} for call in range(3)]
        path.write_text("\n".join(map(json.dumps, rows)))
        assert imported(path).column("attempt_id", "reported_global_step") == [(1, 0), (11, 10), (21, 20)]


class TestNamedFields:
    FOLDER = DATA / "named_fields"

    def test_a_row_is_an_update(self) -> None:
        log = imported(self.FOLDER / "updates.csv")
        assert (log.format, log.count, log.damaged) == ("named_fields", 12, [])
        assert log.column("attempt_id", "optimizer_update_id", "optimizer_step_skipped", "skip_evidence")[
            2:5
        ] == [
            (3, 3, False, "log"),
            (4, 3, True, "log"),
            (5, 4, False, "log"),
        ]
        assert log.column("micro_step_id", "epoch", "cumulative_train_tokens")[-1] == (48, 2, 12586.0)

    def test_a_row_may_be_a_micro_step(self) -> None:
        log = imported(self.FOLDER / "micro_steps.jsonl")
        assert log.column("attempt_id", "optimizer_update_id", "micro_step_id", "grad_norm_before_clip") == [
            (1, 1, 3, 1.2),
            (2, 2, 6, 1.2),
            (3, 3, 9, 1.2),
            (4, 4, 12, 1.2),
        ]

    @pytest.mark.parametrize("first", [True, False])
    def test_micro_steps_are_joined_however_the_update_is_numbered(self, tmp_path: Path, first: bool) -> None:
        path = tmp_path / "log.jsonl"
        rows = []
        for micro_step in range(1, 41):
            done = micro_step % 4 == 0
            row = {
                "micro_step_id": micro_step,
                "optimizer_update_id": (micro_step + (0 if first else 3)) // 4,
            }
            rows.append(row | ({"grad_norm_before_clip": 1.0, "optimizer_step_skipped": 0} if done else {}))
        path.write_text("\n".join(map(json.dumps, rows)))
        log = imported(path)
        assert log.column("attempt_id", "micro_step_id") == [(n, 4 * n) for n in range(1, 11)]

    def test_a_number_within_the_window_is_no_count_of_micro_steps(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        rows = [f"{micro},{update}" for update in range(1, 6) for micro in range(4)]
        path.write_text("\n".join(["micro_step_id,optimizer_update_id", *rows]))
        assert imported(path).column("attempt_id", "micro_step_id") == [(n, None) for n in range(1, 6)]

    def test_both_counters_going_back_are_a_restart(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        rows = [f"{4 * update},{update}" for update in (*range(1, 13), *range(6, 16))]
        path.write_text("\n".join(["micro_step_id,optimizer_update_id", *rows]))
        assert [run.get("resumed_from_update") for run in imported(path).runs] == [None, 5]

    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            ([1, 2, 2, 3], [1, 2, 2, 3]),  # updates that were applied
            ([1, 2, 3, 3], [1, 2, 2, 3]),  # the update that is tried
            ([1, 2, 3, 4], [1, 2, 3, 4]),  # a loop that counts the skip
        ],
    )
    def test_the_attempt_after_a_skip_tells_what_is_numbered(
        self, tmp_path: Path, ids: list[int], expected: list[int]
    ) -> None:
        path = tmp_path / "log.csv"
        rows = [f"{number},{int(place == 2)}" for place, number in enumerate(ids)]
        path.write_text("\n".join(["optimizer_update_id,optimizer_step_skipped", *rows]))
        assert imported(path).column("attempt_id", "optimizer_update_id") == list(
            zip(range(1, 5), expected, strict=True)
        )

    def test_a_second_writer_makes_no_further_attempts(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        rows = [f"{4 * update},{update},0" for update in (1, 1, 2, 2, 3, 4, 3, 4, 5, 5)]
        path.write_text("\n".join(["micro_step_id,optimizer_update_id,optimizer_step_skipped", *rows]))
        assert imported(path).column("attempt_id") == [1, 1, 2, 2, 3, 4, 3, 4, 5, 5]

    def test_ranks_are_told_apart(self) -> None:
        log = imported(self.FOLDER / "ranks.csv")
        assert log.column("rank", "attempt_id")[:4] == [(0, 1), (1, 1), (0, 2), (1, 2)]
        assert next(row["recorded_ranks"] for row in log.rows if row["record"] == "run") == [0, 1]

    def test_rules_judge_what_the_fields_prove_and_nothing_else(self) -> None:
        report = check_paths(
            [self.FOLDER / "updates.csv", self.FOLDER / "faults.csv", self.FOLDER / "ranks.csv"]
        )
        found = {
            run.run_id: {(one.code, one.finding.count) for one in run.verdicts if one.finding is not None}
            for run in report.runs
        }
        assert found == {
            "updates.csv": set(),
            # The number advanced on a skip, and by two over one window; a norm that is no number was applied.
            "faults.csv": {("ACC801", 2), ("ACC803", 1)},
            "ranks.csv": {("ACC801", 1)},  # the number of rank 1 advanced on its skip
        }
        assert {run.run_id: (run.attempts, run.skipped) for run in report.runs} == {
            "updates.csv": (12, 1),
            "faults.csv": (12, 1),
            "ranks.csv": (6, 0),
        }


class TestMapped:
    FOLDER = DATA / "mapped"
    COLUMNS: ClassVar = {"step": "itr", "learning_rate": "rate", "loss": "objective"}

    def test_columns_are_the_fields_that_the_caller_says(self) -> None:
        log = imported(self.FOLDER / "log.csv", Options(columns=self.COLUMNS))
        assert (log.format, log.count) == ("mapped", 3)
        assert log.column("attempt_id", "reported_global_step", "learning_rate", "reported_loss") == [
            (1, 0, 0.001, 4.0),
            (2, 1, 0.002, 3.5),
            (3, 2, 0.003, 3.0),
        ]
        assert log.damaged == [(6, "`itr` is no count: 'x'")]

    def test_json_lines_too(self) -> None:
        columns = {**self.COLUMNS, "optimizer_step_skipped": "skip"}
        log = imported(self.FOLDER / "log.jsonl", Options(columns=columns))
        assert log.column("attempt_id", "learning_rate", "reported_loss", "optimizer_step_skipped") == [
            (10, 0.001, 4.0, False),
            (20, None, 3.5, True),
            (30, 0.003, float("inf"), False),
        ]
        assert [line for line, _ in log.damaged] == [3]

    def test_a_column_that_is_not_there_is_named_with_those_that_are(self) -> None:
        options = Options(columns={"step": "iter"})
        recognised = importers.recognise(Log(self.FOLDER / "log.csv", options))
        assert recognised.format is None
        assert recognised.looks_like == "it has no column `iter`; its columns are itr, rate, objective, val"

    def test_a_file_that_is_no_table_is_what_it_is(self) -> None:
        log = imported(DATA / "nanogpt" / "llmc.log", Options(columns=self.COLUMNS))
        assert log.format == "llmc"


@pytest.mark.parametrize(
    ("name", "format_", "count"),
    [
        ("lightning_csv/slm-v0.metrics.csv", "lightning_csv", 2834),
        ("lightning_csv/slm-v7.metrics.csv", "lightning_csv", 220),
        ("lightning_csv/slm-v8.metrics.csv", "lightning_csv", 1511),
        ("lightning_csv/slm-v9.metrics.csv", "lightning_csv", 27),
        ("lightning_csv/slm-v10.metrics.csv", "lightning_csv", 136),
        ("lightning_csv/slm-v11.metrics.csv", "lightning_csv", 25),
        ("lightning_csv/rope-engines-v3.metrics.csv", "lightning_csv", 80),  # 160 rows, two a step
        ("lightning_csv/turngpt.metrics.csv", "lightning_csv", 50),
        ("lightning_csv/gpttt.metrics.csv", "lightning_csv", 12),
        ("mae_jsonl/mae-output_animediffusion.log.txt", "mae", 5),
        ("mae_jsonl/mae-output_animediffusion_mask25.log.txt", "mae", 10),
        ("mae_jsonl/mae-output_dir.log.txt", "mae", 1),
        ("mae_jsonl/mae-output_no_norm_pix.log.txt", "mae", 10),
        ("wandb/nanogpt-bn1klkfl.wandb-summary.json", "wandb_summary", 1),
        ("wandb/nanogpt-kt2awly2.wandb-summary.json", "wandb_summary", 1),
        ("wandb/nanogpt-mw8ngzqq.wandb-summary.json", "wandb_summary", 1),
        ("wandb/nanogpt-vgpqdf1r.wandb-summary.json", "wandb_summary", 1),
        ("wandb/chatglm-lora.latest.wandb-summary.json", "wandb_summary", 1),
    ],
)
def test_real_logs_have_all_their_records(name: str, format_: str, count: int) -> None:
    log = imported(real_logs() / name)
    assert (log.format, log.count, log.damaged) == (format_, count, [])
    assert len(log.runs) == 1
