"""The texts of Megatron and DeepSpeed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.imported import DATA, Imported, imported
from tests.tables import query

SKIPPED = DATA / "megatron" / "skipped-windows.out"
TWO_ENGINES = DATA / "megatron" / "two-engines.log"
ITERATIONS = DATA / "megatron" / "iterations.log"


def written(folder: Path, text: str, name: str = "train.log") -> Imported:
    path = folder / name
    path.write_text(text, newline="")
    return imported(path)


def iteration(step: int, *, loss: str | None = "2.5", skipped: int = 0, total: int = 100) -> str:
    middle = "" if loss is None else f"lm loss: {loss} | "
    return (
        f" iteration {step:8d}/ {total:7d} | consumed samples: {8 * step} | learning rate: 1.0E-03 | {middle}"
        f"loss scale: 4.0 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\n"
    )


class TestMegatronWindows:
    def test_a_window_without_a_loss_was_skipped_as_a_whole(self) -> None:
        log = imported(SKIPPED)
        assert (log.format, log.count, log.damaged) == ("megatron", 4, [])
        fields = ("attempt_id", "optimizer_step_skipped", "optimizer_update_id", "reported_loss")
        assert log.column(*fields) == [
            (5, True, 0, None),
            (10, None, 3, 9.5),
            (15, False, 8, 8.25),
            (20, False, 13, 7.5),
        ]
        assert log.column("skip_evidence") == ["log", None, "log", "log"]

    def test_the_arguments_of_several_ranks_are_those_of_one_run(self) -> None:
        (run,) = imported(SKIPPED).runs
        assert run == {
            "runtime": "megatron",
            "accumulation_steps": 4,
            "max_grad_norm": 1.0,
            "planned_updates": 50,
            "schedule": "cosine",
            "schedule_updates": 40,
            "warmup_updates": 4,
            "peak_learning_rate": 0.001,
            "min_learning_rate": 0.0001,
            "precision": "float16",
            "world_size": 4,
            "data_parallel_size": 2,
            "tensor_size": 2,
            "pipeline_size": 1,
            "recorded_every": 5,
            "started_at": 1709287200.0,
        }

    def test_evaluations_checkpoints_and_a_kill_are_no_records(self) -> None:
        log = imported(SKIPPED)
        assert log.marks("attempt_id", "finished", "name") == [
            ("eval", 20, None, None),
            ("checkpoint", 20, None, "iter_0000020"),
            ("close", 20, False, None),
        ]

    def test_without_a_loss_a_count_of_no_skips_proves_nothing(self) -> None:
        log = imported(DATA / "megatron" / "oldest.log")
        assert log.column("reported_loss", "optimizer_step_skipped") == [
            (10.5, False),
            (10.4, False),
            (None, None),
        ]

    def test_the_engine_of_deepspeed_hides_its_skips_in_half_precision(self, tmp_path: Path) -> None:
        arguments = "  deepspeed ....... True\n  fp16 ............ True\n"
        log = written(tmp_path, arguments + iteration(1) + iteration(2))
        assert log.column("optimizer_step_skipped", "optimizer_update_id") == [(None, None)] * 2

    def test_a_log_that_begins_late_does_not_know_its_updates(self, tmp_path: Path) -> None:
        log = written(tmp_path, "".join(iteration(step) for step in (300, 310, 320)))
        assert log.column("optimizer_update_id", "optimizer_step_skipped") == [(None, False)] * 3

    def test_batches_that_grow_leave_accumulation_unknown(self, tmp_path: Path) -> None:
        sizes = "  global_batch_size ... 64\n  micro_batch_size ... 1\n  data_parallel_size ... 2\n"
        growing = "  rampup_batch_size ... ['16', '16', '1000']\n  train_samples ... 4000\n"
        sizes += "  lr_decay_style ... cosine\n"
        (run,) = written(tmp_path, sizes + growing + iteration(1)).runs
        assert "accumulation_steps" not in run
        assert "schedule" not in run

    def test_samples_are_told_in_updates(self, tmp_path: Path) -> None:
        counted = {
            "global_batch_size": 8,
            "train_samples": 800,
            "lr_warmup_samples": 80,
            "lr_decay_samples": 640,
        }
        text = (
            "".join(f"  {name} ... {value}\n" for name, value in counted.items())
            + "  lr_decay_style ... linear\n"
        )
        (run,) = written(tmp_path, text + iteration(1)).runs
        assert (run["warmup_updates"], run["schedule_updates"], run["schedule"]) == (10, 80, "linear")


class TestMegatronText:
    def test_times_line_ends_progress_bars_and_prefixes(self) -> None:
        log = imported(ITERATIONS)
        assert log.column("attempt_id") == [10, 20, 30, 40, 50, 60, 70]
        assert log.column("seq") == [1, 2, 3, 4, 5, 6, 7]
        assert log.column("time")[0] == 1714550410.0
        assert log.column("reported_loss")[4:6] == [4.5, 4.4]

    def test_numbers_that_are_none_are_kept_as_such(self) -> None:
        loss, norm = imported(ITERATIONS).column("reported_loss", "grad_norm_before_clip")[-1]
        assert math.isnan(loss)
        assert norm == math.inf

    def test_a_torn_end_is_told(self) -> None:
        assert imported(ITERATIONS).damaged == [(8, "the record is torn at 'lm loss: 4.1'")]

    def test_what_another_process_wrote_behind_a_record_is_no_damage(self, tmp_path: Path) -> None:
        log = written(tmp_path, iteration(1).rstrip("\n") + " time (ms)\n" + iteration(2))
        assert (log.count, log.damaged) == (2, [])

    def test_names_of_the_oldest_version_and_of_pipelines(self) -> None:
        log = imported(DATA / "megatron" / "oldest.log")
        assert log.column("reported_loss", "grad_scale") == [(10.5, 12.0), (10.4, 12.0), (None, 6.0)]

    @pytest.mark.parametrize("number", ["1" * 400, "1e999", "--", "1_000"])
    def test_what_is_no_number_costs_its_field(self, tmp_path: Path, number: str) -> None:
        log = written(tmp_path, iteration(1, loss=number) + iteration(2))
        first, second = log.column("reported_loss")
        assert second == 2.5
        assert first is None or math.isinf(first)

    def test_a_step_of_many_digits_is_no_record(self, tmp_path: Path) -> None:
        log = written(
            tmp_path, iteration(1) + iteration(1).replace("       1/", f"{'7' * 400}/") + iteration(2)
        )
        assert log.column("attempt_id") == [1, 2]


class TestMegatronRuns:
    def test_skips_that_several_ranks_print_count_once(self, tmp_path: Path) -> None:
        lines = [iteration(1), iteration(2, loss=None, skipped=1), iteration(3)]
        log = written(tmp_path, "".join(2 * line for line in lines))
        assert log.column("optimizer_update_id") == [1, 1, 1, 1, 2, 2]

    def test_a_rank_that_prints_late_starts_no_run(self, tmp_path: Path) -> None:
        steps = [10, 10, 20, 10, 20, 30, 20, 30, 30]
        log = written(tmp_path, "".join(iteration(step, loss=f"{100 / step:.2f}") for step in steps))
        assert len(log.runs) == 1
        assert log.column("attempt_id") == steps
        replayed = [*range(1, 9), 5, 6, 7]
        log = written(tmp_path, "".join(iteration(step, loss=f"{100 / step:.2f}") for step in replayed))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 4]

    def test_records_of_two_engines_are_of_one_run(self) -> None:
        log = imported(TWO_ENGINES)
        assert (log.format, log.count) == ("megatron", 9)
        assert log.column("attempt_id") == [1, 2, 3, 4, 4, 5, 6, 1, 2]
        assert log.column("reported_loss")[:2] == [5.9, 5.8]

    def test_a_restart_goes_on_from_its_checkpoint_and_a_run_that_starts_over_is_another(self) -> None:
        log = imported(TWO_ENGINES)
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 3, None]
        assert log.marks("attempt_id", "finished") == [("close", 4, False), ("close", 6, True)]
        rows = query(TWO_ENGINES, "SELECT run_id, launch, count(*) FROM updates GROUP BY ALL ORDER BY ALL")
        assert rows == [("two-engines.log", 1, 3), ("two-engines.log", 2, 3), ("two-engines.log#2", 1, 2)]

    def test_skips_before_a_checkpoint_count_after_a_restart(self, tmp_path: Path) -> None:
        steps = [(1, 1), (2, 0), (3, 1), (3, 1), (4, 0)]
        text = "".join(
            iteration(step, loss=None if skipped else "2.5", skipped=skipped) for step, skipped in steps
        )
        again = text.replace(iteration(3, loss=None, skipped=1) * 2, iteration(3, loss=None, skipped=1))
        restart = "---- arguments ----\n successfully loaded checkpoint from x at iteration 2\n"
        log = written(tmp_path, again + restart + iteration(3) + iteration(4))
        assert log.column("attempt_id", "optimizer_update_id") == [
            (1, 0),
            (2, 1),
            (3, 1),
            (4, 2),
            (3, 2),
            (4, 3),
        ]

    def test_steps_that_go_back_are_a_restart_without_any_word(self, tmp_path: Path) -> None:
        log = written(tmp_path, "".join(iteration(step) for step in (10, 20, 30, 20, 30, 40)))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 10]

    def test_a_second_dump_of_arguments_before_any_record_begins_no_run(self, tmp_path: Path) -> None:
        dump = "---- arguments ----\n  lr ... 0.1\n---- end of arguments ----\n"
        assert len(written(tmp_path, dump * 3 + iteration(1)).runs) == 1


class TestDeepspeed:
    def test_the_step_counts_attempts(self) -> None:
        log = imported(DATA / "deepspeed" / "skipped.log")
        assert (log.format, log.count, log.damaged) == ("deepspeed", 5, [])
        fields = ("attempt_id", "optimizer_update_id", "optimizer_step_skipped", "epoch")
        assert log.column(*fields) == [
            (10, 8, None, 1),
            (20, 18, False, 1),
            (30, 27, None, 2),
            (40, 37, False, 2),
        ]
        assert log.column("learning_rates")[0] == [9.9e-05, 9.9e-05]

    def test_the_command_and_the_settings_tell_the_run(self) -> None:
        (run,) = imported(DATA / "deepspeed" / "skipped.log").runs
        assert run == {
            "runtime": "deepspeed",
            "accumulation_steps": 2,
            "max_grad_norm": 0.5,
            "peak_learning_rate": 1e-4,
            "planned_epochs": 2.0,
            "planned_updates": 40,
            "precision": "float16",
            "schedule": "cosine",
            "warmup_updates": 4,
            "data_parallel_size": 4,
            "recorded_every": 10,
            "started_at": 1713404762.5,
        }

    def test_the_loss_scale_is_told_only_where_it_is_proved(self) -> None:
        # Since that to 32768 there was none up to step 20; the next was not told.
        assert imported(DATA / "deepspeed" / "skipped.log").column("grad_scale") == [
            None,
            32768.0,
            None,
            None,
        ]

    def test_a_step_of_0_is_no_update(self) -> None:
        log = imported(DATA / "deepspeed" / "skipped.log")
        assert log.marks("attempt_id", "finished", "name") == [
            ("declare", 0, None, '{"learning_rates": [0.0, 0.0]}'),
            ("close", 40, True, None),
        ]

    def test_the_timer_tells_the_accumulation(self, tmp_path: Path) -> None:
        text = (DATA / "deepspeed" / "skipped.log").read_text()
        kept = [line for line in text.splitlines(keepends=True) if "accumulation" not in line]
        (run,) = written(tmp_path, "".join(kept)).runs
        assert run["accumulation_steps"] == 2

    def test_several_runs_and_the_losses_of_a_pipeline(self) -> None:
        log = imported(DATA / "deepspeed" / "two-runs.out")
        assert log.column("attempt_id", "reported_loss")[1:] == [(2, 4.8), (3, 4.7), (1, 3.9), (2, 3.8)]
        assert log.column("optimizer_step_skipped", "grad_scale")[:2] == [(True, 256.0), (False, None)]
        assert len(log.runs) == 2
        assert log.marks("attempt_id", "finished") == [("close", 2, False)]

    def test_a_list_of_rates_that_is_torn_is_no_record(self, tmp_path: Path) -> None:
        log = written(tmp_path, "step=1, skipped=0, lr=[0.1], mom=[]\nstep=2, skipped=0, lr=[0.1, 0.\n")
        assert log.column("attempt_id") == [1]

    def test_two_engines_of_one_run_count_their_own_skips(self, tmp_path: Path) -> None:
        steps = [(10, 5), (10, 4), (11, 5), (11, 4)]
        text = "".join(f"step={step}, skipped={skipped}, lr=[0.1], mom=[]\n" for step, skipped in steps)
        log = written(tmp_path, text)
        assert log.column("optimizer_update_id") == [5, 6, 6, 7]
        assert log.column("optimizer_step_skipped") == [None] * 4
        assert len(log.runs) == 1
