"""The loss scale of gradient scalers, copied: they change theirs in place."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor


class Scales:
    """The scale of each scaler as it was when last asked for; one copy as long as it does not change."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Tensor], int, Tensor]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, scaler: Any) -> Tensor | None:
        """A copy that nobody changes, on the scale's device; None where the scaler keeps no tensor."""
        scale = getattr(scaler, "_scale", None)
        if not isinstance(scale, Tensor):
            return None
        known = self._known.get(scaler)
        if known is None or known[0]() is not scale or known[1] != scale._version:
            known = self._known[scaler] = weakref.ref(scale), scale._version, scale.detach().clone()
        return known[2]


def torch_scaler(holder: object) -> torch.amp.GradScaler | None:
    """The scaler that a runtime's object holds as `scaler`; None where it is not of torch's kind."""
    scaler = getattr(holder, "scaler", None)
    return scaler if isinstance(scaler, torch.amp.GradScaler) else None
