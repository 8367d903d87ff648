"""Two runs side by side: where their updates first differ, and in what."""

from __future__ import annotations

from accumaudit.comparison.model import BYS, TOLERANCE, By, Comparison

__all__ = ["BYS", "TOLERANCE", "By", "Comparison"]
