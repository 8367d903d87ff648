"""A comparison as JSON, in a form that stays as it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from accumaudit.outputs.json_report import finite

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison

SCHEMA: Final = 1

_CHARTS: Final = ("histories", "near", "near_heads")
"""What is there for tables and charts."""


def rendered(comparison: Comparison) -> str:
    """One JSON object, in ASCII."""
    return json.dumps({"schema": SCHEMA, **fields(comparison)}, indent=2)


def fields(comparison: Comparison) -> dict[str, Any]:
    """The comparison as that object, without the number of the schema."""
    values = {name: value for name, value in asdict(comparison).items() if name not in _CHARTS}
    found = finite({"same": comparison.same, **values})
    assert isinstance(found, dict)
    return found
