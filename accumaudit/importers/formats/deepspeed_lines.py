"""DeepSpeed's lines of steps as columns; imported late, as it needs Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.fields import numbers_of, times_in
from accumaudit.importers.reading.grep import Columns

RECORD: Final = (
    r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\[|\bsteps: \d{1,15} loss: \S|\bmicro_step=\d{1,15}/global_step="
)
"""A line of a step; what the engine of a pipeline, and the timer, say of it in a line of their own."""

_STEP: Final = r"\bstep=(?P<step>\d{1,15}), skipped=(?P<skipped>\d{1,15}), lr=\[(?P<rates>[^\]\n]*)\]"
_LOSS: Final = r"\bsteps: (?P<step>\d{1,15}) loss: (?P<value>\S+)"
_TIMER: Final = r"\bmicro_step=(?P<value>\d{1,15})/global_step=(?P<step>\d{1,15})\b"


def columns(numbers: pa.Array, lines: pa.Array) -> Columns:
    """The fields of steps, one row each; `skipped` and `micro_steps` beside those of the schema."""
    found = pc.extract_regex(lines, _STEP)
    known = found.is_valid()
    rows = found.filter(known)
    steps = rows.field("step").cast(pa.int64())
    rates = _rates(rows.field("rates"))
    said = _Said(steps, known, lines)
    return {
        "seq": numbers.filter(known),
        "attempt_id": steps,
        "reported_global_step": steps,
        "skipped": rows.field("skipped").cast(pa.int64()),
        "learning_rate": pc.list_element(rates, 0),
        "learning_rates": rates,
        "time": times_in(lines.filter(known)),
        "reported_loss": said.of_steps(_LOSS),
        "micro_steps": said.of_steps(_TIMER),
    }


class _Said:
    """What other lines say of the steps before them."""

    def __init__(self, steps: pa.Array, known: pa.Array, lines: pa.Array) -> None:
        self._steps = steps
        self._rows = pa.array(list(range(len(steps))), pa.int64())
        others = pc.invert(known)
        self._lines = lines.filter(others)
        self._last = pc.subtract(pc.cumulative_sum(known.cast(pa.int64())), 1).filter(others)
        """The row of the last step before each line."""

    def of_steps(self, pattern: str) -> pa.Array:
        """The value of each step's line, which repeats its number."""
        found = pc.extract_regex(self._lines, pattern)
        theirs = found.is_valid()
        if not len(self._steps) or not theirs.true_count:
            return pa.nulls(len(self._steps), pa.float64())
        found, last = found.filter(theirs), self._last.filter(theirs)
        steps = self._steps.take(pc.max_element_wise(last, 0))
        same = pc.and_(pc.equal(steps, found.field("step").cast(pa.int64())), pc.greater_equal(last, 0))
        values = numbers_of(found.field("value").filter(same))
        return values.take(pc.index_in(self._rows, last.filter(same)))


def _rates(texts: pa.Array) -> pa.Array:
    pieces = pc.split_pattern(texts, ",")
    return pa.ListArray.from_arrays(pieces.offsets, numbers_of(pieces.flatten()))
