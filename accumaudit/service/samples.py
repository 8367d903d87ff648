"""How samples are spelled in the text formats of Prometheus."""

from __future__ import annotations

import hashlib
import math
from typing import Final

from accumaudit.outputs.words import printable
from accumaudit.service.snapshot import RunView

LONGEST: Final = 256
"""Characters of a label's value."""


def label(text: object) -> str:
    """A label's value: one line of bounded length that every parser takes, and the same for the same text."""
    value = printable(str(text))
    if len(value) <= LONGEST:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:12]
    return f"{value[: LONGEST - 13]}~{digest}"


def escaped(value: str) -> str:
    """A label's value as it stands between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def spelled(value: float) -> str:
    """A sample as the exposition formats spell it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def run_info(run: RunView) -> tuple[str, str, str, str]:
    """The labels that say what a run is."""
    world = "" if run.report.world_size is None else str(run.report.world_size)
    return label(run.run_id), label(run.report.runtime or ""), label(run.wrapper or ""), world
