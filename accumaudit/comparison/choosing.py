"""By what two runs are aligned, and which fields then cannot be compared."""

from __future__ import annotations

from typing import Final, TypeAlias

from accumaudit.comparison.fields import BY_NAME
from accumaudit.comparison.model import By, NotCompared
from accumaudit.comparison.sides import Facts
from accumaudit.outputs.words import number, plural

Names: TypeAlias = tuple[str, str]

CLOSE: Final = 0.05
"""Mean tokens of an update that differ by no more are those of windows of one size."""


def chosen(facts: tuple[Facts, Facts], names: Names) -> tuple[By, str]:
    """By update where an update is of one size in both, else by tokens; and why."""
    a, b = facts
    if a.all_micro_steps is not None and a.all_micro_steps == b.all_micro_steps:
        over = "" if all(one.micro_steps == one.all_micro_steps for one in facts) else " over all ranks,"
        return "update", f"most updates have {plural(a.all_micro_steps, 'micro-step')}{over} in both runs"
    if a.tokens and b.tokens:
        mean = f"{number(a.tokens)} in {names[0]} and {number(b.tokens)} in {names[1]}"
        if _near(a.tokens, b.tokens):
            return "update", f"the mean valid tokens of an update are {mean}"
        if a.with_tokens and b.with_tokens:
            return "tokens", f"an update is of other sizes: its mean valid tokens are {mean}"
        return "update", f"the valid tokens before each update are not known in both (mean of one: {mean})"
    return "update", "the valid tokens of an update are not known in both runs"


def refusal(by: By, facts: tuple[Facts, Facts], names: Names) -> str | None:
    """Why the two cannot be aligned so."""
    for one, name in zip(facts, names, strict=True):
        if one.renumbered and (one.every or 1) > 1:
            return (
                f"the updates of {name} cannot be counted: its record holds one attempt of {one.every}, "
                "and its own numbers of updates start again or are unknown"
            )
        known = {"update": one.places, "tokens": one.with_tokens, "micro-step": one.with_steps}[by]
        if known:
            continue
        if one.places == 0:
            return f"{name} has no update"
        noun = "valid tokens" if by == "tokens" else "micro-steps"
        return f"{noun} cannot be counted from the start of {name}: its record does not tell them all"
    return None


def axis(by: By, facts: tuple[Facts, Facts]) -> str:
    """What a place is called."""
    if by == "update":
        return "step" if all(one.is_foreign for one in facts) else "update"
    return "valid tokens" if by == "tokens" else "micro-step"


_PER_LAYOUT: Final = "the two divide an update into other micro-steps or over other ranks"
_GRID: Final = "too few updates of both end at one place: what holds inside an update can be compared alone"
_RANKS: Final = "they differ between the ranks of one run, and other ranks are recorded of the other"
_OTHER_COUNT: Final = "a log of another program may count other tokens than those with a loss"


def unfit(facts: tuple[Facts, Facts], by: By, *, meet: bool) -> dict[str, str]:
    """The fields that make no sense beside each other in two such runs, and why."""
    a, b = facts
    reasons: dict[str, str] = {}
    if not meet:
        reasons |= {one.name: _GRID for one in BY_NAME.values() if one.over != "last"}
    if _differ(a.token_ranks, b.token_ranks) or _differ(a.micro_steps, b.micro_steps):
        reasons |= dict.fromkeys(("microbatches", "data_order"), _PER_LAYOUT)
    if _differ(a.token_ranks, b.token_ranks) or a.writers != b.writers:
        reasons |= dict.fromkeys(("learning_rate_min", "grad_norm_before_min", "grad_norm_min"), _RANKS)
        if a.reports_differ or b.reports_differ:
            reasons["reported_loss"] = _RANKS
    if a.is_foreign != b.is_foreign:
        reasons["valid_tokens"] = _OTHER_COUNT
    if not same_rows(facts):
        reasons |= {name: _rows_reason(facts) for name in ("data_digest", "data_order")}
    if (a.parts or 1) != (b.parts or 1) or ((a.parts or 1) > 1 and a.world_size != b.world_size):
        reasons["param_digest"] = "a rank holds other parts of the parameters"
    if by == "tokens":
        reasons["valid_tokens"] = "places are counted in them"
    if by == "micro-step":
        reasons["microbatches"] = "places are counted in them"
    if by == "update":
        reasons["updates"] = "places are counted in them"
    return reasons


def _differ(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b


def same_rows(facts: tuple[Facts, Facts]) -> bool:
    """Whether micro-batches are of one size, as far as it is known: digests are of whole micro-batches."""
    a, b = facts
    if a.rows and b.rows:
        return a.rows == b.rows
    if a.tokens and b.tokens and a.all_micro_steps and b.all_micro_steps:
        return _near(a.tokens / a.all_micro_steps, b.tokens / b.all_micro_steps)
    return True


def _rows_reason(facts: tuple[Facts, Facts]) -> str:
    a, b = facts
    sizes = f"of {number(a.rows)} and of {number(b.rows)} samples" if a.rows and b.rows else "of other sizes"
    return f"digests are of whole micro-batches, and these are {sizes}"


def of_layout(names: dict[str, str]) -> list[NotCompared]:
    """The fields that were left out and why, apart from those that places are counted in."""
    return [
        NotCompared(label=BY_NAME[name].label, reason=reason)
        for name, reason in names.items()
        if not reason.startswith("places are counted") and BY_NAME[name].behind is None
    ]


def remarks(facts: tuple[Facts, Facts], names: Names, by: By) -> list[str]:
    """What is to be known of how the two were aligned."""
    told: list[str] = []
    for one, name in zip(facts, names, strict=True):
        if one.redone:
            told.append(
                f"{name}: {plural(one.redone, 'attempt')} of earlier launches done again by a later one, "
                "which is compared"
            )
        if one.renumbered:
            told.append(
                f"{name}: the record's own numbers of updates start again or are unknown; "
                "its updates are counted through"
            )
        if (one.every or 1) > 1:
            told.append(f"{name}: one attempt of {one.every} was recorded")
        if one.left_over:
            told.append(
                f"{name}: {plural(one.left_over, 'skipped attempt')} before no recorded update, not compared"
            )
        if by != "update" and one.first_number is not None and one.first_number > 1:
            told.append(f"{name}: its record begins at update {one.first_number:,}")
    if any(one.coarse for one in facts):
        told.append("weights in 16 bits are measured to a hundredth, and so compared")
    if facts[0].is_foreign != facts[1].is_foreign:
        log = names[0] if facts[0].is_foreign else names[1]
        told.append(f"{log} is a log of another program: its steps stand beside the updates of the ledger")
    return told


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(a, b)
