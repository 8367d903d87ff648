"""Rule ACC805: averaged weights that take in the same parameters twice, or whose decay falls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import by_case, rows_by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC805"
WINDOW = "ZFBFBFBFB"
EVERY_MICRO_STEP = "ZFBEFBEFBEFBOE"


def words(*events: str | None, decay: float | None = 0.999) -> list[dict[str, Any]]:
    """Attempts with these words."""
    return [
        {
            "events": word,
            "skipped": "X" in (word or ""),
            "ema_decay": decay if word and "E" in word else None,
            "ema_updates": place if word and "E" in word else None,
        }
        for place, word in enumerate(events, 1)
    ]


def decays(*values: float | None) -> list[dict[str, Any]]:
    """Attempts after each of which the average was updated at this decay."""
    return [{"events": f"{WINDOW}OSE", "ema_decay": value, "ema_updates": 1} for value in values]


def test_an_update_for_each_micro_step_is_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", words(f"{WINDOW}OE", EVERY_MICRO_STEP), 1)
    row = the_fault(CODE, run)
    assert (row.attempt, row.rank, row.severity) == (2, 0, "error")
    assert (row.observed, row.expected) == (4, 1)
    assert row.message == (
        "the averaged weights were updated 4 times, 3 of them with no step since the one before; "
        "a decay of 0.999 acts as 0.996006"
    )


def test_an_update_after_a_skip_is_found(tmp_path: Path) -> None:
    row = the_fault(CODE, write_run(tmp_path / "run", words(f"{WINDOW}UOGSE", f"{WINDOW}UXGE"), 1))
    assert (row.attempt, row.severity) == (2, "error")
    assert row.message == (
        "the averaged weights were updated although the attempt was skipped: "
        "they took in the same parameters a second time"
    )


FAULTY = {
    "in the first window": (words(EVERY_MICRO_STEP), [True]),
    "at the top of each micro-step": (words("ZFBEFBEFBEFBOE", "ZFBEFBEFBEFBOE"), [True, True]),
    "between forward and backward": (words("ZFEBFEBFEBFEBO"), [True]),
    "after every second micro-step": (words("ZFBFBEFBFBOE"), [False]),
    "after every second micro-step, later": (words("ZFBFBEFBFBOE", "ZFBFBEFBFBOE"), [False, True]),
    "two averages in each micro-step": (words("ZFBEEFBEEFBEEFBOEE"), [True]),
    "two skips in a row": (words("ZFBOE", "ZFBXE", "ZFBXE", "ZFBOE"), [False, True, True, False]),
    "before the step, after a skip": (words("ZFBEO", "ZFBEX", "ZFBEO"), [False, False, True]),
    "a long window": (words("ZFBE{FBE}61FBEFBOE"), [True]),
}


def test_other_places_where_nothing_had_changed(tmp_path: Path) -> None:
    cases = {name: updates for name, (updates, _) in FAULTY.items()}
    found = by_case(CODE, run_of_cases(tmp_path, cases), cases)
    assert found == {name: verdicts for name, (_, verdicts) in FAULTY.items()}


HONEST: dict[str, list[dict[str, Any]]] = {
    "after every step": words(*[f"{WINDOW}OSE"] * 4),
    "without accumulation": words(*["ZFBOE"] * 4),
    "before the step": words(*[f"{WINDOW}EOS"] * 4),
    "between the last forward and its backward": words(*["ZFBFBFEBO"] * 4),
    "every third update": words("ZFBOE", "ZFBO", "ZFBO", "ZFBOE", "ZFBO"),
    "every tenth micro-step": words("ZFBFBFBFBO", "ZFBFBFBFBO", "ZFBFBEFBFBO", "ZFBFBFBFBO", "ZFBFBFBFBOE"),
    "from some update on": words("ZFBO", "ZFBO", "ZFBOE", "ZFBOE"),
    "a copy before the first update": words("EZFBOE", "ZFBOE"),
    "a copy before the first update, and before each step": words("EEZFBEO", "ZFBEO"),
    "two averages": words(*[f"{WINDOW}OEES", f"{WINDOW}OESE"] * 2),
    "held on skips": words("ZFBOE", "ZFBXG", "ZFBOE"),
    "rarely, and once on a skip": words("ZFBOE", "ZFBO", "ZFBO", "ZFBXE", "ZFBO"),
    "a first update that is skipped": words("ZFBXGE", "ZFBOGE"),
    "the other optimizer stepped": words("ZFBOEFoE", "ZFBOEFoE"),
    "another optimizer stepped between": words("ZFoEFBOE", "ZFoEFBOE"),
    "skipped, while another stepped": words("ZFBOoE", "ZFBXoE"),
    "a closure": words("(ZFBZFBZFB)OE", "(ZFBZFB)OE"),
    "a decay that rises": decays(0.1, 0.18, 0.25, 0.31, 0.99, 0.99),
    "a decay that was lowered once": decays(0.999, 0.999, 0.9, 0.9, 0.9),
    "equal weights": decays(None, None, None),
}
SILENT = {"a decay that was lowered once": {False, None}}


def test_it_leaves_alone(tmp_path: Path) -> None:
    found = by_case(CODE, run_of_cases(tmp_path, HONEST), HONEST)
    assert {case for case, verdicts in found.items() if not verdicts or True in verdicts} == set()
    assert {case: set(verdicts) for case, verdicts in found.items() if set(verdicts) != {False}} == SILENT


def test_a_decay_that_falls_is_found(tmp_path: Path) -> None:
    rows = judge(CODE, write_run(tmp_path / "run", decays(0.9, 0.82, 0.75, 0.75, 0.7), 1))
    assert [row.fault for row in rows] == [False, True, True, False, True]
    assert (rows[1].observed, rows[1].expected) == (0.82, 0.9)
    assert rows[1].message == (
        "the decay of the averaged weights fell from 0.9 to 0.82, 3 times in all, never rising"
    )


def test_decays_that_belong_to_two_averages_are_unknown(tmp_path: Path) -> None:
    """One is updated each time, the other every second time; the record has the last decay of each."""
    cases = {
        "by turns": decays(0.999, 0.99, 0.999, 0.99, 0.999, 0.99, 0.999, 0.99),
        "restarted": decays(0.1, 0.5, 0.9, 0.1, 0.5, 0.9, 0.1),
        "two falls": decays(0.9, 0.8, 0.7),
    }
    rows = rows_by_case(CODE, run_of_cases(tmp_path, cases), cases)
    fell = {case: [row.fault for row in found].count(None) for case, found in rows.items()}
    assert fell == {"by turns": 4, "restarted": 2, "two falls": 2}
    assert not any(row.fault for found in rows.values() for row in found)


@pytest.mark.parametrize(
    ("updates", "more", "verdicts"),
    [
        pytest.param(words("ZFBOE", None), {}, [False, None], id="a word that is missing"),
        pytest.param(words(*["ZFBFBEO"] * 7), {"every": 3}, [False, None, None], id="the attempt before"),
        pytest.param(words(*["ZFBFBOE"] * 7), {"every": 3}, [False] * 3, id="nothing asked of it"),
        pytest.param(words(*[EVERY_MICRO_STEP] * 7), {"every": 3}, [True] * 3, id="inside a window"),
    ],
)
def test_what_the_record_does_not_hold(
    tmp_path: Path, updates: Iterable[dict[str, Any]], more: dict[str, Any], verdicts: list[bool | None]
) -> None:
    assert faults(CODE, write_run(tmp_path / "run", updates, 1, **more)) == verdicts


def test_a_launch_begins_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", words("ZFBOE", "ZFBOE"), 1, close=False)
    again = words("EZFBEO", "ZFBEO")
    write_run(run, again, 1, launch="bbbb", first_update=3, started_at=1_700_001_000.0)
    assert faults(CODE, run) == [False] * 4


def test_without_averages_nothing_is_in_scope(tmp_path: Path) -> None:
    assert faults(CODE, write_run(tmp_path / "run", 3)) == []
    mixed = write_run(tmp_path / "mixed", words("ZFBO", "ZFBOE", "ZFBO"), 1)
    assert [row.attempt for row in judge(CODE, mixed)] == [2]
