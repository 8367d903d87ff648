"""What stands in a record in place of its lists where only sums are wanted: long windows in little room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

LISTS: Final = (
    "valid_tokens",
    "loss_weight",
    "loss_weight_sq",
    "weight_uniform",
    "loss",
    "loss_scale",
    "samples",
    "input_positions",
    "attended_positions",
    "masked_positions",
    "data_digest",
)
"""Fields with one entry per micro-step."""


def without_lists(record: dict[str, Any]) -> dict[str, Any]:
    """The record with `window_sums` in place of its lists; a sum over an unknown entry is None."""
    tokens, weights = record["valid_tokens"], record["loss_weight"]
    per_token = [
        None if a is None or n is None else a / n for a, n in zip(weights, tokens, strict=True) if n != 0
    ]
    losses = [
        None if loss is None or n is None else loss * n
        for loss, n in zip(record["loss"], tokens, strict=True)
        if n != 0
    ]
    total, loss = _sum(tokens), _sum(losses)
    uniform = record["weight_uniform"]
    sums: dict[str, Any] = {
        "valid_tokens": total,
        "valid_tokens_min": _least(tokens),
        "valid_tokens_max": _most(tokens),
        "loss_weight": _sum(weights),
        "loss_weight_min": _least(weights),
        "loss_weight_max": _most(weights),
        "loss_weight_sq": _sum(record["loss_weight_sq"]),
        "weight_uniform": None if None in uniform else all(uniform),
        "token_weight_min": _least(per_token),
        "token_weight_max": _most(per_token),
        "loss": None if loss is None or not total else loss / total,
        "loss_scale_min": _least(record["loss_scale"]),
        "loss_scale_max": _most(record["loss_scale"]),
        **{name: _sum(record[name]) for name in _COUNTS if record.get(name)},
    }
    return {**record, **dict.fromkeys(LISTS), "window_sums": sums}


_COUNTS: Final = ("samples", "input_positions", "attended_positions", "masked_positions")


def _known(entries: Sequence[float | None]) -> list[float] | None:
    known = [entry for entry in entries if entry is not None]
    return known if known and len(known) == len(entries) else None


def _sum(entries: Sequence[float | None]) -> float | None:
    known = _known(entries)
    if known is None:
        return None
    return sum(known) if all(isinstance(entry, int) for entry in known) else math.fsum(known)


def _least(entries: Sequence[float | None]) -> float | None:
    known = _known(entries)
    return None if known is None else min(known)


def _most(entries: Sequence[float | None]) -> float | None:
    known = _known(entries)
    return None if known is None else max(known)
