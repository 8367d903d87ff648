"""Which numbers of an attempt are shown, under which tags, and how the charts are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accumaudit.service.snapshot import Point

BAND: Final = 0.02
"""Half the width of the band around the announced rate, as a share of it: wide enough to be seen.

Rules judge by a far smaller tolerance.
"""

LAUNCH: Final = "attempts/launch"
ATTEMPT: Final = "attempts/attempt"
SKIPPED: Final = "attempts/skipped"
UPDATE: Final = "update"
TOKENS: Final = "tokens"
FINDINGS: Final = "findings/"
"""With a rule's code: faulty attempts so far."""

REPORTS: Final = "reports/"
"""With a rule's code: what was found, in words."""

OVER_TOKENS: Final = "over_tokens/"
"""Stands before the tags whose steps are tokens: TensorBoard draws equal tags on one axis."""

LAYOUT: Final = "custom_scalars__config__"
"""TensorBoard's own name of the layout."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of an attempt."""

    tag: str
    meaning: str
    value: Callable[[Point], float | None]
    over_tokens: bool = False
    """It is shown over tokens too."""


SCALARS: Final = (
    Scalar("loss", "Mean loss per valid token, over all ranks.", lambda one: one.loss, over_tokens=True),
    Scalar(
        "learning_rate",
        "Rate of the first parameter group, at the step.",
        lambda one: one.learning_rate,
        over_tokens=True,
    ),
    Scalar(
        "schedule/rate",
        "Rate at the step, where it is known what the scheduler announced after the attempt before.",
        lambda one: None if _announced(one, 1.0) is None else one.learning_rate,
    ),
    Scalar(
        "schedule/announced",
        "Rate that the scheduler announced after the attempt before.",
        lambda one: _announced(one, 1.0),
    ),
    Scalar(
        "schedule/band_low", f"{BAND:.0%} below what was announced.", lambda one: _announced(one, 1.0 - BAND)
    ),
    Scalar(
        "schedule/band_high", f"{BAND:.0%} above what was announced.", lambda one: _announced(one, 1.0 + BAND)
    ),
    Scalar(
        "grad_norm/before_clip",
        "Norm of the gradient before it was clipped, the highest of all ranks.",
        lambda one: one.grad_norm_before,
        over_tokens=True,
    ),
    Scalar(
        "grad_norm/after_clip",
        "Norm of the gradient just before the step, clipped or not, the highest of all ranks.",
        lambda one: one.grad_norm_after,
        over_tokens=True,
    ),
    Scalar(
        "weights/total",
        "Total weight T of the update: the sum of all loss weights. Right is 1.",
        lambda one: one.total_weight,
        over_tokens=True,
    ),
    Scalar(
        "weights/lightest_token",
        "Distortion d of the token that counts least. Right is 1.",
        lambda one: one.distortion_min,
    ),
    Scalar(
        "weights/heaviest_token",
        "Distortion d of the token that counts most. Right is 1.",
        lambda one: one.distortion_max,
    ),
    Scalar(
        "batch/equivalent",
        "Kish's equivalent batch: as many equally weighted tokens would tell as much.",
        lambda one: one.equivalent_batch,
    ),
    Scalar("batch/valid_tokens", "Valid tokens N, over all ranks.", lambda one: one.valid_tokens),
    Scalar("batch/microbatches", "Micro-steps that were kept.", lambda one: one.microbatches),
    Scalar("batch/accumulation_steps", "Micro-steps of a full window.", lambda one: one.accumulation_steps),
    Scalar("grad_scale", "Loss scale at the step.", lambda one: one.grad_scale),
    Scalar(TOKENS, "Valid tokens up to and with this update.", lambda one: one.tokens_so_far),
    Scalar("attempts/ranks", "Ranks that wrote a record of it.", lambda one: one.ranks),
    Scalar(LAUNCH, "Which start of the training made the update.", lambda one: one.launch, over_tokens=True),
    Scalar(ATTEMPT, "Which attempt of its launch it was.", lambda one: one.attempt_id, over_tokens=True),
)
_MEANINGS: Final = {
    **{one.tag: one.meaning for one in SCALARS},
    SKIPPED: "Attempts of the run so far that left the parameters as they were.",
    UPDATE: "Number of the update.",
}
_CHARTS: Final = {
    "accumaudit": (
        ("Learning rate, used and announced", ("schedule/rate", "schedule/announced")),
        ("Gradient norm before and after the clip", ("grad_norm/before_clip", "grad_norm/after_clip")),
        ("Total weight T, lightest and heaviest token (right: 1)", ("weights/.*",)),
        ("Equivalent batch and valid tokens", ("batch/equivalent", "batch/valid_tokens")),
        ("Skipped attempts so far", (SKIPPED,)),
        ("Faulty attempts so far, by rule", (FINDINGS + ".*",)),
    ),
    "accumaudit, over valid tokens": tuple(
        (title, tuple(OVER_TOKENS + tag for tag in tags))
        for title, tags in (
            ("Loss", ("loss",)),
            ("Learning rate", ("learning_rate",)),
            ("Gradient norm before and after the clip", ("grad_norm/before_clip", "grad_norm/after_clip")),
            ("Total weight T (right: 1)", ("weights/total",)),
        )
    ),
}
"""Titles and tags, by category."""

_BAND: Final = f"Learning rate in the band of {BAND:.0%} around what its scheduler announced"


def numbers(point: Point, *, over_tokens: bool) -> Iterator[tuple[str, float]]:
    """The tags and values of an attempt, as far as they are known."""
    for one in SCALARS:
        value = one.value(point) if one.over_tokens or not over_tokens else None
        if value is not None:
            yield one.tag, float(value)


def meaning(tag: str) -> str:
    """What the numbers under a tag are."""
    code = tag.removeprefix(FINDINGS)
    if code != tag:
        return f"Attempts so far in which {code} found a fault. The text {REPORTS}{code} says which."
    return _MEANINGS[tag]


def fill_layout(layout: Any) -> None:
    """Say which charts show what."""
    for title, charts in _CHARTS.items():
        category = layout.category.add(title=title)
        if len(layout.category) == 1:
            band = category.chart.add(title=_BAND).bands.series.add()
            band.value, band.lower, band.upper = "schedule/rate", "schedule/band_low", "schedule/band_high"
        for chart, tags in charts:
            category.chart.add(title=chart).lines.tag.extend(f"^{tag}$" for tag in tags)


def _announced(point: Point, factor: float) -> float | None:
    """So much of the rate that was announced, where it is known what became of it."""
    if point.scheduled_rate is None or point.learning_rate is None:
        return None
    return point.scheduled_rate * factor
