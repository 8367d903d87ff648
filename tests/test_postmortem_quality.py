"""What is said of the record itself, and what would have let the rules judge that could not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import NOT_CHECKED, RunReport, Verdict
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import Ledger, read_ledger
from accumaudit.outputs.words import absent_ranks
from accumaudit.postmortem.model import Unchecked
from accumaudit.postmortem.quality import quality, unchecked
from accumaudit.postmortem.remedies import remedy
from accumaudit.testing.records import START, build_run, write_records, write_run
from tests.findings import report_with

NONE: dict[str, Any] = {"on": {0: None, 1: None}}
"""An attempt that no rank recorded."""


def write_all(folder: Path) -> None:
    """A run for each thing that a record can suffer from."""
    write_run(folder / "whole", 3)
    write_run(folder / "rank lacks", [{}, {"on": {1: None}}, {}, {"on": {1: None}}], ranks=2)
    write_run(folder / "holes", [{}, NONE, {}, NONE, NONE, {}, {}], ranks=2)
    write_run(folder / "no start", [NONE, NONE, {}], ranks=2)
    write_run(folder / "sparse", 7, ranks=2, every=3)
    write_run(folder / "redone", 4, close=False)
    write_run(
        folder / "redone", 3, launch="bbbb", first_update=3, resumed_from_update=2, started_at=START + 1000
    )
    records = build_run(3)
    for rows in (records, {0: records[0][2:3]}):
        write_records(folder / "copied", rows)
    write_run(folder / "clock", [{}, {"time": START + 500.0}, {"time": START + 20.0}, {}])
    write_run(folder / "killed", 2, marks=[{"kind": "close", "rank": 0}], close=False)
    write_run(folder / "absent", 2, ranks=2, world_size=4)
    write_run(folder / "torn", 2, ranks=1)
    with (folder / "torn/rank-00/00000.aaaa.jsonl").open("a") as file:
        file.write('{"record": "other"}\n[1]\n[2]\n{"record": "upd')
    (folder / "table.csv").write_text(
        "optimizer_update_id,learning_rate\n"
        + "".join(f"{update},0.1\n" for update in (1, 2, 3, 4, 5, 6, 90, 91))
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """The remarks of each run."""
    folder = tmp_path_factory.mktemp("logs")
    write_all(folder)
    with read_ledger([folder]) as ledger:
        report = audit(ledger, load_rules(), select=["ACC311"])
        return {run.run_id: quality(ledger.connection, run) for run in report.runs}


def test_nothing_is_said_of_a_whole_record(told: dict[str, tuple[str, ...]]) -> None:
    assert told["whole"] == ()


def test_attempts_that_a_rank_lacks_are_counted(told: dict[str, tuple[str, ...]]) -> None:
    assert told["rank lacks"] == (
        "Rank 1 has no record of 2 attempts that other ranks recorded; the first is attempt 2.",
    )


def test_attempts_that_nobody_recorded_are_holes(told: dict[str, tuple[str, ...]]) -> None:
    assert told["holes"] == (
        "3 attempts without any record: no rank wrote one between attempts 3 and 6, "
        "the longest of 2 such holes.",
    )
    assert told["no start"] == ("2 attempts without any record: no rank wrote one before attempt 3.",)


def test_attempts_that_were_not_to_be_recorded_are_no_hole(told: dict[str, tuple[str, ...]]) -> None:
    assert told["sparse"] == ("Every 3rd attempt was recorded; those between are not checked.",)


def test_what_a_later_launch_did_again_is_named(told: dict[str, tuple[str, ...]]) -> None:
    assert told["redone"] == (
        "2 attempts of launch 1 (updates 3 to 4) were done again by a later launch and are left out here.",
        "Launch 1 has no closing record, as where it was killed or still runs.",
    )


def test_second_records_are_counted(told: dict[str, tuple[str, ...]]) -> None:
    assert told["copied"] == (
        "1 record stands in the files a second time, of 1 rank; the first of each is read.",
    )


def test_a_clock_that_goes_back_is_told(told: dict[str, tuple[str, ...]]) -> None:
    assert told["clock"] == ("The clock goes back 2 times, first at attempt 3, and by at most 480 s.",)


def test_ranks_without_an_end_are_named(told: dict[str, tuple[str, ...]]) -> None:
    assert told["killed"] == (
        "Launch 1 has no closing record on rank 1, as where it was killed or still runs.",
    )


def test_ranks_that_wrote_nothing_are_named(told: dict[str, tuple[str, ...]]) -> None:
    assert told["absent"] == ("No record of ranks 2-3, of 4 in all.",)


def test_a_record_may_name_any_number_of_ranks() -> None:
    assert absent_ranks(run(ranks=(0, 2, 6), world_size=2**50)) == f"1, 3-5, 7-{2**50 - 1}"
    assert absent_ranks(run(ranks=(-3, 0), world_size=1)) == ""
    assert absent_ranks(run(ranks=(0,), world_size=8, recorded_ranks=(0, 4, 5))) == "4-5"


def test_lines_that_are_no_records_are_counted_by_kind(told: dict[str, tuple[str, ...]]) -> None:
    (text,) = told["torn"]
    assert text.startswith("4 places could not be read and were left out: not a JSON object (2); ")
    assert {"unknown kind of record (1)", "torn (1)"} < set(text.rstrip(".").split("; "))


def test_a_log_of_another_program_is_told_by_its_steps(told: dict[str, tuple[str, ...]]) -> None:
    assert told["table.csv"] == (
        "The log holds no record between steps 6 and 90.",
        "Nothing in the log says that the run has ended.",
    )


# what would have shown it


def run(**fields: Any) -> RunReport:
    return replace(report_with("first", verdict("ACC101", "")), **fields)


def verdict(code: str, reason: str) -> Verdict:
    return Verdict(
        code=code,
        name=f"rule-{code}",
        severity="error",
        status=NOT_CHECKED,
        judged=0,
        reason=reason,
        finding=None,
        summary="",
        fix="",
    )


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "`reported_loss` was never declared or reported",
            "`reported_loss` is told with `audit.report(loss=...)`",
        ),
        (
            "`warmup_updates` was never declared or reported",
            "`warmup_updates` is told with `audit.declare(warmup_updates=...)`",
        ),
        (
            "`gradient_divisor` is null in 3 of 9 records",
            "`gradient_divisor` is recorded with `attach(gradient_divisor=...)`",
        ),
        (
            "no checkpoint was marked with a number in its name",
            'a checkpoint is told with `audit.mark("checkpoint", name=...)`',
        ),
        ("no gradient was clipped by a finite limit", None),
        ("a cause was found by ACC101", None),
        ("ignored: `reported_loss` is wrong on purpose", None),
        ("the ledger holds no attempt of several ranks that reduce together", None),
        ("no attempt directly followed another", None),
    ],
)
def test_the_remedy_is_what_the_loop_can_do(reason: str, expected: str | None) -> None:
    assert remedy(reason, run(), summed=False) == expected


def test_fields_of_one_loss_have_one_remedy() -> None:
    reason = "`valid_tokens` was never recorded and `loss_weight` was never recorded"
    told = remedy(reason, run(), summed=False)
    assert told is not None
    assert told.count("audit.observe_loss(loss, valid_tokens=...)") == 1
    assert remedy(reason, run(), summed=True) == (
        'an entry for each micro-step is kept with `attach(microbatch_detail="full")`'
    )


def test_what_was_left_out_of_the_record_on_purpose_is_the_remedy() -> None:
    neighbours, ranks = "no attempt directly followed another", "one rank alone had tokens of its own"
    sparse, first = run(recorded=5), run(recorded_ranks=(0,), world_size=8)
    assert remedy(neighbours, sparse, summed=False) == (
        "attempts that follow each other are recorded with `attach(every=1)`"
    )
    assert remedy(ranks, first, summed=False) == (
        'ranks are compared where all of them write: `attach(ranks="all")`'
    )
    assert remedy(ranks, run(world_size=8), summed=False) == (
        "ranks are compared where the files of all 8 are read"
    )


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("loss weights", "attach accumaudit to the training: its ledger holds this"),
        (
            "token counts",
            "attach accumaudit to the training: its ledger holds this, "
            "as the loop tells it with `audit.report(global_valid_tokens=...)`",
        ),
        ("length of the warm-up", "`--args FILE` reads the hyperparameters of the run"),
        ("updates", "give the log that has a line for each update, or attach accumaudit to the training"),
    ],
)
def test_the_remedy_of_another_programs_log(noun: str, expected: str) -> None:
    log = run(format="nanogpt", title="nanoGPT's log")
    assert remedy(f"nanoGPT's log holds no {noun}", log, summed=False) == expected


def test_the_columns_of_a_table_can_be_named() -> None:
    table = run(format="mapped", title="the table")
    assert remedy("the table holds no learning rates", table, summed=False) == (
        "where a column holds it, name it: `--map FIELD=COLUMN`"
    )
    assert remedy("the table holds no order of events", table, summed=False) == (
        "attach accumaudit to the training: its ledger holds this"
    )


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    folder = tmp_path_factory.mktemp("summed")
    with read_ledger([write_run(folder / "first", 1, ranks=1, microbatch_detail="sums")]) as ledger:
        yield ledger


def test_rules_are_grouped_by_reason_and_what_can_be_done_stands_first(summed: Ledger) -> None:
    lists, clips, cause = (
        "`loss_weight` was never recorded",
        "no gradient was clipped by a finite limit",
        "a cause was found by ACC101",
    )
    verdicts = [
        verdict("ACC404", clips),
        verdict("ACC107", lists),
        verdict("ACC401", clips),
        verdict("ACC104", cause),
        replace(verdict("ACC105", ""), status="passed"),
    ]
    found = unchecked(summed.connection, run(verdicts=tuple(verdicts)))
    assert [(one.reason, [rule.code for rule in one.verdicts]) for one in found] == [
        (lists, ["ACC107"]),
        (clips, ["ACC401", "ACC404"]),
        (cause, ["ACC104"]),
    ]
    assert [one.remedy is None for one in found] == [False, True, True]
    assert isinstance(found[0], Unchecked)
    assert "microbatch_detail" in json.dumps(found[0].remedy)
