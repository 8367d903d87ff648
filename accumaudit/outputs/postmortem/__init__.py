"""Post-mortems for people and for programs: a page, Markdown, JSON."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accumaudit.postmortem.model import PostMortem

FORMATS: Final[Mapping[str, str]] = {"html": "html", "markdown": "markdown", "json": "json_form"}
"""The formats by the names that the command line knows, and the modules that write them."""


def rendered(tellings: Sequence[PostMortem], format_: str) -> str:
    """The post-mortems in one of the formats."""
    module = importlib.import_module(f"{__name__}.{FORMATS[format_]}")
    write: Callable[[Sequence[PostMortem]], str] = module.rendered
    return write(tellings)
