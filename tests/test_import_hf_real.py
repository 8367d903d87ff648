"""The logs of the Trainer that other people's trainings wrote."""

from __future__ import annotations

import pytest

from accumaudit import importers
from accumaudit.importers import Log, Options
from tests.imported import imported
from tests.real_logs import real_logs

COUNTS = {
    "hf_trainer_state/adl3-sft-ckpt32.trainer_state.json": 3,
    "hf_trainer_state/ccks-e25-lr1e-4.ckpt11000.trainer_state.json": 1100,
    "hf_trainer_state/ccks-e25-lr1e-4.trainer_state.json": 1191,
    "hf_trainer_state/chatglm2-prefix.ckpt1000.trainer_state.json": 100,
    "hf_trainer_state/chatglm2-prefix.ckpt2000.trainer_state.json": 200,
    "hf_trainer_state/chatglm2-prefix.final.trainer_state.json": 301,
    "hf_trainer_state/mistral-translator.ckpt500.trainer_state.json": 50,
    "hf_trainer_state/mistral-translator.ckpt4000.trainer_state.json": 400,
    "hf_trainer_state/mistral-translator.ckpt8500.trainer_state.json": 850,
    "hf_trainer_state/mistral-translator.final.trainer_state.json": 867,
    "hf_trainer_state/trainer_state_viz-sample.trainer_state.json": 216,
    "hf_trainer_state/whisper-lv2-ja.final.trainer_state.json": 206,
    "hf_trainer_state/whisper-lv2-ja.last-checkpoint.trainer_state.json": 205,
    "llamafactory/ccks-e25-lr1e-4.trainer_log.jsonl": 1190,
    "llamafactory/ccks-e50.trainer_log.jsonl": 2380,
    "llamafactory/mistral-translator.trainer_log.jsonl": 867,
    "llamafactory/sft-two-writers.trainer_log.jsonl": 1360,
    "ms_swift/ds-first.logging.jsonl": 22,
    "ms_swift/ds-full-epoch.logging.jsonl": 296,
    "ms_swift/ga1-gbs4.logging.jsonl": 32,
    "ms_swift/ga2-gbs8.logging.jsonl": 4,
    "ms_swift/ga8-gbs32.logging.jsonl": 1,
    "ms_swift/ga8-gbs32-offload.logging.jsonl": 32,
    "ms_swift/ga16-gbs64.logging.jsonl": 32,
    "ms_swift/mbs2-ga2-gbs16.logging.jsonl": 1,
    # Without the dictionaries of settings, which stand in the same text: 1, 4 and 17 of them.
    "hf_stdout/ccks-e25-lr1e-4.stdout.txt": 1191,
    "hf_stdout/webqsp-lora-e200.stdout.txt": 840,
    "hf_stdout/swift-ds-full-epoch.stdout.log": 295,
    "hf_stdout/peft-debug.train.out": 4,
}

NONE = {
    "hf_stdout/chatglm-et.nohup.out": "error: argument --fp16",
    "hf_stdout/swift-first-try-crash.stdout.log": "Could not find the transformer layer class",
    "hf_stdout/adl3-sft.full_training_log.txt": "34 of 96",
}


@pytest.mark.parametrize("name", COUNTS)
def test_each_file_is_recognised_and_read_whole(name: str) -> None:
    log = imported(real_logs() / name)
    kind = name.partition("/")[0].removeprefix("hf_trainer_")
    assert (log.format, log.count, log.damaged) == (
        "trainer_state" if kind == "state" else kind,
        COUNTS[name],
        [],
    )


@pytest.mark.parametrize("name", NONE)
def test_a_file_without_a_record_is_said_to_hold_none(name: str) -> None:
    recognised = importers.recognise(Log(real_logs() / name))
    assert recognised.format is None
    assert NONE[name] in recognised.looks_like


def test_state_log_and_output_of_one_run_agree() -> None:
    folder = real_logs()
    arguments = folder / "hf_trainer_state/ccks-e25-lr1e-4.training_args.json"
    state = imported(folder / "hf_trainer_state/ccks-e25-lr1e-4.trainer_state.json")
    log = imported(folder / "llamafactory/ccks-e25-lr1e-4.trainer_log.jsonl", Options(arguments=arguments))
    output = imported(folder / "hf_stdout/ccks-e25-lr1e-4.stdout.txt")
    names = ("attempt_id", "reported_global_step", "reported_loss", "learning_rate")
    assert state.column(*names) == log.column(*names) == output.column(*names)
    # 1,907 micro-batches an epoch, also where the log has two digits.
    assert [one.column("reported_epoch")[-1] for one in (state, log, output)] == [47600 / 1907] * 3
    told = (
        "accumulation_steps",
        "planned_epochs",
        "planned_updates",
        "schedule",
        "warmup_updates",
        "precision",
    )
    for one in (state, log, output):
        assert [one.runs[0].get(name) for name in told] == [4, 25.0, 11900, "cosine", 0, "float16"]


def test_two_writers_and_a_resume() -> None:
    log = imported(real_logs() / "llamafactory/sft-two-writers.trainer_log.jsonl")
    assert [run.get("resumed_from_update") for run in log.runs] == [None, 5000]
    assert [run["recorded_every"] for run in log.runs] == [10, 10]
    steps = log.column("attempt_id")
    assert len(steps) - len(set(steps)) == 702
    assert log.marks("attempt_id", "finished") == [("close", 6565, True)] * 2


def test_a_second_start_in_the_same_output() -> None:
    log = imported(real_logs() / "hf_stdout/webqsp-lora-e200.stdout.txt")
    assert log.column("attempt_id") == [*range(10, 2130, 10), *range(10, 6290, 10)]
    assert [run["planned_updates"] for run in log.runs] == [21600, 21600]


def test_the_output_of_ms_swift_says_the_same_as_its_log() -> None:
    output = imported(real_logs() / "hf_stdout/swift-ds-full-epoch.stdout.log")
    log = imported(real_logs() / "ms_swift/ds-full-epoch.logging.jsonl")
    assert output.column("attempt_id", "reported_tokens") == log.column("attempt_id", "reported_tokens")
    assert output.column("reported_loss") == pytest.approx(log.column("reported_loss"), rel=5e-4)
    assert output.column("learning_rate") == pytest.approx(log.column("learning_rate"), abs=6e-9)


def test_epochs_are_planned_where_they_are_the_plan() -> None:
    planned = {
        "mistral-translator.final": 4.0,
        "trainer_state_viz-sample": 30.0,
        "adl3-sft-ckpt32": 3.0,
        "whisper-lv2-ja.final": None,  # its 5,000 updates end in the 39th epoch
        "chatglm2-prefix.final": None,
    }
    for name, epochs in planned.items():
        (run,) = imported(real_logs() / f"hf_trainer_state/{name}.trainer_state.json").runs
        assert run.get("planned_epochs") == epochs
