"""Moving averages of the parameters, as torch.optim.swa_utils makes them."""

from __future__ import annotations

import inspect
from typing import Any


def decay_of(average: Any) -> float | None:
    """The decay of an `AveragedModel`; None for equal weights and for functions that keep no `decay`."""
    function = getattr(average, "multi_avg_fn", None) or getattr(average, "avg_fn", None)
    if not callable(function):
        return None
    function = inspect.unwrap(function)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))
    decay = cells["decay"].cell_contents if "decay" in cells else None
    return float(decay) if isinstance(decay, (int, float)) else None
