"""The faults, one for each rule: the right loop with one thing done wrong, as people have done it."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from accumaudit.demo.registry import FAULTS

__all__ = ["FAULTS"]

FAMILIES: Final = (
    "normalisation",
    "window",
    "schedule",
    "clipping",
    "synchronisation",
    "ranks",
    "precision",
    "bookkeeping",
    "trajectory",
)

for family in FAMILIES:
    import_module(f"{__name__}.{family}")
