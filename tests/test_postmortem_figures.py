"""Charts of a post-mortem as plotly's figures: what is drawn, on which axis, and that no peak is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from accumaudit.outputs.json_report import finite
from accumaudit.outputs.postmortem.charts import of_post_mortem
from accumaudit.outputs.postmortem.figures import (
    PALETTES,
    Figure,
    Line,
    Mark,
    Panel,
    events,
    extent,
    figure,
    is_logarithmic,
    panels,
)
from accumaudit.outputs.postmortem.thinning import POINTS, thinned
from accumaudit.postmortem.model import Curve, Moment
from tests.told import FIRST, history_of, telling_of

NAN = float("nan")


def panel_of(name: str, values: list[float | None], **fields: Any) -> Panel:
    xs = tuple(float(x) for x in range(1, len(values) + 1))
    curve = Curve(name=name, label=name, x=xs, y=tuple(values), **fields)
    return Panel(title=name, lines=(Line(curve=curve, label=name),))


def drawn(*shown: Panel, marks: tuple[Mark, ...] = ()) -> Figure:
    return figure(shown, marks, "update", extent(line.curve for one in shown for line in one.lines))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("loss", [1.0, 99.0], False),
        ("loss", [1.0, 100.0], True),
        ("grad_scale", [65_536.0, None, 1.0], True),
        ("grad_norm_before", [0.0, 1e6], False),  # a logarithm of nothing
        ("learning_rate", [1e-9, 1e-3], False),  # a warm-up is a straight line
    ],
)
def test_powers_of_ten_are_for_losses_norms_and_scales_far_apart(
    name: str, values: list[float | None], expected: bool
) -> None:
    panel = panel_of(name, values)
    assert is_logarithmic(panel) is expected
    assert (drawn(panel)["layout"]["yaxis"].get("type") == "log") is expected


def test_gaps_stay_gaps_and_what_is_no_number_stands_at_the_edge() -> None:
    found = drawn(panel_of("loss", [1.0, None, 2.0, NAN], nonfinite=(4.0,)))
    line, strange = found["data"]
    assert line["y"] == [1.0, None, 2.0, None]
    assert "markers" in line["mode"], "a value between two gaps is a dot"
    assert (strange["x"], strange["yaxis"]) == ([4], "y2")
    assert found["layout"]["yaxis2"]["overlaying"] == "y"
    json.dumps(finite(found), allow_nan=False)


def test_panels_stand_above_each_other_with_marks_through_all() -> None:
    mark = Mark(x=2.0, label="first fault", role="fault")
    right = replace(panel_of("total_weight", [1.0, 0.5]), expected=1.0)
    layout = drawn(panel_of("loss", [2.0, 1.0]), right, marks=(mark,))["layout"]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["xaxis"]["anchor"] == "y2"
    level, upright = layout["shapes"]
    assert (level["yref"], level["y0"]) == ("y2", 1.0)
    assert (upright["yref"], upright["x0"], upright["legendgroup"]) == ("paper", 2.0, "fault")


def test_every_role_has_a_colour_in_light_and_in_dark() -> None:
    (group,) = of_post_mortem(telling_of(), telling_of().histories)
    roles = {trace["meta"] for chart in group.charts for trace in chart.figure["data"]}
    roles |= {shape["legendgroup"] for chart in group.charts for shape in chart.figure["layout"]["shapes"]}
    assert {"fault", "onset", "launch", "skip", "checkpoint", "line-1", "line-2", "expected"} <= roles
    assert all(roles <= set(palette) for palette in PALETTES.values())


def test_texts_of_a_record_are_no_tags_to_plotly() -> None:
    history = replace(history_of(10), checkpoints=((5.0, "<a href='http://example.org'>x</a>"),))
    found = events(history, (), (0.0, 10.0))
    assert found is not None
    texts = [text for trace in found["data"] for text in trace.get("text", ())]
    assert any("&lt;a href" in text for text in texts)
    assert not any("<" in text for text in texts)


def test_a_level_curve_is_told_and_not_drawn() -> None:
    telling = telling_of()
    (group,) = of_post_mortem(telling, telling.histories)
    assert group.constant == ("Batch 4096",)
    assert [chart.title for chart in group.charts] == [
        "Events",
        "Loss, in powers of ten",
        "Learning rate",
        "Gradient norm, in powers of ten",
        "Total weight",
        "Gradient scale, in powers of ten",
    ]


def test_marks_stand_where_the_history_says_that_their_attempts_lie() -> None:
    """Attempts, where updates go back over the run."""
    telling = telling_of()
    moved = replace(telling.histories[0], axis="attempt", places=((FIRST, 1_777.0),))
    (group,) = of_post_mortem(telling, [moved])
    roles = {
        shape["legendgroup"]: shape["x0"]
        for shape in group.charts[1].figure["layout"]["shapes"]
        if shape["yref"] == "paper"
    }
    assert roles == {"launch": 1_001.0, "fault": 1_777.0}
    assert group.views == (("Whole run", *group.views[0][1:]), ("Around the first fault", 1_677.0, 1_977.0))
    assert moved.place(Moment(launch=9, attempt_id=9)) is None


def test_a_history_that_fits_is_drawn_as_it_is() -> None:
    history = history_of(1_000)
    assert thinned([history]) == [history]
    assert next(line.curve for panel in panels(history) for line in panel.lines) is history.curves[0]


def test_what_is_thinned_keeps_every_peak_at_its_place() -> None:
    history = history_of(40_000)
    weight = history.curves[5]
    spikes = {7: 900.0, 20_001: -900.0, 39_999: 901.0}
    values = tuple(spikes.get(at, value) for at, value in enumerate(weight.y))
    gap = (*values[:30_000], *[None] * 2_000, *values[32_000:])
    curves = (*history.curves[:5], replace(weight, y=gap), *history.curves[6:])
    few = thinned([replace(history, curves=curves)] * 3)
    assert POINTS * 0.5 < sum(len(curve.x) for one in few for curve in one.curves) <= POINTS * 1.01
    kept = few[0].curves[5]
    assert list(kept.x) == sorted(kept.x)
    found = dict(zip(kept.x, kept.y, strict=True))
    assert {x: found.get(x) for x in (8.0, 20_002.0, 40_000.0)} == {
        8.0: 900.0,
        20_002.0: -900.0,
        40_000.0: 901.0,
    }
    assert None in kept.y
