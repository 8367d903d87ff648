"""torchtitan's lines of steps as columns; imported late, as it needs Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.fields import numbers_of, times_in, where_any
from accumaudit.importers.reading.grep import Columns

RECORD: Final = r"\bstep: +\d{1,15}  +loss: +\S"
"""A line of a step."""

_STEP: Final = r"\bstep: +(?P<step>\d{1,15})  +loss: +(?P<loss>\S+)"
_NORM: Final = r"\bgrad_norm: +(?P<value>\S+)"
_RATE: Final = r"\blr: +(?P<value>\S+)"


def columns(numbers: pa.Array, lines: pa.Array) -> Columns:
    """The fields of steps, one row a line."""
    found = pc.extract_regex(lines, _STEP)
    steps = found.field("step").cast(pa.int64())
    norms = _values(lines, "grad_norm: ", _NORM)
    return {
        "seq": numbers,
        "attempt_id": steps,
        "reported_global_step": steps,
        "reported_loss": numbers_of(found.field("loss")),
        "grad_norm_before_clip": norms,
        "grad_norm_before_scope": where_any(norms, "global"),
        "learning_rate": _values(lines, " lr: ", _RATE),
        "time": times_in(lines),
    }


def _values(lines: pa.Array, name: str, pattern: str) -> pa.Array:
    if not pc.any(pc.match_substring(lines, name)).as_py():
        return pa.nulls(len(lines), pa.float64())
    return numbers_of(pc.struct_field(pc.extract_regex(lines, pattern), "value"))
