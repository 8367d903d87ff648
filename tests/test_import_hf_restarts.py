"""A restart goes back and does again what was done; a second writer goes back by turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from accumaudit.importers.restarts import with_restarts

STEPS = list(range(10, 1010, 10))


def starts(steps: Sequence[int]) -> list[tuple[int, int]]:
    """The step with which the log starts again, and the updates that were done before."""
    return [
        (step, resumed) for step, resumed in with_restarts(steps, lambda step: step) if resumed is not None
    ]


def in_turns(lag: int) -> list[int]:
    """Two writers of the same records, the second some records behind."""
    order = sorted([*((place, 0) for place in range(100)), *((place + lag, 1) for place in range(100))])
    return [STEPS[place - lag * second] for place, second in order]


def in_bursts(length: int) -> list[int]:
    """Two writers that give on their text when a buffer is full."""
    return [step for first in range(0, 100, length) for step in STEPS[first : first + length] * 2]


@pytest.mark.parametrize("lag", [0, 1, 2, 3, 7, 20])
def test_a_writer_behind_is_no_restart(lag: int) -> None:
    assert starts(in_turns(lag)) == []


@pytest.mark.parametrize("writers", [3, 4, 8])
def test_more_writers_of_the_same_are_no_restart(writers: int) -> None:
    assert starts([step for step in STEPS for _ in range(writers)]) == []
    assert starts([*STEPS[:1] * writers, *STEPS[1:]]) == [(10, 0)] * (writers - 1)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 10])
def test_writers_that_hold_back_their_text_are_no_restart(length: int) -> None:
    assert starts(in_bursts(length)) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (STEPS[:50] + STEPS[40:], [(410, 400)]),
        (STEPS[:50] + STEPS[48:], [(490, 480)]),
        (STEPS[:50] + STEPS, [(10, 0)]),
        (STEPS[:2] + STEPS[:2], [(10, 0)]),
        (STEPS[:1] + STEPS, [(10, 0)]),
        (STEPS[:50] + STEPS[40:44], [(410, 400)]),
        (STEPS[:50] + STEPS[45:48] + STEPS[45:], [(460, 450), (460, 450)]),
        (STEPS[:12] + STEPS[10:17] + STEPS[15:23] + STEPS[20:], [(110, 100), (160, 150), (210, 200)]),
        (list(range(1, 21)) * 4, [(1, 0)] * 3),
        (STEPS[:50] + STEPS[41::2], [(420, 410)]),
    ],
)
def test_what_is_done_again_is_a_restart(steps: list[int], expected: list[tuple[int, int]]) -> None:
    assert starts(steps) == expected


def test_two_writers_may_restart() -> None:
    steps = in_turns(2)[:100] + [step for step in STEPS[30:] for _ in range(2)]
    assert starts(steps) == [(310, 300)]


def test_rows_that_are_no_updates_are_passed_on_in_their_place() -> None:
    rows = [10, None, 20, None, 10, 20, 30]
    assert list(with_restarts(rows, lambda row: row)) == [
        *[(10, None), (None, None), (20, None), (None, None)],
        *[(10, 0), (20, None), (30, None)],
    ]
