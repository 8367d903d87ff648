"""The columns of a timeline's table: what each attempt has in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from accumaudit.outputs.page import COLOURS
from accumaudit.outputs.timeline.grid import Cell, Column, shortened
from accumaudit.outputs.timeline.model import Attempt
from accumaudit.outputs.words import printable

UNKNOWN: Final = "-"
WORD: Final = 32
"""Characters of a word in the table; all of it stands in the details."""

CODES: Final = 3
"""Codes in the table; the others are counted."""

WRONG: Final = "bold red"
DIM: Final = "dim"


def attempt_columns(attempts: Sequence[Attempt]) -> list[Column]:
    """The columns that have something to say, the important ones with a low rank."""

    def column(head: str, cell: Callable[[Attempt], Cell | str], rank: int, *, left: bool = False) -> Column:
        cells = [made if isinstance(made := cell(one), Cell) else Cell(made) for one in attempts]
        return Column(head=head, cells=cells, rank=rank, left=left)

    columns = [column("update", _update, 0)]
    if any(one.attempt_id != one.optimizer_update_id for one in attempts):
        columns.append(column("attempt", lambda one: str(one.attempt_id), 3))
    columns += [
        column("micro", _micro, 1),
        column("tokens", lambda one: count(one.valid_tokens), 5),
        column("T", _total_weight, 0),
        column("d", _distortion, 4),
        column("loss", _loss, 7),
        column("rate", lambda one: span(one.learning_rate_min, one.learning_rate_max, ".2e"), 2),
        column("norm", _norm, 6),
    ]
    if any(one.grad_norm_before_clip is not None for one in attempts):
        columns.append(column("clipped", _clipped, 8))
    if any(one.grad_scale_max is not None for one in attempts):
        columns.append(column("scale", lambda one: span(one.grad_scale_min, one.grad_scale_max, "g"), 3))
    word = column("word", _word, 9, left=True)
    word.least = min(word.width, 12)
    return [*columns, word, column("faults", _codes, 0, left=True)]


def value(number: float | None, form: str) -> str:
    """A number, or the sign for what is unknown."""
    return UNKNOWN if number is None else format(number, form)


def span(low: float | None, high: float | None, form: str) -> str:
    """One number, or two where ranks or micro-steps differ."""
    first, last = value(low, form), value(high, form)
    return first if first == last else f"{first}..{last}"


def count(number: float | None) -> str:
    """Tokens: with class weights they are no integer."""
    if number is None:
        return UNKNOWN
    return f"{number:,.1f}".removesuffix(".0") if abs(number) < 1e15 else f"{number:.3g}"


def share(number: float | None, places: int = 3) -> str:
    """A weight near 1, or far from it."""
    if number is None:
        return UNKNOWN
    return f"{number:.{places}f}" if 0.01 <= abs(number) < 1000 or number == 0 else f"{number:.2e}"


def _update(attempt: Attempt) -> Cell:
    if attempt.applied is False:
        return Cell("skip", "yellow")
    if attempt.applied_ranks and attempt.skipped_ranks:
        return Cell("split", WRONG)
    if attempt.optimizer_update_id is None:
        return Cell(UNKNOWN)
    return Cell(f"{attempt.optimizer_update_id}" + ("" if attempt.applied else "?"))


def _micro(attempt: Attempt) -> Cell:
    low, high = value(attempt.microbatches_min, "d"), value(attempt.microbatches, "d")
    done = high if low == high else f"{low}..{high}"
    short = (
        attempt.microbatches is not None
        and attempt.accumulation_steps is not None
        and attempt.microbatches != attempt.accumulation_steps
    )
    return Cell(f"{done}/{value(attempt.accumulation_steps, 'd')}", "yellow" if short else "")


def _total_weight(attempt: Attempt) -> Cell:
    wrong = attempt.weight_cause not in (None, "right")
    return Cell(share(attempt.total_weight), WRONG if wrong else "")


def _distortion(attempt: Attempt) -> Cell:
    low, high = share(attempt.distortion_min, 2), share(attempt.distortion_max, 2)
    ends = (attempt.distortion_min, attempt.distortion_max)
    wrong = any(end is not None and abs(end - 1) > max(attempt.tolerance, 0.005) for end in ends)
    return Cell(low if low == high else f"{low}..{high}", WRONG if wrong else "")


def _loss(attempt: Attempt) -> Cell:
    if attempt.loss_nonfinite:
        return Cell("not finite", WRONG)
    return Cell(value(attempt.loss, "#.4g"))


def _norm(attempt: Attempt) -> Cell:
    if attempt.norm_nonfinite:
        return Cell("not finite", DIM if attempt.applied is False else WRONG)
    before = attempt.grad_norm_before_clip
    return Cell(value(attempt.grad_norm_after_clip if before is None else before, "#.4g"))


def _clipped(attempt: Attempt) -> str:
    """The norm at the step, where a clip came before it."""
    return value(None if attempt.grad_norm_before_clip is None else attempt.grad_norm_after_clip, "#.4g")


def _word(attempt: Attempt) -> str:
    return UNKNOWN if attempt.events is None else shortened(printable(attempt.events), WORD)


def _codes(attempt: Attempt) -> Cell:
    more = len(attempt.codes) - CODES
    text = " ".join([*attempt.codes[:CODES], *([f"+{more}"] if more > 0 else [])])
    return Cell(text, COLOURS[attempt.severity] if attempt.severity else "")
