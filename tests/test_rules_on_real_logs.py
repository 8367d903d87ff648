"""What the rules about trajectories, skips and counters find in logs that other people's trainings wrote."""

from __future__ import annotations

import pytest

from accumaudit.ledger.reader import Ledger
from tests.series import Row, faulty, judged

pytestmark = pytest.mark.slow  # a hundred logs are read, once


def found(code: str, logs: Ledger) -> dict[str, list[Row]]:
    return faulty(judged(code, logs))


def messages(code: str, logs: Ledger) -> dict[str, list[str]]:
    return {run_id: [row["message"] for row in rows] for run_id, rows in found(code, logs).items()}


def test_norms_that_stand_out_are_spikes(logs: Ledger) -> None:
    """One run in two formats; its norms scatter widely, and others of ten times the median come every day.

    mds-qwen7b-baseline-500 has 44 after 3.8 while it warms up; mds-qwen25-7b-finetune-20 has 20 records.
    """
    spikes = {run_id: [row["attempt_id"] for row in rows] for run_id, rows in found("ACC902", logs).items()}
    assert spikes == {"ds-full-epoch.logging": [56, 59], "swift-ds-full-epoch.stdout.log": [56, 59]}


def test_none_is_said_to_diverge(logs: Ledger) -> None:
    """bs-megds-ds-off is lost from its 32nd record on, too early to say so; a logbook quotes few."""
    assert found("ACC901", logs) == {}
    passed = [run_id for run_id, rows in judged("ACC901", logs).items() if rows]
    assert len(passed) >= 30


def test_only_placeholders_stand_where_numbers_should(logs: Ledger) -> None:
    """A norm of 0.000 in nine of ten quotes, a static scale of 12 and a loss of 0.09 may be what they are."""
    text = "the token count is 0 in 866 of 866 records: a placeholder, no measure"
    assert messages("ACC904", logs) == {"mistral-translator.trainer_log": [text]}


def test_no_batch_changes_and_no_norm_follows_the_tokens(logs: Ledger) -> None:
    assert found("ACC903", logs) == {}
    assert found("ACC108", logs) == {}
    asked = {run_id for run_id, rows in judged("ACC108", logs).items() if rows}
    assert asked == {"ds-full-epoch.logging", "swift-ds-full-epoch.stdout.log"}


def test_skips_that_a_scale_explains_are_no_storm(logs: Ledger) -> None:
    """139 of 7,360 are two for each time that the scale is tried again; bs-meg-perf-n16 still settles."""
    rows = judged("ACC704", logs)
    told = {run_id: row["message"] for run_id in rows for row in rows[run_id] if row["observed"]}
    assert told == {
        "bs-meg-n4.out": "19 of 200 attempts were skipped",
        "bs-meg-n8.out": "19 of 200 attempts were skipped",
        "bs-meg-n64.out": "19 of 60 attempts were skipped",
        "bs-meg-perf-n16.out": "3 of 3 attempts were skipped",
        "dschat-step1-opt1.3b-gbs128.log": "139 of 7360 attempts were skipped",
        "dschat-step2-dpo-opt350m-gbs32.log": "21 of 2350 attempts were skipped",
        "mhmoe-train.log": "97 of 17097 attempts were skipped",
    }
    assert found("ACC704", logs) == {}


def test_counters_that_advance_on_a_skip_are_told(logs: Ledger) -> None:
    """fairseq counts updates, and is silent."""
    advanced = {
        run_id: (rows[0]["observed"], rows[0]["expected"]) for run_id, rows in found("ACC804", logs).items()
    }
    assert advanced == {
        "bs-meg-n4.out": (190, 181),
        "bs-meg-n8.out": (190, 181),
        "bs-meg-n64.out": (50, 41),
        "bs-meg-perf-n16.out": (2, 0),
        "dschat-step1-opt1.3b-gbs128.log": (7350, 7217),
        "dschat-step2-dpo-opt350m-gbs32.log": (2340, 2323),
    }


def test_two_writers_are_told_once_a_step(logs: Ledger) -> None:
    """It also went on from step 5,000 after a restart: what was done again is a note."""
    rows = found("ACC806", logs)
    assert rows.keys() == {"sft-two-writers.trainer_log"}
    warnings = [row for row in rows["sft-two-writers.trainer_log"] if row["severity"] == "warning"]
    assert [row["attempt_id"] for row in warnings] == list(range(10, 6570, 10))
    assert warnings[0]["message"] == (
        "656 of 656 steps stand more than once in this log, with other losses: two processes wrote it; "
        "this one again on line 2"
    )
    notes = [row for row in rows["sft-two-writers.trainer_log"] if row["severity"] == "note"]
    assert notes[0]["message"] == (
        "step 5010 was made in launch 1 and again in a later one, which resumed from before it; "
        "in all it made steps 5010 to 5240 again"
    )
