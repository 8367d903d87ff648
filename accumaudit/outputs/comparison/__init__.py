"""Two runs side by side, for people and for programs: text, Markdown, JSON, a page."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison

FORMATS: Final[Mapping[str, str]] = {
    "text": "text",
    "markdown": "markdown",
    "json": "json_form",
    "html": "html",
}
"""The formats by the names that the command line knows, and the modules that write them."""


def rendered(comparison: Comparison, format_: str) -> str:
    """The comparison in one of the formats."""
    module = importlib.import_module(f"{__name__}.{FORMATS[format_]}")
    write: Callable[[Comparison], str] = module.rendered
    return write(comparison)
