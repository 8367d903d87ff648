"""What a section of a timeline is about, in words."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from accumaudit.outputs.timeline.model import Section

EARLIEST: Final = 10**8
"""Seconds since 1970 below which a time is none: launches of logs that tell none are numbered."""


def section_head(section: Section, *, is_foreign: bool) -> str:
    """What a section is about, and what was declared for it."""
    parts = []
    if section.launches > 1 or section.started_at is not None:
        parts.append(f"launch {section.launch}" + _started(section.started_at))
    if section.resumed_from_update is not None:
        parts.append(f"resumed from update {section.resumed_from_update}")
    name = section.optimizer_class or "an optimizer"
    if section.optimizer_name not in (None, "", f"optimizer {section.optimizer}"):
        name += f" ({section.optimizer_name})"
    if section.optimizers > 1:
        name = f"optimizer {section.optimizer}, {name}"
    if is_foreign:  # what a log does not tell may have been there
        parts += [_accumulation(section)] if section.accumulation_steps else []
    else:
        parts += [name, section.scheduler_class or "no scheduler", _accumulation(section)]
    if section.max_grad_norm is not None:
        parts.append(f"norm limit {section.max_grad_norm:g}")
    if section.recorded_every:
        parts.append(f"every {section.recorded_every}th attempt is recorded")
    return ", ".join(parts)


def _started(at: float | None) -> str:
    if at is None or at < EARLIEST:
        return ""
    try:
        moment = datetime.fromtimestamp(at, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return ""
    return f" of {moment:%Y-%m-%d %H:%M:%S} UTC"


def _accumulation(section: Section) -> str:
    if section.accumulation_steps is not None:
        return f"accumulation {section.accumulation_steps}"
    inferred = {one.accumulation_steps for one in section.attempts if one.accumulation_inferred}
    if len(inferred) == 1:
        return f"accumulation {inferred.pop()} (inferred)"
    return "accumulation not declared"
