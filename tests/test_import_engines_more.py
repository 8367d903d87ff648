"""The texts of torchtitan and fairseq, and logbooks."""

from __future__ import annotations

from pathlib import Path

from tests.imported import DATA, Imported, imported
from tests.tables import query

TITAN = DATA / "torchtitan"
FAIRSEQ = DATA / "fairseq"
LOGBOOK = DATA / "logbook" / "rolled-back.md"


def written(folder: Path, text: str, name: str = "train.log") -> Imported:
    path = folder / name
    path.write_text(text, newline="")
    return imported(path)


class TestTorchtitan:
    def test_records_between_terminal_codes(self) -> None:
        log = imported(TITAN / "resumed.log")
        assert (log.format, log.count, log.damaged) == ("torchtitan", 3, [])
        assert log.column(
            "attempt_id", "reported_loss", "grad_norm_before_clip", "time", "reported_samples"
        ) == [
            (1, 12.25, 21.75, 1716150601.25, 1024.0),
            (10, 9.5, 3.5, 1716150610.25, 1024.0),
            (20, 8.125, 2.5, 1716150620.25, 1024.0),
        ]

    def test_the_trainer_tells_its_arithmetic(self) -> None:
        first, second = imported(TITAN / "resumed.log").runs
        assert first == {
            "runtime": "torchtitan",
            "accumulation_steps": 32,
            "planned_updates": 20,
            "warmup_updates": 20,  # as it was cut
            "precision": "bfloat16",
            "data_parallel_size": 8,
            "world_size": 8,
            "tensor_size": 1,
            "context_size": 1,
            "pipeline_size": 1,
            "recorded_every": 10,
            "started_at": 1716150601.25,
        }
        assert second["resumed_from_update"] == 10

    def test_the_end_is_told(self) -> None:
        assert imported(TITAN / "resumed.log").marks("attempt_id", "finished") == [("close", 20, True)]
        assert imported(TITAN / "old.log").marks("attempt_id", "finished") == [("close", 2, False)]

    def test_the_old_fields(self) -> None:
        log = imported(TITAN / "old.log")
        assert log.column("reported_loss", "grad_norm_before_clip") == [(11.5, None), (11.25, None)]

    def test_steps_that_go_back_begin_again(self, tmp_path: Path) -> None:
        text = (TITAN / "old.log").read_text()
        assert len(written(tmp_path, text * 2).runs) == 2

    def test_a_rank_that_is_late_begins_no_run(self, tmp_path: Path) -> None:
        lines = (TITAN / "resumed.log").read_text().splitlines(keepends=True)
        late = [*lines[:6], *lines[1:5], lines[6]]
        assert len(written(tmp_path, "".join(late)).runs) == 1

    def test_a_list_of_losses(self, tmp_path: Path) -> None:
        log = imported(TITAN / "losses.txt")
        assert (log.format, log.column("attempt_id", "reported_loss")[0]) == ("torchtitan_losses", (1, 7.9))
        assert written(tmp_path, "1 7.5\n2 7.25\n3\n4 7\n").damaged == [(3, "no step and loss")]


class TestFairseq:
    def test_overflows_are_attempts_without_a_record(self) -> None:
        log = imported(FAIRSEQ / "simple.log")
        assert (log.format, log.count, log.damaged) == ("fairseq", 5, [])
        fields = ("attempt_id", "optimizer_update_id", "epoch", "seq")
        assert log.column(*fields) == [
            (12, 10, 1, 6),
            (22, 20, 1, 7),
            (32, 30, 1, 7),  # ranks wrote into one line
            (43, 40, 1, 9),
            (53, 50, 2, 12),
        ]
        assert log.column("optimizer_step_skipped") == [False] * 5

    def test_the_numbers_of_a_record(self) -> None:
        fields = ("reported_loss", "learning_rate", "grad_norm_before_clip", "grad_scale", "reported_tokens")
        log = imported(FAIRSEQ / "simple.log")
        assert log.column(*fields)[0] == (15.321, 8e-05, 1.945, 4.0, 2048.5)
        assert log.column("reported_samples", "reported_epoch", "time")[0] == (32.0, 0.12, 1719600010.0)

    def test_the_configuration_is_a_dict(self) -> None:
        (run,) = imported(FAIRSEQ / "simple.log").runs
        assert run == {
            "runtime": "fairseq",
            "accumulation_steps": 8,
            "max_grad_norm": 2.0,
            "planned_updates": 200,
            "warmup_updates": 20,
            "schedule": "polynomial",
            "schedule_updates": 200,
            "schedule_power": 1.0,
            "peak_learning_rate": 0.0006,
            "min_learning_rate": 0.0,
            "precision": "float16",
            "world_size": 4,
            "recorded_every": 10,
            "started_at": 1719600010.0,
        }

    def test_or_a_namespace(self) -> None:
        (run,) = imported(FAIRSEQ / "old.log").runs
        assert (run["schedule"], run["warmup_updates"], run["accumulation_steps"]) == (
            "inverse_sqrt",
            4000,
            4,
        )
        assert (run["planned_epochs"], run["max_grad_norm"]) == (3.0, 0.1)

    def test_the_lines_of_an_epoch_are_marks(self) -> None:
        assert imported(FAIRSEQ / "simple.log").marks("attempt_id", "finished") == [
            ("eval", 43, None),
            ("epoch_end", 43, None),
            ("close", 53, True),
        ]

    def test_json_with_numbers_as_strings(self) -> None:
        log = imported(FAIRSEQ / "json.log")
        assert log.count == 4
        fields = ("attempt_id", "optimizer_update_id", "reported_loss", "reported_epoch", "time")
        assert log.column(*fields)[2] == (31, 30, 8.5, 0.75, 1712602083.372)

    def test_the_oldest_has_no_time(self) -> None:
        log = imported(FAIRSEQ / "old.log")
        assert log.column("attempt_id", "reported_loss", "time") == [(1001, 8.0, None), (2001, 7.0, None)]

    def test_a_checkpoint_goes_on_with_the_overflows_before_it(self, tmp_path: Path) -> None:
        text = (FAIRSEQ / "simple.log").read_text()
        loaded = (
            "2024-06-28 19:00:00 | INFO | fairseq.trainer | Loaded checkpoint x.pt (epoch 1 @ 40 updates)\n"
        )
        again = text.splitlines(keepends=True)[-2]
        log = written(tmp_path, text + loaded + again)
        assert log.column("attempt_id")[-1] == 53
        assert log.runs[-1]["resumed_from_update"] == 43

    def test_a_record_without_its_number_is_told(self, tmp_path: Path) -> None:
        text = (FAIRSEQ / "old.log").read_text()
        log = written(tmp_path, text.replace("num_updates=2001", "num_updates=" + "9" * 400))
        assert log.count == 1
        assert log.damaged == [(3, "a record without its number of updates")]


class TestLogbook:
    def test_each_quote_is_a_run(self) -> None:
        log = imported(LOGBOOK)
        assert (log.format, log.count, log.damaged) == ("logbook", 6, [])
        assert query(
            LOGBOOK, "SELECT run_id, list(attempt_id ORDER BY attempt_id) FROM updates GROUP BY 1 ORDER BY 1"
        ) == [
            ("rolled-back.md", [10, 20, 60]),
            ("rolled-back.md#2", [20]),
            ("rolled-back.md#3", [30, 31]),
        ]

    def test_a_record_that_an_editor_wrapped_is_whole(self) -> None:
        log = imported(LOGBOOK)
        assert log.column("seq", "learning_rate", "reported_loss", "optimizer_step_skipped")[-2:] == [
            (22, 1e-3, 5.0, False),
            (25, 1e-3, 4.9, False),
        ]

    def test_the_same_iteration_twice_in_one_quote_is_two_runs(self, tmp_path: Path) -> None:
        record = next(line for line in LOGBOOK.read_text().splitlines() if line.startswith(" iteration"))
        assert len(written(tmp_path, f"```\n{record}\n{record}\n```\n").runs) == 2

    def test_a_log_without_fences_is_no_logbook(self, tmp_path: Path) -> None:
        text = LOGBOOK.read_text().replace("```", "")
        assert written(tmp_path, text).format == "megatron"
