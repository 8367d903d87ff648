"""One attempt in detail: its faults in words, and the micro-steps of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from accumaudit.outputs.page import COLOURS, Page
from accumaudit.outputs.timeline.cells import UNKNOWN, count, share, span, value
from accumaudit.outputs.timeline.grid import Cell, Column, Grid, shortened
from accumaudit.outputs.timeline.model import Attempt, MicroStep, RankDetail
from accumaudit.outputs.words import plural, printable

FIRST: Final = 8
"""Ranks, or micro-steps of one, that are written out at the beginning of many."""

LAST: Final = 2
"""Those at the end."""

LONGEST: Final = 2_000
"""Characters of a word."""

INDENT: Final = "    "

T = TypeVar("T")


def render_details(attempt: Attempt, page: Page) -> None:
    """Write one attempt; an empty line ends it."""
    page.line((_title(attempt), "bold"))
    for fault in attempt.faults:
        where = "" if fault.rank is None else f", rank {fault.rank}"
        page.line(
            (f"  {fault.severity} ", COLOURS[fault.severity]), printable(f"{fault.code} {fault.name}{where}")
        )
        page.wrapped(printable(fault.message), head=INDENT)
    named = {fault.rank for fault in attempt.faults}
    places = {rank.rank: place for place, rank in enumerate(attempt.ranks)}
    for shown, missing in _ends(attempt.ranks, {places[rank] for rank in named if rank in places}):
        if shown is None:
            page.line((f"  ... {plural(missing, 'more rank')}", "dim"))
        else:
            _render_rank(shown, page)
    page.line()


def _title(attempt: Attempt) -> str:
    update = UNKNOWN if attempt.optimizer_update_id is None else str(attempt.optimizer_update_id)
    where = f"launch {attempt.launch}, optimizer {attempt.optimizer}, attempt {attempt.attempt_id}"
    if attempt.applied is False:
        return f"skipped after update {update} ({where})"
    return f"update {update} ({where})"


def _render_rank(rank: RankDetail, page: Page) -> None:
    place = f"{rank.file}:{rank.line}" if rank.file and rank.line else rank.file
    page.line((f"  rank {rank.rank}", "bold"), f"  {printable(place or '')}")
    page.wrapped(shortened(printable(rank.events or UNKNOWN), LONGEST), head=f"{INDENT}word  ")
    page.wrapped(", ".join(_facts(rank)), head=f"{INDENT}step  ")
    if rank.window_sums is not None:
        for line in _sums(rank):
            page.wrapped(line, head=f"{INDENT}sums  ")
        return
    grid = Grid(_columns(rank.micro_steps), None if page.width is None else page.width - len(INDENT))
    page.line(INDENT, *grid.head())
    for shown, missing in _ends(range(len(rank.micro_steps)), set()):
        if shown is None:
            page.line((f"{INDENT}... {missing:,} more", "dim"))
        else:
            page.line(INDENT, *grid.row(shown))


def _facts(rank: RankDetail) -> list[str]:
    """What the rank's step was."""
    facts = [f"rate {value(rank.learning_rate, '.4g')}"]
    if rank.grad_norm_before_clip is not None:
        facts.append(f"norm {rank.grad_norm_before_clip:.4g} before the clip")
    scope = "" if rank.grad_norm_after_scope in (None, "global") else f" ({rank.grad_norm_after_scope})"
    norm = "not finite" if rank.norm_nonfinite else value(rank.grad_norm_after_clip, ".4g")
    facts.append(f"norm {norm} at the step{scope}")
    if rank.grad_rescale not in (None, 1.0):
        facts.append(f"gradients multiplied by {rank.grad_rescale:.6g}")
    if rank.grad_scale is not None:
        facts.append(f"loss scale {rank.grad_scale:g}")
    if rank.applied is False and rank.skip_evidence:
        facts.append(f"skipped, as {rank.skip_evidence} tells")
    if rank.discarded_microbatches:
        facts.append(f"{plural(rank.discarded_microbatches, 'micro-step')} thrown away before")
    return [printable(fact) for fact in facts]


def _columns(steps: Sequence[MicroStep]) -> list[Column]:
    def column(head: str, cells: Sequence[str], rank: int) -> Column:
        return Column(head=head, cells=[Cell(text) for text in cells], rank=rank)

    return [
        column("micro-step", [str(step.micro_step) for step in steps], 0),
        column("n", [count(step.n) for step in steps], 0),
        column("A1", [value(step.loss_weight, "#.4g") for step in steps], 0),
        column("w", [value(step.w, "#.4g") for step in steps], 0),
        column("d", [share(step.distortion) for step in steps], 1),
        column("loss", [value(step.loss, "#.4g") for step in steps], 0),
        column("scale", [value(step.loss_scale, "g") for step in steps], 2),
        column("input", [value(step.input_positions, ",d") for step in steps], 3),
        column("attended", [value(step.attended_positions, ",d") for step in steps], 4),
        column("masked", [value(step.masked_positions, ",d") for step in steps], 5),
        column("samples", [value(step.samples, ",d") for step in steps], 6),
    ]


def _sums(rank: RankDetail) -> list[str]:
    """The sums of a record that has no lists."""
    sums = rank.window_sums or {}

    def between(name: str, form: str) -> str:
        return span(sums.get(f"{name}_min"), sums.get(f"{name}_max"), form)

    return [
        f"{value(rank.microbatches, ',d')} micro-steps, n {count(sums.get('valid_tokens'))} "
        f"({between('valid_tokens', 'g')} each), A1 {value(sums.get('loss_weight'), '.4g')} "
        f"({between('loss_weight', '.4g')}), w {between('token_weight', '.4g')}, "
        f"loss {value(sums.get('loss'), '#.4g')}, scale {between('loss_scale', 'g')}, "
        f"positions {value(sums.get('input_positions'), ',d')} input, "
        f"{value(sums.get('attended_positions'), ',d')} attended, "
        f"{value(sums.get('masked_positions'), ',d')} masked, {value(sums.get('samples'), ',d')} samples"
    ]


def _ends(items: Sequence[T], always: set[int]) -> list[tuple[T | None, int]]:
    """The first and the last of many, and those that are named; None, and how many, for those between."""
    shown: list[tuple[T | None, int]] = []
    missing = 0
    for place, item in enumerate(items):
        if place < FIRST or place >= len(items) - LAST or place in always or len(items) <= FIRST + LAST + 1:
            if missing:
                shown.append((None, missing))
            shown.append((item, 0))
            missing = 0
        else:
            missing += 1
    return shown
