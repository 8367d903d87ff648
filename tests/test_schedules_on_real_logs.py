"""What the rates of other people's trainings tell: positions, skips, ends."""

from __future__ import annotations

from typing import Any

import pytest

from accumaudit.ledger.reader import Ledger
from tests.series import faulty, judged

pytestmark = pytest.mark.slow  # a hundred logs are read, once


def found(code: str, logs: Ledger) -> dict[str, list[str]]:
    return {run_id: [row["message"] for row in rows] for run_id, rows in faulty(judged(code, logs)).items()}


def rows(logs: Ledger, query: str) -> dict[str, tuple[Any, ...]]:
    return {run_id: tuple(rest) for run_id, *rest in logs.connection.execute(query).fetchall()}


CCKS = (
    "4 skips: between 4,000 and 4,010, between 4,860 and 4,870, between 8,860 and 8,870, "
    "between 10,860 and 10,870; "
)
WHISPER = "4 skips: 2 by 25, between 100 and 125, between 350 and 375; "
SKIPS = {
    # One run in three formats, and a checkpoint of it.
    "ccks-e25-lr1e-4.trainer_state.json": CCKS,
    "ccks-e25-lr1e-4.ckpt11000.trainer_state.json": CCKS,
    "ccks-e25-lr1e-4.trainer_log": CCKS,
    "ccks-e25-lr1e-4.stdout.txt": CCKS,
    # The same code and data in fp16, longer.
    "ccks-e50.trainer_log": "9 skips: between 4,000 and 4,010, between 6,000 and 6,010, ",
    "webqsp-lora-e200.stdout.txt#2": "2 skips: between 4,000 and 4,010, between 6,000 and 6,010; ",
    "whisper-lv2-ja.final.trainer_state.json": WHISPER,
    "whisper-lv2-ja.last-checkpoint.trainer_state.json": WHISPER,
}


def test_silent_skips_are_those_of_fp16_trainers(logs: Ledger) -> None:
    messages = found("ACC309", logs)
    assert {*messages} == {*SKIPS}
    wrong = {name: told for name, [told] in messages.items() if not told.startswith(SKIPS[name])}
    assert not wrong
    judged_ones = [run_id for run_id, seen in judged("ACC309", logs).items() if seen]
    assert len(judged_ones) >= 40
    # bf16 and fp32 trainings, and those whose logs count the skips themselves.
    assert {
        "mistral-translator.final.trainer_state.json",
        "mistral-translator.trainer_log",
        "chatglm2-prefix.final.trainer_state.json",
        "dschat-step1-opt1.3b-gbs128.log",
        "dschat-step2-dpo-opt350m-gbs32.log",
        "mhmoe-train.log",
        "bs-meg-n4.out",
        "sft-two-writers.trainer_log",
    } <= {*judged_ones}


def test_skips_that_a_log_counts_are_those_of_its_rates(logs: Ledger) -> None:
    """The counts of DeepSpeed, Megatron and fairseq agree with every position that a rate tells."""
    behind = rows(
        logs,
        """
        SELECT run_id, count(*), count(*) FILTER (p.lag <> w.attempt_id - w.optimizer_update_id), max(p.lag)
        FROM positions AS p JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
        WHERE p.position IS NOT NULL AND w.optimizer_update_id IS NOT NULL
        GROUP BY run_id HAVING max(p.lag) > 0
        """,
    )
    assert {name: lag for name, (_, _, lag) in behind.items()} == {
        "dschat-step1-opt1.3b-gbs128.log": 139,
        "dschat-step2-dpo-opt350m-gbs32.log": 21,
        "mhmoe-train.log": 97,
        "bs-meg-n4.out": 19,
        "bs-meg-n8.out": 19,
    }
    assert not {name: wrong for name, (_, wrong, _) in behind.items() if wrong}


def test_a_log_may_write_the_rate_that_was_used(logs: Ledger) -> None:
    habits = rows(logs, "SELECT run_id, habit FROM schedules WHERE habit = 1")
    assert {*habits} == {"sft-two-writers.trainer_log"}


SCHEDULES = {
    "ccks-e25-lr1e-4.trainer_log": ("cosine", False, 0, 11_900, 1e-4, 0.0),
    "mistral-translator.final.trainer_state.json": ("cosine", False, 866, 8_660, 5e-5, 0.0),
    "whisper-lv2-ja.final.trainer_state.json": ("linear", True, 500, 5_000, 1e-5, 0.0),
    "chatglm2-prefix.final.trainer_state.json": ("linear", True, 0, 3_000, 0.02, 0.0),
    "mds-qwen7b-baseline-500.log": ("cosine", True, 50, 500, 1e-5, 1e-6),
    "bs-meg-n4.out": ("cosine", True, 8, 800, 1.5e-4, 1e-5),
    "ds-full-epoch.logging": ("cosine", True, 15, 294, 2e-5, 0.0),
    # Three digits, and nothing beside it that declares a schedule.
    "swift-ds-full-epoch.stdout.log": ("cosine", False, 15, 294, 2e-5, 0.0),
}


def test_schedules_are_recognised_with_their_numbers(logs: Ledger) -> None:
    columns = "schedule, declared, warmup_updates, schedule_updates, peak, minimum"
    known = rows(logs, f"SELECT run_id, {columns} FROM schedules WHERE fits")
    assert {name: known.get(name) for name in SCHEDULES} == SCHEDULES


NOT_UPDATES = (
    "mae-output_anime",  # 1,000 for each epoch
    "llmc-main.log",  # six decimals
    "rope-engines-v3.metrics.csv",  # constant
    "trainer_state_viz-sample.trainer_state.json",
    "adl3-sft-ckpt32.trainer_state.json",  # three records
    "mistral-translator.ckpt500.trainer_state.json",  # a warm-up, and nothing declared
)


def test_other_rates_are_not_forced_into_a_schedule(logs: Ledger) -> None:
    known = rows(logs, "SELECT run_id, fits FROM schedules")
    assert {name: known[name] for name in NOT_UPDATES} == dict.fromkeys(NOT_UPDATES, (False,))


def test_no_schedule_is_said_to_miss_its_run(logs: Ledger) -> None:
    """Those that were broken off are told by 808."""
    stopped = found("ACC808", logs)
    assert not {*found("ACC305", logs)} - {*stopped}
    for code in ("ACC306", "ACC307", "ACC308"):
        assert not found(code, logs), code


EPOCHS = (
    "24.96 of 25 epochs: 1,907 micro-batches are no multiple of 4, "
    "and 11,900 updates of 4 take 47,600 of 47,675"
)
ENDS = {
    "sft-two-writers.trainer_log": "the run finished with 6,565 of 6,566 updates, epoch 6.995 at 6,560",
    "ccks-e25-lr1e-4.trainer_state.json": EPOCHS,
    "ccks-e25-lr1e-4.stdout.txt": EPOCHS,
    "bs-meg-n4.out": "the run broke off at 200 of 1,000 updates",
    "mds-watch-recollect-restart.log#2": "the record ends at 15 of 20 updates",
}
COMPLETE = (
    "ccks-e50.trainer_log",
    "mistral-translator.final.trainer_state.json",
    "whisper-lv2-ja.final.trainer_state.json",
    "chatglm2-prefix.final.trainer_state.json",
    "dschat-step1-opt1.3b-gbs128.log",
    "dschat-step2-dpo-opt350m-gbs32.log",  # 2,350 of 2,354, logged every ten
    "ds-full-epoch.logging",
    "mds-qwen7b-baseline-500.log",
)


def test_runs_that_ended_before_their_plan(logs: Ledger) -> None:
    messages = found("ACC808", logs)
    assert {name: messages.get(name) for name in ENDS} == {name: [text] for name, text in ENDS.items()}
    verdicts = judged("ACC808", logs)
    assert [name for name in COMPLETE if [row["fault"] for row in verdicts[name]] != [False]] == []
    checkpoints = [name for name in verdicts if "ckpt" in name]
    assert len(checkpoints) == 7
    assert not [name for name in checkpoints if verdicts[name]]
