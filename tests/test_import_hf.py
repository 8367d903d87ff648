"""The logs of the Trainer of Hugging Face and of what is built on it, in small files of each version."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from accumaudit import importers
from accumaudit.importers import Log, Options
from accumaudit.ledger.reader import read_ledger
from tests.imported import DATA, Imported, imported

FOLDER = DATA / "hf"
SUMMARIES = FOLDER / "summaries"
SAME = ("attempt_id", "reported_global_step", "reported_loss", "learning_rate")


def state(folder: Path, text: str, name: str = "trainer_state.json") -> Imported:
    path = folder / name
    path.write_bytes(text.encode())
    return imported(path)


def document(**facts: Any) -> str:
    return json.dumps({"epoch": 1.0, "global_step": 30, "max_steps": 60, "log_history": [], **facts})


class TestTrainerState:
    def test_entries_are_told_apart_by_their_keys(self) -> None:
        log = imported(SUMMARIES / "trainer_state.json")
        assert (log.format, log.count, log.damaged) == ("trainer_state", 17, [])
        assert log.column("attempt_id") == list(range(3, 40, 3))
        assert log.marks("attempt_id", "finished") == [
            ("eval", 12, None),
            ("eval", 27, None),
            ("eval", 39, None),
            ("close", 39, True),
        ]

    def test_each_record_names_its_line(self) -> None:
        log = imported(SUMMARIES / "trainer_state.json")
        lines = (SUMMARIES / "trainer_state.json").read_text().split("\n")
        for update in log.updates:
            entry = "\n".join(lines[update["seq"] - 1 : update["seq"] + 5]).rstrip(",")
            assert json.loads(entry)["step"] == update["attempt_id"]

    def test_what_the_state_lacks_comes_from_the_arguments_beside_it(self) -> None:
        (run,) = imported(SUMMARIES / "trainer_state.json").runs
        assert run == {
            "runtime": "transformers",
            "accumulation_steps": 2,
            "max_grad_norm": 1.0,
            "peak_learning_rate": 5e-05,
            "planned_epochs": 3.0,
            "planned_updates": 39,
            "precision": "float16",
            "schedule": "linear",
            "warmup_updates": 4,  # 10 % of 39, rounded up
            "recorded_every": 3,
            "started_at": 1.0,
        }

    def test_rounded_epochs_are_made_exact(self) -> None:
        for update in imported(SUMMARIES / "trainer_state.json").updates:
            assert update["reported_epoch"] == pytest.approx(update["attempt_id"] * 2 / 27, rel=1e-12)

    def test_the_state_of_a_checkpoint_has_the_arguments_of_the_folder_above_and_crlf(self) -> None:
        log = imported(SUMMARIES / "checkpoint-18" / "trainer_state.json")
        assert log.column("attempt_id") == [3, 6, 9, 12, 15, 18]
        assert log.runs[0]["accumulation_steps"] == 2
        assert log.marks("finished") == [("eval", None)]

    def test_version_5_writes_numbers_as_texts(self) -> None:
        log = imported(FOLDER / "version5" / "trainer_state.json")
        assert log.column("reported_loss", "grad_norm_before_clip", "learning_rate")[0] == (2.8, 1.5, 2e-4)
        assert log.column("grad_norm_before_scope")[0] == "global"
        assert log.column("cumulative_train_tokens")[-1] == 8192.0

    def test_nan_is_kept_however_it_is_written(self) -> None:
        log = imported(FOLDER / "version5" / "trainer_state.json")
        loss, norm = log.updates[2]["reported_loss"], log.updates[4]["grad_norm_before_clip"]
        assert loss != loss
        assert norm != norm

    def test_epochs_that_a_limit_of_updates_gave_are_no_plan(self, tmp_path: Path) -> None:
        assert "planned_epochs" not in imported(FOLDER / "version5" / "trainer_state.json").runs[0]
        limited = state(tmp_path, document(num_train_epochs=2, max_steps=50))  # 60 would be 2 epochs
        assert "planned_epochs" not in limited.runs[0]
        planned = state(tmp_path, document(num_train_epochs=2, max_steps=60))
        assert planned.runs[0]["planned_epochs"] == 2.0

    def test_a_torn_state_gives_its_whole_entries(self) -> None:
        log = imported(FOLDER / "torn" / "trainer_state.json")
        assert log.column("attempt_id") == [3, 6, 9, 12, 15, 18, 21]
        ((line, why),) = log.damaged
        assert line == 60
        assert "torn here" in why

    def test_one_broken_entry_costs_no_other(self, tmp_path: Path) -> None:
        text = (SUMMARIES / "trainer_state.json").read_text().replace('"step": 6\n', '"step": 6;\n')
        log = state(tmp_path, text)
        assert log.column("attempt_id") == [3, *range(9, 40, 3)]
        assert log.damaged == [(16, "no whole entry of log_history")]

    def test_the_list_may_stand_inside_another_document(self) -> None:
        log = imported(FOLDER / "nested" / "report.json")
        assert log.column(*SAME) == imported(SUMMARIES / "trainer_state.json").column(*SAME)
        assert log.runs[0]["planned_updates"] == 39

    def test_entries_without_steps_are_counted_by_their_distance(self, tmp_path: Path) -> None:
        entries = [{"loss": 3.0 - i, "epoch": i / 3} for i in range(3)]
        entries.insert(2, {"eval_loss": 1.0, "epoch": 0.7})
        unknown = state(tmp_path, document(log_history=entries))
        assert unknown.count == 1  # the evaluation, before any step
        assert [why for _, why in unknown.damaged] == ["an entry of log_history without a step"] * 3
        (tmp_path / "training_args.json").write_text('{"logging_steps": 10}')
        log = state(tmp_path, document(log_history=entries))
        assert log.column("attempt_id") == [10, 20, 30]
        assert log.marks("attempt_id") == [("eval", 20)]

    @pytest.mark.parametrize(
        "entry",
        [
            {"step": [1], "loss": 1.0},
            {"step": 10**400, "loss": 1.0},
            {"step": -3, "loss": 1.0},
            {"step": {"a": 1}, "loss": 1.0},
            [1, 2],
            "text",
            None,
        ],
    )
    def test_an_entry_of_another_form_costs_itself_alone(self, tmp_path: Path, entry: object) -> None:
        sound = {"step": 10, "loss": [1.0], "learning_rate": {"a": 1}, "grad_norm": 10**400, "epoch": None}
        log = state(tmp_path, document(log_history=[entry, sound]))
        assert log.column("attempt_id", "reported_loss", "grad_norm_before_clip") == [
            (10, None, float("inf"))
        ]
        assert len(log.damaged) == 1

    def test_a_state_without_an_entry_is_a_run_without_records(self, tmp_path: Path) -> None:
        log = state(tmp_path, document(max_steps=-1))
        assert (log.count, log.damaged) == (0, [])
        assert log.runs == [{"runtime": "transformers", "started_at": 1.0}]

    @pytest.mark.parametrize("epoch", ["1e999", "-1e999", "1e-320", "0.0", "-1.0", "9" * 400, "NaN"])
    def test_an_epoch_that_none_can_be_is_passed_over(self, tmp_path: Path, epoch: str) -> None:
        text = document(log_history=[{"step": 10, "loss": 1.0, "epoch": 0.25}], num_train_epochs=2)
        log = state(tmp_path, text.replace('"epoch": 1.0', f'"epoch": {epoch}'))
        assert log.column("attempt_id", "reported_epoch") == [(10, 0.25)]
        assert "planned_epochs" not in log.runs[0]

    def test_deep_nesting_ends_the_list(self, tmp_path: Path) -> None:
        text = '{"log_history": [{"step": 1, "loss": 1.0}, ' + "[" * 100_000
        log = state(tmp_path, text)
        assert log.column("attempt_id") == [1]
        assert len(log.damaged) == 1


def printed(step: int, total: int, **entry: object) -> str:
    bar = f"\r 10%|█   | {step}/{total} [00:{step % 60:02d}<01:00,  1.01s/it]"
    return f"{bar}\r{' ' * 40}\r{entry!r}\n{bar}"


def stdout(folder: Path, text: str) -> Imported:
    path = folder / "train.out"
    path.write_bytes(text.encode())
    return imported(path)


HEADING = """***** Running training *****
  Num examples = 80
  Num Epochs = 3
  Instantaneous batch size per device = 1
  Total train batch size (w. parallel, distributed & accumulation) = 8
  Gradient Accumulation steps = 4
  Total optimization steps = 1,000
"""


class TestStdout:
    def test_it_says_the_same_as_the_state(self) -> None:
        log, same = imported(SUMMARIES / "train.stdout.txt"), imported(SUMMARIES / "trainer_state.json")
        assert (log.format, log.count, log.damaged) == ("hf_stdout", 17, [])
        assert log.column(*SAME) == same.column(*SAME)
        assert log.column("reported_epoch") == pytest.approx(same.column("reported_epoch"), rel=1e-12)
        assert log.marks("attempt_id", "finished") == same.marks("attempt_id", "finished")
        # 10:01:20 on the third of December 2023, as the heading is stamped.
        assert log.runs[0] == same.runs[0] | {"data_parallel_size": 1, "started_at": 1701597680.0}

    def test_the_heading_and_the_printed_arguments_suffice(self, tmp_path: Path) -> None:
        log = stdout(tmp_path, (SUMMARIES / "train.stdout.txt").read_bytes().decode())
        assert log.runs == imported(SUMMARIES / "train.stdout.txt").runs

    def test_a_record_names_its_line(self) -> None:
        lines = (SUMMARIES / "train.stdout.txt").read_bytes().split(b"\n")
        for update in imported(SUMMARIES / "train.stdout.txt").updates:
            assert f"'loss': {update['reported_loss']}".encode() in lines[update["seq"] - 1]

    def test_version_5_prints_texts(self) -> None:
        log = imported(FOLDER / "version5" / "train.log")
        assert log.count == 9  # the dictionary of token ids is none
        assert log.column("attempt_id", "reported_loss", "reported_tokens")[-1] == (8, 1.4, 1008.0)
        assert log.runs[0]["world_size"] == 2  # as the model card beside it says

    def test_two_trainings_in_one_file_are_two_runs(self, tmp_path: Path) -> None:
        one = HEADING + "".join(
            printed(step, 1000, loss=1.0, grad_norm=0.5, epoch=0.1) for step in (10, 20, 30)
        )
        log = stdout(tmp_path, one + "Traceback (most recent call last):\nKeyError: 1\n" + one)
        assert log.column("attempt_id") == [10, 20, 30] * 2
        assert [run.get("resumed_from_update") for run in log.runs] == [None, None]
        assert log.runs[1]["accumulation_steps"] == 4
        assert log.runs[1]["data_parallel_size"] == 2

    def test_a_training_that_continues_is_a_launch(self, tmp_path: Path) -> None:
        start = (
            HEADING + printed(10, 1000, loss=1.0, grad_norm=0.5) + printed(20, 1000, loss=1.0, grad_norm=0.5)
        )
        again = HEADING + "  Continuing training from epoch 0\n  Continuing training from global step 20\n"
        log = stdout(tmp_path, start + again + printed(30, 1000, loss=1.0, grad_norm=0.5))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 20]

    def test_each_summary_ends_a_training(self, tmp_path: Path) -> None:
        summary = printed(8, 8, train_runtime=11.2, train_loss=1.5, epoch=1.0)
        evaluation = "{'eval_loss': 1.2, 'epoch': 1.0}\n"  # after the end, of the model that came of it
        log = stdout(tmp_path, summary + evaluation + summary)
        assert log.marks("attempt_id") == [("close", 8), ("eval", 8), ("close", 8)]
        assert len(log.runs) == 2

    def test_without_bars_the_distance_of_records_tells_the_steps(self, tmp_path: Path) -> None:
        arguments = (
            "TrainingArguments(\nlogging_steps=25,\nlogging_first_step=True,\nlearning_rate=1e-3,\n)\n"
        )
        entries = "".join(f"{{'loss': {loss}, 'learning_rate': 0.1, 'epoch': 0.5}}\n" for loss in (3, 2, 1))
        log = stdout(tmp_path, arguments + HEADING + entries)
        assert log.column("attempt_id") == [1, 25, 50]
        assert log.runs[0]["planned_updates"] == 1000

    def test_where_nothing_tells_the_steps_there_is_no_plan_to_compare_with(self, tmp_path: Path) -> None:
        log = stdout(tmp_path, HEADING + "{'loss': 3.0, 'grad_norm': 0.1}\n{'loss': 2.0, 'grad_norm': 0.1}\n")
        assert log.column("attempt_id") == [1, 2]
        assert "planned_updates" not in log.runs[0]

    def test_an_entry_that_several_nodes_print_is_one_step(self, tmp_path: Path) -> None:
        values = [3.0, 2.5, 2.0, 0.0]
        entries = "".join(3 * f"{{'loss': {loss}, 'learning_rate': 0.1}}\n" for loss in values)
        log = stdout(tmp_path, HEADING + entries)
        # Zeros are no copies: short logs of toys are full of them.
        assert log.column("attempt_id") == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6]
        assert len(log.runs) == 1

    def test_text_that_was_held_back_does_not_take_its_steps_from_a_late_bar(self, tmp_path: Path) -> None:
        bars = "".join(f"\r| {step}/100 [00:01<00:09]" for step in range(45))
        entries = "".join(f"{{'loss': {step}.5, 'learning_rate': 0.1}}\n" for step in (10, 20, 30, 40))
        log = stdout(
            tmp_path, f"TrainingArguments(\nlogging_steps=10,\n)\n{bars}\n{entries}\r| 46/100 [00:02<00:08]"
        )
        assert log.column("attempt_id", "reported_loss") == [(10, 10.5), (20, 20.5), (30, 30.5), (40, 40.5)]

    def test_bars_belong_to_their_entries_wherever_the_text_is_parted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = "".join(
            f"\n\r 5%|  | {step - 1}/88 [00:01<00:09]\n\r    \r"
            f"{{'loss': '{step}.5', 'grad_norm': '1'}}\n\r 9%|  | {step}/88 [00:01<00:09]"
            for step in range(7, 88, 9)
        )
        text = f"{one}\n{{'train_runtime': '1.5', 'epoch': '1'}}\n{one}\n"
        for size in (1, 40, 90):
            monkeypatch.setattr("accumaudit.importers.reading.log.BLOCK", size)
            log = stdout(tmp_path, text)
            assert log.column("reported_global_step") == [*range(7, 88, 9)] * 2
            assert [run["planned_updates"] for run in log.runs] == [88, 88]

    def test_other_bars_and_settings_are_passed_over(self, tmp_path: Path) -> None:
        noise = "{'loss': 'mse'}\n{'fp16': {'loss_scale': 0}}\rLoading: 100%|█| 2/2 [00:07<00:00, 3.5s/it]\n"
        evaluation = "".join(f"\r| {batch}/7 [00:00<00:00]" for batch in range(8))
        log = stdout(
            tmp_path,
            noise
            + printed(5, 50, loss=2.0, grad_norm=0.5)
            + evaluation
            + printed(10, 50, eval_loss=2.0, epoch=0.2),
        )
        assert log.column("attempt_id") == [5]
        assert log.marks("attempt_id") == [("eval", 10)]

    @pytest.mark.parametrize(
        ("text", "loss"), [("np.float64(0.5)", 0.5), ("nan", None), ("'inf'", float("inf"))]
    )
    def test_numbers_of_all_kinds(self, tmp_path: Path, text: str, loss: float | None) -> None:
        log = stdout(
            tmp_path, f"{{'loss': {text}, 'learning_rate': tensor(1e-05, device='cuda:0'), 'epoch': 0.1}}\n"
        )
        assert log.column("learning_rate") == [1e-05]
        assert repr(log.column("reported_loss")[0]) == repr(float("nan") if loss is None else loss)

    def test_a_torn_dictionary_is_told(self, tmp_path: Path) -> None:
        log = stdout(
            tmp_path, printed(5, 50, loss=2.0, grad_norm=0.5) + "\n{'loss': 1.5, 'learning_rate': 1e-\n"
        )
        assert log.column("attempt_id") == [5]
        assert log.damaged == [(3, "a dictionary that does not end on its line")]

    @pytest.mark.parametrize(
        "text",
        [
            "usage: train.py [-h] [--learning_rate LEARNING_RATE]\n",
            "\r  0%|  | 0/96 [00:00<?, ?it/s]\r 35%|██ | 34/96 [10:42<30:50, 29.85s/it]",
            "\r100% 391/391 [00:09<00:00]\n{'loss': 0.5, 'accuracy': 0.9, 'epoch': 1}\n",  # another loop
            "fsdp_config={'fsdp_version': 2, 'state_dict_type': 'SHARDED'}\nValueError: no such layer\n",
        ],
    )
    def test_a_text_without_a_record_is_none(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "train.out"
        path.write_text(text)
        assert importers.recognise(Log(path)).format is None


def lines(folder: Path, *entries: dict[str, object]) -> Imported:
    path = folder / "trainer_log.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return imported(path)


def entry(step: int, **more: object) -> dict[str, object]:
    return {"current_steps": step, "total_steps": 100, "loss": 1.0, "lr": 1e-4, "epoch": step / 64, **more}


class TestLlamaFactory:
    def test_of_2023_with_null_for_what_is_not_used(self) -> None:
        log, same = imported(SUMMARIES / "trainer_log.jsonl"), imported(SUMMARIES / "trainer_state.json")
        assert (log.format, log.count, log.damaged) == ("llamafactory", 16, [])
        assert log.column(*SAME) == same.column(*SAME)
        assert log.column("reported_epoch")[-1] == pytest.approx(78 / 27, rel=1e-12)
        assert log.runs == same.runs
        assert log.marks("attempt_id", "finished") == [
            *[("eval", 12, None), ("eval", 27, None), ("eval", 39, None)],
            ("close", 39, True),  # of 39: it is done, though the log says no more
        ]

    def test_of_2024_with_arguments_given(self) -> None:
        path = FOLDER / "llamafactory" / "trainer_log.jsonl"
        log = imported(path, Options(arguments=FOLDER / "llamafactory" / "run.yaml"))
        assert log.column("attempt_id", "learning_rate", "cumulative_train_tokens")[0] == (
            10,
            9.1e-05,
            5120.0,
        )
        assert log.marks("attempt_id", "finished") == [("eval", 50, None), ("close", 100, True)]
        assert log.runs[0] == {
            "runtime": "transformers",
            "planned_updates": 100,
            "accumulation_steps": 8,
            "peak_learning_rate": 1e-4,
            "planned_epochs": 2.0,
            "schedule": "linear",
            "warmup_updates": 0,
            "precision": "bfloat16",
            "recorded_every": 10,
            "started_at": 1.0,
        }

    def test_two_writers_are_one_launch(self, tmp_path: Path) -> None:
        log = lines(tmp_path, *(entry(step) for step in (10, 10, 20, 30, 20, 40, 30, 40, 50, 50)))
        assert len(log.runs) == 1
        assert log.runs[0]["recorded_every"] == 10
        assert sorted(log.column("attempt_id")) == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50]

    def test_a_restart_is_a_launch_and_a_new_start_a_run(self, tmp_path: Path) -> None:
        steps = [*range(10, 60, 10), *range(40, 80, 10), *range(10, 30, 10)]
        log = lines(tmp_path, *map(entry, steps))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 30, None]

    def test_lines_that_are_no_records_are_told(self, tmp_path: Path) -> None:
        path = tmp_path / "trainer_log.jsonl"
        whole = json.dumps(entry(10))
        path.write_text(f'{whole}\n{{"current_steps": 20, "total_\n[1]\n{{"a": 1}}\n{whole}{whole}\n')
        log = imported(path)
        assert log.count == 3
        assert [line for line, _ in log.damaged] == [2, 3, 4]


class TestMsSwift:
    def test_rounded_numbers_are_taken_from_the_last_object(self) -> None:
        log = imported(FOLDER / "ms_swift" / "logging.jsonl")
        assert (log.format, log.count, log.damaged) == ("ms_swift", 9, [])
        assert log.column("reported_loss", "reported_tokens")[0] == (2.123456789, 1501.0)
        assert log.column("reported_epoch")[0] == 1 / 300
        assert log.marks("attempt_id", "finished") == [
            ("eval", 3, None),
            ("close", 6, True),
            ("close", 6, True),
        ]

    def test_the_arguments_beside_it(self) -> None:
        (run,) = imported(FOLDER / "ms_swift" / "logging.jsonl").runs
        assert run == {
            "runtime": "transformers",
            "planned_updates": 6,
            "accumulation_steps": 4,
            "max_grad_norm": 1.0,
            "peak_learning_rate": 1e-05,
            "precision": "bfloat16",
            "schedule": "linear",
            "sequence_size": 2,
            "warmup_updates": 2,
            "world_size": 8,
            "started_at": 1.0,
        }

    def test_a_start_that_failed_has_the_last_object_alone(self) -> None:
        log = imported(FOLDER / "ms_swift_failed" / "logging.jsonl")
        assert (log.format, log.count) == ("ms_swift", 1)
        assert log.marks("attempt_id", "finished") == [("close", 0, False)]

    def test_a_number_that_differs_is_kept_as_logged(self, tmp_path: Path) -> None:
        path = tmp_path / "logging.jsonl"
        last = {"global_step": 1, "log_history": [{"step": 1, "loss": 9.0, "learning_rate": 3.333333e-06}]}
        first = {"loss": 2.0, "learning_rate": 3.33e-06, "global_step/max_steps": "1/2"}
        path.write_text(f"{json.dumps(first)}\n{json.dumps(last)}\n")
        assert imported(path).column("reported_loss", "learning_rate") == [(2.0, 3.333333e-06)]


@pytest.mark.parametrize(
    "name",
    [
        "summaries/trainer_state.json",
        "summaries/train.stdout.txt",
        "summaries/trainer_log.jsonl",
        "ms_swift/logging.jsonl",
    ],
)
def test_what_stands_before_the_end_of_torn_compressed_data_is_kept(name: str, tmp_path: Path) -> None:
    whole = imported(FOLDER / name)
    data = gzip.compress((FOLDER / name).read_bytes() + b" " * 10_000)
    path = tmp_path / Path(name).name
    path.write_bytes(data[:-30])
    log = imported(path)
    kept = log.column("attempt_id")
    assert kept == whole.column("attempt_id")[: len(kept)]
    assert len(kept) >= 2
    assert any("compressed data end early" in why for _, why in log.damaged)


class TestCheckpoints:
    """A run's folder holds the same records several times."""

    @staticmethod
    def state(folder: Path, steps: int, loss: float = 1.0) -> None:
        folder.mkdir(parents=True)
        history = [{"loss": loss, "step": step} for step in range(1, steps + 1)]
        text = json.dumps({"global_step": steps, "log_history": history}, indent=2)
        (folder / "trainer_state.json").write_text(text + "\n")

    def runs(self, folder: Path) -> list[str]:
        with read_ledger([folder]) as ledger:
            return [str(Path(path).relative_to(folder).parent) for _, path in ledger.runs]

    def test_a_state_that_a_later_one_holds_is_left_out(self, tmp_path: Path) -> None:
        self.state(tmp_path / "checkpoint-9", 9)
        self.state(tmp_path / "checkpoint-10", 10)
        self.state(tmp_path / "other" / "checkpoint-5", 5)
        assert self.runs(tmp_path) == ["checkpoint-10", "other/checkpoint-5"]
        (tmp_path / "trainer_state.json").write_bytes(
            (tmp_path / "checkpoint-10" / "trainer_state.json").read_bytes()
        )
        assert self.runs(tmp_path) == [".", "other/checkpoint-5"]

    def test_one_of_another_training_stays(self, tmp_path: Path) -> None:
        self.state(tmp_path / "checkpoint-9", 9, loss=2.0)
        self.state(tmp_path / "checkpoint-10", 10)
        assert self.runs(tmp_path) == ["checkpoint-10", "checkpoint-9"]

    def test_one_that_is_asked_for_is_read(self, tmp_path: Path) -> None:
        self.state(tmp_path / "checkpoint-9", 9)
        self.state(tmp_path / "checkpoint-10", 10)
        assert self.runs(tmp_path / "checkpoint-9") == ["."]
