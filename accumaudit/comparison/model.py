"""What a comparison of two runs holds; None is everywhere what a record does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from accumaudit.postmortem.model import History, Moment

By = Literal["update", "tokens", "micro-step"]
"""What both runs are counted by."""

BYS: Final[tuple[By, ...]] = ("update", "tokens", "micro-step")

TOLERANCE: Final = 1e-6
"""Relative difference up to which two numbers are the same, where nothing else is asked for."""

Value: TypeAlias = "float | int | str | bool | None"
"""One value of a field; a list of numbers is a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    name: str
    """What the texts call it: its run's, or A and B where both have one name."""
    run_id: str
    path: str
    format: str
    """ledger, or the kind of a foreign log."""
    attempts: int
    updates: int
    """Attempts that were not skipped, over all optimizers."""
    launches: int
    redone: int
    """Attempts that a later launch did again; what it did is compared."""
    ranks: int
    world_size: int | None
    micro_steps: int | None
    """Of a rank in most of its updates."""
    tokens: float | None
    """The mean of an update, over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where one field differs."""

    optimizer: int
    field: str
    """As `windows` calls it, or data_digest, skips and the like."""
    label: str
    """What people call it."""
    at: float
    """The place, on the axis of the comparison."""
    where: str
    """The place in words: `update 40`, `4,096 tokens (update 8 and update 4)`."""
    moments: tuple[Moment | None, Moment | None]
    """The attempts; None where a run has none there."""
    values: tuple[Value, Value]
    relative: float | None
    """|a - b| as a share of the larger; None where the values are no numbers."""
    message: str
    """One sentence, with both values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldResult:
    """What became of one field of one optimizer."""

    optimizer: int
    field: str
    label: str
    compared: int
    """Places where both runs tell it."""
    differing: int
    largest: float | None
    """The largest relative difference, within the tolerance or beyond."""
    largest_at: str | None
    """Where, in words."""
    first: Difference | None
    counts: bool = True
    """Whether a difference makes the updates others; bits of parameters differ before any number does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A field that was not compared, and why: nothing is said of it."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The values of one field over a run."""

    lowest: float
    mean: float
    highest: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One field over both runs."""

    field: str
    label: str
    sides: tuple[Spread | None, Spread | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """The mean loss of both runs over one stretch of the axis."""

    start: float
    end: float
    losses: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearRow:
    """One place beside the first difference: a text for each of `Comparison.near_heads`."""

    at: float
    cells: tuple[tuple[str, str], ...]
    """Both runs' texts, for each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, side by side."""

    sides: tuple[Side, Side]
    by: By
    axis: str
    """What places are called: update, step, valid tokens, micro-step."""
    why: str
    """Why they are aligned by this, in a sentence."""
    tolerance: float
    places: int
    """Places that both runs have, over all optimizers."""
    only: tuple[int, int]
    """Places that one of them has alone."""
    verdict: tuple[str, ...]
    """What came out, in a few sentences."""
    first: Difference | None
    """The earliest difference; of those at one place, what is nearest to a cause stands first."""
    beside: tuple[Difference, ...]
    """Other fields that differ at the same place."""
    later: tuple[Difference, ...]
    """Fields that differ later, each by its first difference."""
    data: str
    """Whether both saw the same data in the same order, in a sentence."""
    fields: tuple[FieldResult, ...]
    not_compared: tuple[NotCompared, ...]
    remarks: tuple[str, ...]
    """What is to be known of how the two were aligned."""
    summary: tuple[SummaryRow, ...]
    losses: tuple[LossRow, ...]
    """At equal tokens where both tell their tokens, else at equal places."""
    losses_axis: str
    near_heads: tuple[str, ...] = ()
    near: tuple[NearRow, ...] = ()
    histories: tuple[tuple[History, ...], tuple[History, ...]] = ((), ())
    """What charts draw, of each side."""

    @property
    def judged(self) -> bool:
        """Whether anything could be compared that makes updates the same or others."""
        return any(one.compared and one.counts for one in self.fields)

    @property
    def same(self) -> bool:
        """Whether no field that was compared differs; false where nothing could be compared."""
        return self.judged and self.first is None

    def _repr_html_(self) -> str:
        from accumaudit import notebook

        return notebook.comparison(self)
