"""Rule ACC810: a logged loss that is a structural factor away from the measured one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC810"
TOKENS = [100.0, 110.0, 120.0, 130.0]


def losses(count: int, *, seed: int = 0, steps: int = 4) -> list[list[float]]:
    """Losses of micro-steps, falling slowly, a window at a time."""
    generator = random.Random(seed)
    return [
        [3.0 * 0.98**place + generator.uniform(-0.2, 0.2) for _ in range(steps)] for place in range(count)
    ]


def mean(values: Sequence[float]) -> float:
    """The mean over the window's tokens."""
    tokens = TOKENS[: len(values)]
    return sum(value * n for value, n in zip(values, tokens, strict=True)) / sum(tokens)


def logging(
    log: Callable[[Sequence[float]], float | None], count: int = 8, **more: Any
) -> list[dict[str, Any]]:
    """Updates of a loop that logs this of its micro-steps' losses."""
    return [{"loss": own, "valid_tokens": TOKENS, "reported_loss": log(own), **more} for own in losses(count)]


FAULTY = {
    "mean / G": (logging(lambda own: mean(own) / 4), "1/G", "of all tokens"),
    "last / G": (logging(lambda own: own[-1] / 4), "1/G", "of the last micro-step"),
    "sum of micro-steps": (logging(sum), "G", "of all micro-steps"),
    "mean * G": (logging(lambda own: 4 * mean(own)), "G", "of all tokens"),
    "rounded": (logging(lambda own: round(mean(own) / 4, 2)), "1/G", "of all tokens"),
}


def test_structural_factors_are_found(tmp_path: Path) -> None:
    cases = {name: updates for name, (updates, _, _) in FAULTY.items()}
    run = run_of_cases(tmp_path, cases)
    assert by_case(CODE, run, cases) == {name: [True] * 8 for name in cases}
    texts = {row.optimizer: row.message for row in judge(CODE, run)}
    for number, (_, factor, what) in enumerate(FAULTY.values()):
        assert texts[number].endswith(f"in all 8 reports it is {factor} times the mean {what}")


def test_the_message(tmp_path: Path) -> None:
    update = {"loss": [2.0] * 4, "valid_tokens": TOKENS, "reported_loss": 0.5}
    row = judge(CODE, write_run(tmp_path / "run", [update] * 5, 1))[0]
    assert (row.attempt, row.rank, row.severity, row.observed, row.expected) == (1, 0, "warning", 0.25, 1)
    assert row.message == (
        "the logged loss is 0.5 where 2 was measured, and the tokens' weights add up to 1: "
        "in all 5 reports it is 1/G times the mean of all tokens"
    )


def smoothed(factor: float = 0.9) -> Callable[[Sequence[float]], float]:
    """The mean, smoothed over the updates."""
    state: list[float] = []

    def log(own: Sequence[float]) -> float:
        state.append(factor * state[-1] + (1 - factor) * mean(own) if state else mean(own))
        return state[-1]

    return log


def averaged(updates: int) -> Callable[[Sequence[float]], float | None]:
    """The mean of several updates, each time that so many have gone by; nothing in between."""
    since: list[float] = []

    def log(own: Sequence[float]) -> float | None:
        since.append(mean(own))
        return sum(since[-updates:]) / updates if len(since) % updates == 0 else None

    return log


def test_honest_logs_pass(tmp_path: Path) -> None:
    cases = {
        "the mean": logging(mean),
        "the mean of means": logging(lambda own: sum(own) / 4),
        "the last": logging(lambda own: own[-1]),
        "the largest": logging(max),
        "rounded": logging(lambda own: round(mean(own), 1)),
        "every third": logging(averaged(3), 24),
        "no accumulation": [
            {"loss": own[:1], "valid_tokens": [100.0], "accumulation_steps": 1, "reported_loss": own[0]}
            for own in losses(8)
        ],
    }
    found = by_case(CODE, run_of_cases(tmp_path, cases), cases)
    assert {case for case, verdicts in found.items() if set(verdicts) != {False}} == set()
    assert len(found["every third"]) == 8


def test_what_follows_no_factor_is_unknown(tmp_path: Path) -> None:
    other, slow = losses(8, seed=1), smoothed()
    cases = {
        "smoothed from far above": logging(smoothed(0.99), 60),
        "smoothed, and divided": logging(lambda own: slow(own) / 4, 30),
        "another loss": logging(lambda own: 7.5 - own[0]),
        "another term with it": logging(lambda own: mean(own) + 0.9),
        "a quarter by chance, once": [
            update | {"reported_loss": mean(update["loss"]) / 4 if place == 3 else mean(other[place]) / 3}
            for place, update in enumerate(logging(mean))
        ],
        "too few to tell": logging(lambda own: mean(own) / 4, 4),
    }
    found = by_case(CODE, run_of_cases(tmp_path, cases), cases)
    assert {case for case, verdicts in found.items() if True in verdicts} == set()
    assert set(found["too few to tell"]) == {None}


def on_ranks(log: Callable[[list[float]], float], count: int = 8) -> list[dict[str, Any]]:
    """Updates of two ranks, of which rank 0 logs this of the means over each rank's tokens."""
    found = []
    for own, other in zip(losses(count), losses(count, seed=5), strict=True):
        fields = {"loss": other, "valid_tokens": TOKENS, "reported_loss": None}
        report = {"loss": own, "valid_tokens": TOKENS, "reported_loss": log([mean(own), mean(other)])}
        found.append(report | {"on": {1: fields}})
    return found


@pytest.mark.parametrize(
    ("log", "factor"),
    [
        pytest.param(sum, "W", id="the sum of the ranks"),
        pytest.param(lambda ranks: sum(ranks) / 4, "1/W", id="divided twice"),
        pytest.param(lambda ranks: 2 * ranks[0], "W", id="this rank's, times their number"),
        pytest.param(lambda ranks: sum(ranks) / 2, None, id="the mean of the ranks"),
        pytest.param(lambda ranks: ranks[0], None, id="this rank's"),
        pytest.param(lambda ranks: ranks[1], None, id="the other rank's"),
    ],
)
def test_ranks(tmp_path: Path, log: Callable[[list[float]], float], factor: str | None) -> None:
    rows = judge(CODE, write_run(tmp_path / "run", on_ranks(log)))
    assert {(row.rank, row.fault) for row in rows} == {(0, factor is not None)}
    if factor:
        assert f"reports it is {factor} times the mean" in rows[0].message


def test_a_factor_that_two_names_fit_is_called_by_both(tmp_path: Path) -> None:
    halves = [{"loss": own[:2], "valid_tokens": TOKENS[:2]} for own in losses(6)]
    updates = [half | {"reported_loss": mean(half["loss"]) / 2, "on": {1: half}} for half in halves]
    rows = judge(CODE, write_run(tmp_path / "run", updates, accumulation_steps=2))
    assert "it is 1/G or 1/W times the mean of all tokens" in rows[0].message


def test_a_short_window_counts_its_own_micro_steps(tmp_path: Path) -> None:
    tails = [own if place % 4 else own[:2] for place, own in enumerate(losses(8))]
    updates = [{"loss": own, "valid_tokens": TOKENS[: len(own)], "reported_loss": sum(own)} for own in tails]
    assert faults(CODE, write_run(tmp_path / "run", updates, 1)) == [True] * 8


@pytest.mark.parametrize(
    ("more", "run_fields", "verdicts"),
    [
        pytest.param({"total_weight": 0.25}, {}, set(), id="wrong weights are another fault"),
        pytest.param({"loss_weight": None}, {}, {None}, id="no weights"),
        pytest.param({"loss": None}, {}, {None}, id="no loss"),
        pytest.param({}, {"microbatch_detail": "sums"}, {None}, id="sums"),
        pytest.param({"loss_unobserved": 0.2}, {}, {None}, id="a part of the loss was not seen"),
        pytest.param({"skipped": True}, {}, set(), id="skipped"),
        pytest.param({"reported_loss": None}, {}, set(), id="nothing logged"),
    ],
)
def test_out_of_scope_or_unknown(
    tmp_path: Path, more: dict[str, Any], run_fields: dict[str, Any], verdicts: set[bool | None]
) -> None:
    updates = [update | more for update in logging(lambda own: mean(own) / 4)]
    assert set(faults(CODE, write_run(tmp_path / "run", updates, 1, **run_fields))) == verdicts


def test_ranks_that_do_not_write_leave_it_unknown(tmp_path: Path) -> None:
    updates = [update | {"on": {1: None}} for update in logging(lambda own: mean(own) / 4)]
    assert set(faults(CODE, write_run(tmp_path / "run", updates, 2, recorded_ranks=[0]))) == {None}
