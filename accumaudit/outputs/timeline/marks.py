"""What a mark says, in words."""

from __future__ import annotations

import json
from typing import Final

from accumaudit.outputs.timeline.grid import shortened
from accumaudit.outputs.timeline.model import Mark, Section
from accumaudit.outputs.words import plural, spans

LONGEST: Final = 200
"""Characters of a mark: a name in a record may be of any length."""


def mark_text(mark: Mark, section: Section) -> str:
    """One line, which names the ranks where only some wrote it."""
    text = shortened(_text(mark), LONGEST)
    if mark.ranks != section.ranks:
        text += f" (rank {spans(mark.ranks)})"
    return text


def _text(mark: Mark) -> str:
    name = mark.name or ""
    texts = {
        "epoch_end": f"epoch {mark.epoch} ended" if mark.epoch is not None else "an epoch ended",
        "end_of_data": "the data ended",
        "declare": f"declared {_declared(name)}",
        "gap": f"{plural(mark.lost_records or 0, 'record')} could not be written",
        "not_recorded": f"not recorded: {name}",
        "hook_error": f"a hook failed: {name}",
        "close": _close(mark),
    }
    return texts.get(mark.kind) or f"{mark.kind} {name}".strip()


def _declared(name: str) -> str:
    try:
        values = json.loads(name)
    except ValueError:
        return name
    if not isinstance(values, dict):
        return name
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _close(mark: Mark) -> str:
    ended = "the loop ended" if mark.finished else "the record ended, the loop did not"
    if mark.reason and mark.reason != "closed":
        ended += f" ({mark.reason})"
    if mark.leftover_microbatches:
        ended += f", {plural(mark.leftover_microbatches, 'micro-step')} left over"
    return ended
