"""What charts of a run show: which fields stand in one, and what is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one chart shows of each attempt."""

    title: str
    fields: tuple[tuple[str, str], ...]
    """Names in a point, and what the legend calls each; one or two."""
    expected: float | None = None
    """What is right, where one value is."""


KINDS: Final = (
    Kind(title="Loss", fields=(("loss", "loss"),)),
    Kind(
        title="Learning rate",
        fields=(("learning_rate", "of the optimizer"), ("scheduled_rate", "announced by the scheduler")),
    ),
    Kind(
        title="Gradient norm",
        fields=(("grad_norm_before", "before clipping"), ("grad_norm_after", "at the step")),
    ),
    Kind(title="Total weight", fields=(("total_weight", "sum of all loss weights"),), expected=1.0),
    Kind(
        title="Weight of a token against what it should be",
        fields=(("distortion_max", "highest"), ("distortion_min", "lowest")),
        expected=1.0,
    ),
    Kind(
        title="Batch",
        fields=(("valid_tokens", "valid tokens"), ("equivalent_batch", "equally weighted, as good as")),
    ),
    Kind(
        title="Micro-steps",
        fields=(("microbatches", "in the window"), ("accumulation_steps", "declared")),
    ),
    Kind(title="Gradient scale", fields=(("grad_scale", "scale"),)),
)
