"""Rule ACC809: what the number in a checkpoint's name counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import START, build_run, write_records, write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC809"
SKIPPED = (3, 7)


def marked(
    folder: Path,
    names: Mapping[str, Sequence[tuple[int, str]]],
    *,
    attempts: int = 16,
    skipped: Sequence[int] = (),
    ranks: int = 1,
    **more: Any,
) -> Path:
    """A run in windows of four with these names after these attempts, a family of names for each key."""
    marks = [
        {
            "kind": "checkpoint",
            "name": name,
            "attempt_id": attempt,
            "micro_step_id": 4 * attempt,
            "epoch": 1 + (attempt - 1) // 4,
            "time": START + 1.5 + attempt,
        }
        for family in names.values()
        for attempt, name in family
    ]
    updates = [{"skipped": attempt in skipped} for attempt in range(1, attempts + 1)]
    return write_run(folder / "run", updates, ranks, marks=marks, **more)


def by_name(run: Path, names: Mapping[str, Sequence[tuple[int, str]]]) -> dict[str, list[bool | None]]:
    """The verdicts on each family."""
    rows = judge(CODE, run)
    return {
        key: [row.fault for _, name in family for row in rows if f'"{name}"' in row.message]
        for key, family in names.items()
    }


def verdicts(folder: Path, *names: tuple[int, str], **more: Any) -> list[bool | None]:
    """The verdicts on one family of names."""
    return faults(CODE, marked(folder, {"": names}, **more))


def test_a_count_of_micro_steps_is_found(tmp_path: Path) -> None:
    row = the_fault(CODE, marked(tmp_path, {"": [(4, "out/checkpoint-16")]}))
    assert (row.attempt, row.rank, row.severity) == (4, 0, "warning")
    assert (row.observed, row.expected) == (16, 4)
    assert row.message == (
        'checkpoint "out/checkpoint-16" was written after 4 updates: 16 is the number of micro-steps'
    )


COUNTS: dict[str, Sequence[tuple[int, str]]] = {
    "attempts, skipped ones included": [(4, "step_4"), (8, "step_8")],
    "micro-steps": [(4, "iter_0000016.pt"), (8, "iter_0000032.pt")],
    "micro-steps, from 0": [(4, "15.ckpt"), (8, "31.ckpt")],
    "tokens": [(4, "step-1380"), (8, "step-2760")],
    "tokens, in thousands": [(4, "its 1k"), (8, "its 3k")],
    "samples": [(4, "ckpt-64"), (8, "ckpt-128")],
    "micro-steps, beside an epoch": [(4, "epoch=0-step=16.ckpt"), (8, "epoch=1-step=32.ckpt")],
    "micro-steps, after a date": [(4, "2024-05-01_12-30-05_step16")],
    "micro-steps, in a path": [(4, "v2/run-7/global_step16/mp_rank_00.pt")],
}


def test_other_counts_are_named(tmp_path: Path) -> None:
    """Two of the first eight attempts were skipped; 460 tokens and 16 samples a window."""
    run = marked(tmp_path, COUNTS, skipped=SKIPPED)
    assert by_name(run, COUNTS) == {key: [True] * len(family) for key, family in COUNTS.items()}
    rows = {row.message.split('"')[1]: row for row in judge(CODE, run)}
    for key, family in COUNTS.items():
        attempts = key.startswith("attempts")
        reading, severity = (key, "note") if attempts else (key.split(",")[0], "warning")
        for _, name in family:
            assert rows[name].message.endswith(f" is the number of {reading}")
            assert rows[name].severity == severity


RIGHT = {
    "updates": [(1, "step-1"), (2, "step-2")],
    "updates, after a skip": [(4, "iter 3"), (8, "iter 6")],
    "zero-padded": [(3, "ckpt_000002.pt")],
    "counted from 0": [(4, "iter_2"), (5, "iter_3")],
    "continued from another run": [(5, "step 1004"), (6, "step 1005")],
    "a folder of shards": [(8, "step-6/model-00001-of-00002.safetensors")],
    "the epoch, without a word": [(9, "model_3.pt")],
    "epochs": [(11, "model.3.pt"), (16, "model.4.pt")],
}


def test_right_names_pass(tmp_path: Path) -> None:
    found = by_name(marked(tmp_path, RIGHT, skipped=SKIPPED), RIGHT)
    assert found == {key: [False] * len(family) for key, family in RIGHT.items()}


NO_COUNT = (
    "last",
    "best.pt",
    "epoch-4",
    "ep16",
    "micro-step-16",
    "16_micro_steps",
    "attempt-16",
    "tokens_16",
    "16ksamples",
    "2024-05-16",
    "20240516_1216.pt",
    "v16",
    "loss=2.16",
    "best-0.16.pt",
    "seed16",
)


def test_names_without_a_count_of_steps_are_out_of_scope(tmp_path: Path) -> None:
    run = marked(tmp_path, {name: [(4, name)] for name in NO_COUNT})
    assert judge(CODE, run) == []


UNKNOWN = {
    "no word beside a single number": [(4, "model-16.pt")],
    "fits nothing": [(5, "step-1234")],
    "fits nothing, often": [(6, "run_17"), (7, "run_29")],
    "several numbers": [(8, "a-32-b-7-c-3")],
}


def test_what_fits_nothing_is_unknown_or_out_of_scope(tmp_path: Path) -> None:
    found = by_name(marked(tmp_path, UNKNOWN), UNKNOWN)
    several = found.pop("several numbers")
    assert several == []
    assert {value for values in found.values() for value in values} == {None}


def test_ranks_that_save_together_are_one(tmp_path: Path) -> None:
    rows = judge(CODE, marked(tmp_path, {"": [(4, "step-16"), (8, "step-32")]}, ranks=3))
    assert [(row.attempt, row.rank, row.fault) for row in rows] == [(4, 0, True), (8, 0, True)]


def test_a_resume_goes_on_counting(tmp_path: Path) -> None:
    """The second launch begins after update 16, the 64th micro-step, and redoes nothing."""
    run = marked(tmp_path, {"": [(16, "step-16")]}, close=False)
    marks = [
        {"kind": "checkpoint", "name": name, "attempt_id": 4, "micro_step_id": 80, "epoch": 5}
        for name in ("step-20", "ckpt-80")
    ]
    write_run(run, 4, 1, marks=marks, launch="bbbb", first_update=17, started_at=START + 1000)
    assert sorted((row.attempt, row.fault) for row in judge(CODE, run)) == [
        (4, False),
        (4, True),
        (16, False),
    ]


def test_steps_of_two_optimizers(tmp_path: Path) -> None:
    """The critic steps twice as often as the generator; names follow either, or both together."""
    names = {"g-4": False, "step-9": False, "ckpt_13": True}
    marks = [
        {"kind": "checkpoint", "name": name, "attempt_id": 4, "micro_step_id": 16, "time": START + 9.5}
        for name in names
    ]
    records = build_run([{"time": START + 2 * n} for n in range(1, 5)], 1, marks=marks)
    critic = build_run([{"optimizer": 1, "time": START + n} for n in range(1, 11)], 1)[0][1:-1]
    run = write_records(tmp_path / "run", {0: records[0][:-1] + critic + records[0][-1:]})
    row = the_fault(CODE, run)
    assert row.message == (
        'checkpoint "ckpt_13" was written after 4 updates: 13 is the number of steps of all optimizers'
    )
    assert faults(CODE, run).count(False) == 2


@pytest.mark.parametrize(
    ("skipped", "fault"),
    [
        pytest.param((), True, id="no skip"),
        pytest.param((3,), None, id="a skip that may lie before or after"),
    ],
)
def test_attempts_that_are_not_recorded(tmp_path: Path, skipped: tuple[int, ...], fault: bool | None) -> None:
    """Attempts 1, 5, 9 ... are recorded; the checkpoint follows attempt 3."""
    assert verdicts(tmp_path, (3, "step-12"), skipped=skipped, every=4) == [fault]


def test_a_run_without_ids_is_unknown_and_one_without_marks_out_of_scope(tmp_path: Path) -> None:
    mark = {"kind": "checkpoint", "name": "step-8", "attempt_id": 2, "micro_step_id": 8}
    run = write_run(tmp_path / "ids", [{"optimizer_update_id": None}] * 3, 1, marks=[mark])
    assert faults(CODE, run) == [None]
    assert faults(CODE, write_run(tmp_path / "marks", 3, 1)) == []
    before = write_run(tmp_path / "before", 3, 1, marks=[mark | {"attempt_id": 0, "name": "step-0"}])
    assert faults(CODE, before) == []
