"""The fields that are compared, what is nearest to a cause first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Over = Literal["sum", "last", "mean", "each"]
"""What a field is over several updates: their sum, the value of the last one, the mean of the tokens; or it
belongs to each update alone, and is compared where a place is one update of both runs."""

NUMBER: Final = "number"
EXACT: Final = "exact"
COUNT: Final = "count"
LIST: Final = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a transaction."""

    name: str
    label: str
    over: Over
    kind: str = NUMBER
    """number, exact (equal or not), count (numbers without a tolerance), or list (of numbers)."""
    coarse: float = 0
    """How many times what weights in 16 bits are measured to the value may be off where they are."""
    counts: bool = True
    """Whether a difference makes the update another one, whatever the tolerance."""
    behind: str | None = None
    """The field beside which this one is worth telling only where it differs and that one does not yet."""


FIELDS: Final = (
    Field(name="skips", label="skipped attempts", over="sum", kind=EXACT),
    Field(name="data_digest", label="data", over="sum", kind=EXACT),
    Field(name="data_order", label="order of the data", over="each", kind=EXACT, counts=False),
    Field(name="samples", label="samples", over="sum", kind=EXACT),
    Field(name="valid_tokens", label="valid tokens", over="sum", kind=COUNT),
    Field(name="updates", label="number of updates", over="sum", kind=EXACT),
    Field(name="microbatches", label="micro-steps", over="sum", kind=EXACT),
    Field(name="learning_rate", label="learning rate", over="last"),
    Field(
        name="learning_rate_min", label="lowest learning rate of a rank", over="last", behind="learning_rate"
    ),
    Field(
        name="learning_rates",
        label="learning rates of the groups",
        over="last",
        kind=LIST,
        behind="learning_rate",
    ),
    Field(name="weight_decays", label="weight decays of the groups", over="last", kind=LIST),
    Field(name="total_weight", label="total weight T", over="each", coarse=1),
    Field(name="distortion_min", label="smallest token weight d", over="each", coarse=1),
    Field(name="distortion_max", label="largest token weight d", over="each", coarse=1),
    Field(name="equivalent_batch", label="equivalent batch", over="each", coarse=2),
    Field(name="grad_scale", label="loss scale", over="last"),
    Field(name="loss", label="loss", over="mean"),
    Field(name="reported_loss", label="reported loss", over="mean"),
    Field(name="grad_norm_before", label="gradient norm before the clip", over="each"),
    Field(
        name="grad_norm_before_min",
        label="smallest gradient norm of a rank before the clip",
        over="each",
        behind="grad_norm_before",
    ),
    Field(name="grad_norm", label="gradient norm at the step", over="each"),
    Field(
        name="grad_norm_min",
        label="smallest gradient norm of a rank at the step",
        over="each",
        behind="grad_norm",
    ),
    Field(name="param_digest", label="digest of the parameters", over="last", kind=EXACT, counts=False),
)
"""In the order in which an update comes about: what was skipped before it, its data, what the loop sets, what
follows."""

BY_NAME: Final = {one.name: one for one in FIELDS}

SUMMARY: Final = (
    "learning_rate",
    "valid_tokens",
    "samples",
    "microbatches",
    "total_weight",
    "distortion_min",
    "distortion_max",
    "equivalent_batch",
    "grad_scale",
    "loss",
    "reported_loss",
    "grad_norm_before",
    "grad_norm",
)
"""Fields whose values over both runs are summed up."""

COARSE: Final = 0.01
"""What weights in 16 bits are measured to."""
