"""A comparison as a page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accumaudit.outputs.postmortem.html import comparison_page

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison


def rendered(comparison: Comparison) -> str:
    """The page."""
    return comparison_page(comparison)
