"""The plots of the service's pages: what is drawn of many attempts, and what is marked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from accumaudit.engine.findings import Example, Finding, Verdict
from accumaudit.service.snapshot import Point
from accumaudit.service.web.plots import COLUMNS, HEIGHT, WIDTH, Plot, plots

BLANK = Point(
    **dict.fromkeys(Point.__dataclass_fields__),  # type: ignore[arg-type]
)


def history(count: int, **fields: Any) -> list[Point]:
    """Attempts of one launch; a field is a function of the attempt's number."""
    return [
        replace(
            BLANK,
            launch=1,
            optimizer=0,
            attempt_id=number,
            update_id=number,
            **{name: value(number) for name, value in fields.items()},
        )
        for number in range(1, count + 1)
    ]


def plot(points: list[Point], *findings: Verdict) -> Plot:
    """The only plot."""
    (drawn,) = plots(points, findings)
    return drawn


def heights(path: str) -> list[float]:
    """The heights of a path's corners, from the top."""
    return [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def verdict(*attempts: int, first: int | None = None, last: int | None = None) -> Verdict:
    """A finding that names some attempts of launch 1."""
    examples = tuple(
        Example(
            launch=1,
            optimizer=0,
            attempt_id=attempt,
            optimizer_update_id=attempt,
            rank=None,
            file=None,
            line=None,
            message="",
            observed=None,
            expected=None,
        )
        for attempt in attempts
    )
    finding = Finding(
        count=len(attempts),
        first_update=first,
        last_update=last,
        ranks=(0,),
        message="",
        observed=None,
        expected=None,
        examples=examples,
    )
    return Verdict(
        code="ACC101",
        name="fixed-divisor-tail",
        severity="error",
        status="failed",
        judged=1,
        reason=None,
        finding=finding,
        summary="",
        fix="",
    )


def test_a_single_peak_among_many_attempts_is_drawn() -> None:
    drawn = plot(history(20_000, loss=lambda number: 100.0 if number == 12_345 else 1.0))
    corners = heights(drawn.lines[0].path)
    assert len(corners) <= 2 * COLUMNS
    assert corners.count(min(corners)) == 1
    assert (drawn.low, drawn.high) == (1.0, 100.0)
    assert 0 < min(corners) < max(corners) < HEIGHT


def test_what_is_not_known_is_a_gap_and_a_single_value_a_dot() -> None:
    known = {1: 1.0, 2: 2.0, 4: 3.0}
    drawn = plot(history(6, loss=known.get))
    assert re.findall(r"[MLh]", drawn.lines[0].path) == list("MhLMh")
    assert drawn.lines[0].last == 3.0
    assert plots(history(6), ()) == []


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_marked_and_do_not_spoil_the_scale(strange: float) -> None:
    drawn = plot(history(5, loss=lambda number: strange if number == 3 else float(number)))
    assert (drawn.low, drawn.high) == (1.0, 5.0)
    assert drawn.nonfinite == f"M{WIDTH / 2} 0v7"
    assert drawn.notes == ("1 value not finite (strokes at the top)",)
    nothing_else = plot(history(5, loss=lambda _: strange))
    assert "nan" not in nothing_else.lines[0].path + str(nothing_else.high)


def test_what_is_right_lies_inside_the_scale() -> None:
    drawn = plot(history(4, total_weight=lambda _: 0.25))
    assert (drawn.low, drawn.high, drawn.expected_value) == (0.25, 1.0, 1.0)
    assert drawn.expected is not None
    assert drawn.expected < heights(drawn.lines[0].path)[0]


def test_huge_and_tiny_values_have_heights() -> None:
    for values in ((1e308, -1e308), (5e-324, 0.0), (1e300, 1e300)):
        points = history(2, loss=lambda number, values=values: values[number - 1])
        assert all(0 <= height <= HEIGHT for height in heights(plot(points).lines[0].path))


def test_skipped_attempts_and_later_launches_are_marked() -> None:
    points = history(5, loss=float, applied=lambda number: number != 2)
    later = [replace(point, launch=2) for point in history(2, loss=float)]
    drawn = plot(points + later)
    assert drawn.skipped.count("M") == 1
    assert drawn.notes == ("1 attempt skipped (strokes at the bottom)",)
    assert drawn.launches == f"M{WIDTH * 5 / 6} 0v{HEIGHT}"


def test_a_finding_has_a_strip_over_its_reach_and_a_column_at_each_attempt_it_names() -> None:
    drawn = plot(history(11, loss=float), verdict(4, 8, first=4, last=8))
    strip, *columns = drawn.bands
    assert (strip.x, strip.x + strip.width) == (WIDTH * 2.5 / 10, WIDTH * 7.5 / 10)
    assert strip.height < HEIGHT
    assert [(band.x, band.height) for band in columns] == [(150.0, HEIGHT), (390.0, HEIGHT)]
    assert {band.label for band in drawn.bands} == {"ACC101 fixed-divisor-tail"}


def test_a_finding_of_the_whole_run_or_of_attempts_that_are_not_drawn_marks_nothing() -> None:
    assert plot(history(5, loss=float), verdict(90, first=90, last=95), verdict()).bands == ()
