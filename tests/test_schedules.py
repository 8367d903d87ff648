"""The position of a schedule, found again from the rates that trainers log."""

from __future__ import annotations

import bisect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accumaudit.schedules.inversion import Rates
from accumaudit.schedules.precision import half_of_last_digit
from accumaudit.schedules.recognition import Declared, Fit, recognise
from accumaudit.schedules.shapes import CURVES, WARM_UPS, Schedule
from tests.rates import (
    Logged,
    decimals,
    deepspeed_logarithmic,
    digits,
    fairseq_inverse_sqrt,
    llmc_cosine,
    logged,
    megatron_cosine,
    nanogpt,
    stable_then,
    torch_polynomial,
    transformers_cosine,
    transformers_linear,
)

SKIPS = (7, 512, 513, 968, 1_104, 2_081, 4_052)


def rates_of(rows: Logged) -> Rates:
    attempts = np.array([attempt for attempt, _ in rows], dtype=np.float64)
    return Rates.of(attempts, attempts, np.array([rate for _, rate in rows], dtype=np.float64))


def recognised(rows: Logged, **declared: Any) -> Fit | None:
    return recognise(rates_of(rows), Declared(**declared))


def behind(rows: Logged, fit: Fit | None) -> dict[int, int]:
    """By how many steps the schedule is behind, from which step on."""
    assert fit is not None
    found: dict[int, int] = {}
    for (attempt, _), position in zip(rows, fit.positions, strict=True):
        if not math.isnan(position):
            found.setdefault(attempt - int(position), attempt)
    return {attempt: steps for steps, attempt in found.items()}


def expected(rows: Logged, skips: tuple[int, ...] = SKIPS) -> dict[int, int]:
    """The same, from the skips that were made; the first record that tells after each."""
    found: dict[int, int] = {}
    for attempt, _ in rows:
        found.setdefault(bisect.bisect_right(skips, attempt), attempt)
    return {attempt: steps for steps, attempt in found.items()}


@pytest.mark.parametrize("curve", CURVES)
@given(
    start=st.integers(0, 10**5),
    length=st.integers(2, 10**6),
    at=st.floats(0.001, 0.999),
    minimum=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_a_rate_in_the_fall_leads_back_to_its_position(
    curve: str, start: int, length: int, at: float, minimum: float
) -> None:
    schedule = Schedule(
        shape=curve, curve=curve, peak=3e-4, start=start, length=length, minimum=3e-4 * minimum
    )
    position = np.array([start + max(1.0, np.floor(at * length))])
    assert schedule.position_in_fall(schedule.falling(position)) == pytest.approx(position, abs=1e-3)


@pytest.mark.parametrize("warm_up", WARM_UPS)
@given(length=st.integers(2, 10**5), at=st.floats(0, 0.99))
def test_a_rate_in_the_warm_up_leads_back_to_its_position(warm_up: str, length: int, at: float) -> None:
    schedule = Schedule(shape="linear", curve="linear", peak=3e-4, warmup=length, warm_up=warm_up)
    position = np.array([np.floor(at * length)])
    assert schedule.position_in_rise(schedule.rising(position)) == pytest.approx(position, abs=1e-3)


@pytest.mark.parametrize(
    ("numbers", "errors"),
    [
        ([1.499e-4, 1e-5, 2.253e-6], [5e-8, 5e-9, 5e-10]),
        ([0.00002, 0.00001333, 0.00000067], [5e-9, 5e-9, 5e-9]),
        ([0.0, 0.5, 0.25], [0.005, 0.005, 0.005]),
        ([1200.0, 100.0], [50.0, 50.0]),
        ([9.99998257609161e-05], [9.99998257609161e-05 * 2.0**-52]),
    ],
    ids=["digits", "decimals", "halves", "hundreds", "double"],
)
def test_the_print_tells_how_exact_it_is(numbers: list[float], errors: list[float]) -> None:
    assert half_of_last_digit(np.array(numbers)).tolist() == pytest.approx(errors)


def test_single_precision_is_known_though_it_has_many_digits() -> None:
    rates = np.array([1e-5, 1.37e-5, 2e-5 / 3], dtype=np.float32).astype(np.float64)
    assert half_of_last_digit(rates).tolist() == pytest.approx((rates * 2.0**-24).tolist())


@pytest.mark.parametrize("habit", [0, 1])
@pytest.mark.parametrize("known", [True, False], ids=["total known", "total unknown"])
@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        (transformers_linear(2e-5, 100, 5_000), "linear"),
        (transformers_linear(2e-5, 0, 5_000), "linear"),
        (transformers_cosine(2e-5, 100, 5_000), "cosine"),
        (transformers_cosine(2e-5, 0, 5_000), "cosine"),
        (nanogpt(6e-4, 100, 5_000, 6e-5), "cosine"),
        (llmc_cosine(6e-4, 100, 5_000), "cosine"),
        (deepspeed_logarithmic(1e-3, 100, 5_000), "linear"),
    ],
    ids=[
        "linear",
        "linear without warm-up",
        "cosine",
        "cosine without warm-up",
        "nanogpt",
        "llm.c",
        "deepspeed",
    ],
)
def test_a_schedule_is_recognised_and_its_skips_are_found_where_they_are(
    schedule: Any, shape: str, known: bool, habit: int
) -> None:
    rows = logged(schedule, 4_900, habit=habit, skips=SKIPS[1:])
    fit = recognised(rows, **({"updates": 5_000} if known else {}))
    assert fit is not None
    assert fit.schedule.shape == shape
    lost = behind(rows, fit)
    first = min(lost.values())
    # One step more or less may be the habit, or a way of counting the warm-up.
    assert first in (0, 1)
    assert {at: steps - first for at, steps in lost.items() if steps > first} == {
        at: steps for at, steps in expected(rows, SKIPS[1:]).items() if steps > 0
    }
    assert fit.schedule.updates is not None
    assert abs(fit.schedule.updates - 5_000) <= 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    skips=st.sets(st.integers(20, 2_900), max_size=8),
    shape=st.sampled_from([transformers_linear, transformers_cosine]),
    warmup=st.sampled_from([0, 30, 300]),
    every=st.sampled_from([1, 5, 10]),
    peak=st.sampled_from([1e-3, 2e-5, 1.5e-4]),
)
def test_skips_at_any_place_are_found_exactly(
    skips: set[int], shape: Any, warmup: int, every: int, peak: float
) -> None:
    rows = logged(shape(peak, warmup, 3_000), 2_990, every=every, skips=skips)
    fit = recognise(rates_of(rows), Declared(updates=3_000, warm_up="from zero"))
    assert fit is not None
    skipped = sorted(skips)
    for (attempt, _), position in zip(rows, fit.positions, strict=True):
        assert math.isnan(position) or attempt - position == bisect.bisect_right(skipped, attempt)
    assert np.count_nonzero(np.isnan(fit.positions)) <= 2


def test_what_was_lost_before_the_first_record_counts() -> None:
    rows = logged(transformers_linear(1e-5, 500, 5_000), 5_000, every=25, skips=(3, 11, 111, 360))
    assert behind(rows, recognised(rows, updates=5_000)) == {25: 2, 125: 3, 375: 4}


def test_an_inverse_root_is_recognised_in_six_digits() -> None:
    rows = logged(fairseq_inverse_sqrt(6e-4, 400), 17_000, every=50, printed=digits(6))
    fit = recognised(rows)
    assert fit is not None
    assert (fit.schedule.shape, fit.schedule.warmup, fit.schedule.updates) == ("inverse_sqrt", 400, None)
    assert behind(rows, fit) == {50: 0}


@pytest.mark.parametrize(
    ("curve", "fall"),
    [
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: 0.5 * (1 + math.cos(math.pi * done))),
        ("minus_sqrt", lambda done: 1 - math.sqrt(done)),
    ],
)
def test_the_last_decay_of_wsd_tells_and_its_plateau_does_not(curve: str, fall: Any) -> None:
    rows = logged(stable_then(fall, 3e-4, 100, 5_000, 1_000), 5_000, skips=(2_000, 4_500))
    fit = recognised(rows, updates=5_000, warm_up="from zero")
    assert fit is not None
    assert (fit.schedule.shape, fit.schedule.curve, fit.schedule.start) == ("wsd", curve, 4_000)
    told = {attempt for (attempt, _), at in zip(rows, fit.positions, strict=True) if not math.isnan(at)}
    assert not [attempt for attempt in told if 120 < attempt <= 4_000]
    assert behind(rows, fit) == {10: 0, 4_010: 1, 4_500: 2}


def test_a_log_may_begin_on_the_plateau() -> None:
    rows = logged(stable_then(lambda done: 1 - done, 1e-3, 7, 88, 30), 80, habit=1)
    fit = recognised(rows, shape="wsd", warmup=7, updates=88, decay=30, peak=1e-3)
    assert behind(rows, fit) == {60: 1}


def test_what_was_lost_on_the_plateau_is_told_by_a_declared_total() -> None:
    schedule = stable_then(lambda done: 0.5 * (1 + math.cos(math.pi * done)), 1e-3, 7, 200, 30)
    rows = logged(schedule, 200, every=1, skips=(41, 60, 100, 196))
    assert behind(rows, recognised(rows, updates=200, warm_up="from zero")) == {1: 0, 174: 3, 196: 4}


def test_what_was_lost_in_the_warm_up_is_told_without_a_total() -> None:
    skips = (16, 85, 145)
    rows = logged(transformers_cosine(1e-3, 20, 300), 300, every=1, habit=1, skips=skips)
    fit = recognised(rows)
    assert fit is not None
    assert (fit.schedule.start, fit.schedule.updates) == (20, 300)
    assert behind(rows, fit) == {1: 1, 17: 2, 86: 3, 146: 4}


def test_few_digits_prove_no_loss_where_another_length_has_them_all() -> None:
    # Each step is one of the last digit: a line of 105 and one of 104 that waits once look the same.
    rows = logged(stable_then(lambda done: 1 - done, 1e-3, 20, 300, 100), 300, every=1, habit=1)
    assert recognised([(step, float(f"{rate:.6g}")) for step, rate in rows]) is None


def test_a_plateau_is_no_part_of_a_line_that_was_lost() -> None:
    rows = logged(lambda step: 5e-5 * min(1, (1_907 - step) / 635), 1_907, every=25)
    fit = recognised(rows, updates=1_907)
    assert fit is None or len(behind(rows, fit)) == 1


def test_a_line_tells_no_minimum_before_it_has_come_there() -> None:
    to_a_tenth = [(step, digits(4)(3e-4 * (1 - 0.9 * step / 2_900))) for step in range(5, 1_801, 5)]
    assert recognised(to_a_tenth) is None
    to_the_end = [(step, digits(4)(3e-4 * (1 - 0.9 * step / 2_900))) for step in range(5, 2_901, 5)]
    fit = recognised(to_the_end, updates=2_900)
    assert fit is not None
    assert fit.schedule.minimum == pytest.approx(3e-5)


def test_a_polynomial_is_found_where_it_is_declared() -> None:
    rows = logged(torch_polynomial(1e-3, 5_000, 2.0), 5_000)
    assert recognised(rows, updates=5_000) is None
    assert behind(rows, recognised(rows, shape="polynomial", power=2.0, updates=5_000)) == {10: 0}


MEGATRON: dict[str, Any] = {"shape": "cosine", "updates": 800, "warmup": 8, "peak": 1.5e-4, "minimum": 1e-5}


def test_a_declared_schedule_is_followed_in_few_records_of_four_digits() -> None:
    schedule = megatron_cosine(1.5e-4, 8, 800, 1e-5)
    rows = logged(schedule, 200, skips=range(1, 19), printed=digits(4))
    attempts = np.array([attempt for attempt, _ in rows], dtype=np.float64)
    updates = np.array([max(0, attempt - 18) for attempt, _ in rows], dtype=np.float64)
    rates = np.array([rate for _, rate in rows])
    fit = recognise(Rates.of(attempts, updates, rates), Declared(**MEGATRON))
    assert fit is not None
    told = ~np.isnan(fit.positions)
    assert np.array_equal(fit.positions[told], updates[told])
    assert 0 < np.count_nonzero(told) < len(rows)  # near the peak four digits do not tell


@pytest.mark.parametrize("printed", [digits(3), decimals(8)], ids=["3 digits", "8 decimals"])
def test_where_the_print_is_too_coarse_no_position_is_given(printed: Any) -> None:
    schedule = transformers_cosine(2e-5, 15, 300)
    rows = logged(schedule, 300, every=1, printed=printed)
    fit = recognised(rows, updates=300)
    assert fit is not None
    for (attempt, rate), position in zip(rows, fit.positions, strict=True):
        if not math.isnan(position):
            assert position == attempt
            others = {printed(schedule(attempt + off)) for off in (-1, 1)}
            assert rate not in others
    assert np.isnan(fit.positions).any()


@pytest.mark.slow
def test_six_decimals_of_a_long_run_tell_nothing() -> None:
    rows = logged(llmc_cosine(6e-4, 700, 19_560), 19_560, every=1, habit=1, printed=decimals(6))
    assert recognised(rows) is None
    declared: dict[str, Any] = {
        "shape": "cosine",
        "updates": 19_560,
        "warmup": 700,
        "peak": 6e-4,
        "minimum": 0.0,
    }
    fit = recognised(rows, **declared)
    assert fit is None or not np.count_nonzero(~np.isnan(fit.positions))


def every_ten(rate: Any) -> Logged:
    return [(attempt, rate(attempt)) for attempt in range(10, 5_001, 10)]


COSINE_OF_50 = transformers_cosine(1e-3, 0, 50)


@pytest.mark.parametrize("updates", [None, 5_000], ids=["total unknown", "total known"])
@pytest.mark.parametrize(
    "rows",
    [
        every_ten(lambda attempt: 1e-3 * 0.5 ** (attempt // 600)),
        every_ten(lambda attempt: 5e-4 * (1 + math.cos(math.pi * (attempt % 1_000) / 1_000))),
        every_ten(lambda attempt: 5e-4 * (1 + math.cos(math.pi * ((attempt - 10) % 1_000) / 1_000))),
        every_ten(lambda attempt: COSINE_OF_50(attempt // 100)),
        every_ten(lambda attempt: 1e-3 * 0.999**attempt),
        every_ten(lambda attempt: digits(4)(1e-3 * 0.999**attempt)),
        every_ten(lambda attempt: digits(3)(1e-3 * (1 - attempt / 5_000) ** 2)),
        every_ten(lambda attempt: COSINE_OF_50(attempt) if attempt < 50 else 1e-3 * attempt),
        every_ten(lambda _: 1e-4),
        every_ten(lambda attempt: transformers_cosine(1e-3, 0, 85_001)(attempt * 17)),
        every_ten(lambda attempt: 1e-3 * (1 - attempt / 5_000) * (1 + 1e-6 * math.sin(attempt**2))),
        every_ten(lambda attempt: 1e-3 * (1 - math.floor(attempt / 3) / 5_000)),
        every_ten(lambda attempt: 1e-3 * (1 - attempt / 5_000) if attempt < 2_000 else 3e-4),
    ],
    ids=[
        "plateaus",
        "warm restarts",
        "warm restarts that are logged at their peaks",
        "a step an epoch",
        "exponential",
        "exponential in print",
        "square in print",
        "rising at the end",
        "constant",
        "samples",
        "noise",
        "a step in every three",
        "set by hand",
    ],
)
def test_other_schedules_are_not_forced_into_a_fit(rows: Logged, updates: int | None) -> None:
    assert recognised(rows, updates=updates) is None


def test_a_declared_shape_that_is_not_known_is_not_judged() -> None:
    rows = logged(transformers_cosine(1e-4, 0, 5_000), 5_000)
    assert recognised(rows, updates=5_000) is not None
    assert recognised(rows, updates=5_000, shape="cosine_with_restarts") is None


def test_another_total_than_the_declared_one_is_found_where_the_rates_prove_it() -> None:
    rows = logged(transformers_cosine(2e-5, 0, 10_000), 5_000)
    fit = recognised(rows, updates=5_000)
    assert fit is not None
    assert fit.schedule.updates == 10_000


def test_a_warm_up_alone_proves_no_schedule() -> None:
    rows = logged(transformers_cosine(5e-5, 866, 8_660), 500)
    assert recognised(rows, updates=8_660) is None
    fit = recognised(rows, updates=8_660, shape="cosine", warmup=866, peak=5e-5)
    assert behind(rows, fit) == {10: 0}


def test_a_launch_that_continues_follows_the_schedule_before_it() -> None:
    schedule = transformers_cosine(1e-4, 100, 5_000)
    before = recognised(logged(schedule, 2_000), updates=5_000)
    assert before is not None
    rows = logged(schedule, 50, after=2_000, behind=3)
    fit = recognise(rates_of(rows), Declared(updates=5_000), before.schedule)
    assert behind(rows, fit) == {2_010: 3}
    other = logged(transformers_cosine(1e-4, 100, 7_000), 1_000, after=2_000)
    fit = recognise(rates_of(other), Declared(updates=5_000), before.schedule)
    assert fit is None or fit.schedule.updates == 7_000


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    rates=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    updates=st.none() | st.integers(-5, 2**53),
    warmup=st.none() | st.integers(-5, 2**53),
    peak=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    power=st.none() | st.floats(-2, 2),
    shape=st.sampled_from([None, "linear", "cosine", "polynomial", "inverse_sqrt", "wsd", "other"]),
    decay=st.none() | st.integers(-5, 2**53),
    ordered=st.booleans(),
    pace=st.sampled_from([1.0, 0.5]),
)
def test_no_numbers_break_it(rates: list[float], ordered: bool, pace: float, **declared: Any) -> None:
    if ordered:
        rates = sorted(map(abs, rates), reverse=True)
    attempts = np.arange(1.0, len(rates) + 1)
    updates = np.floor(attempts * pace)
    fit = recognise(Rates.of(attempts, updates, np.array(rates)), Declared(**declared))
    assert fit is None or len(fit.positions) == len(rates)
