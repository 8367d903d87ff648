"""Megatron's lines of iterations as columns; imported late, as it needs Arrow."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.fields import Fields, counts_of, times_in, where_any
from accumaudit.importers.reading.grep import Columns
from accumaudit.importers.reading.values import number
from accumaudit.importers.records import Records

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "learning_rate": (" learning rate:",),
    "grad_scale": (" loss scale:",),
    "grad_norm_before_clip": (" grad norm:",),
    "reported_samples": (" global batch size:",),
    "cumulative_train_tokens": (" consumed tokens:",),
}
"""How the pieces of a line begin that hold a field."""

LOSSES: Final = (" lm loss:", " lm-loss:", " loss:")
SKIPPED: Final = " number of skipped iterations:"

_HEAD: Final = r"\biteration\s+(?P<step>\d{1,15})/\s*(?P<total>\d{1,15})\s*$"
_RECORD: Final = re.compile(r"(?:\[\d{4}[^\]]*\]\s*)?\biteration\s+\d{1,15}/\s*\d{1,15}\s*\|")
_OTHER_LOSS: Final = re.compile(r"\| ?[\w ]*\bloss: *([^|\n]*)\|")


def columns(numbers: pa.Array, lines: pa.Array, records: Records) -> Columns:
    """The fields of records, one row a line; `total` and `skipped` beside those of the schema.

    Args:
        numbers: of the lines.
        lines: each with a record, and its end.
        records: is told which are torn.
    """
    fields = Fields(lines, "|")
    heads = pc.extract_regex(fields.first, _HEAD)
    if heads.null_count:  # something with bars of its own stands before the record
        lines = pa.array([_from_record(line) for line in lines.to_pylist()], pa.string())
        fields = Fields(lines, "|")
        heads = pc.extract_regex(fields.first, _HEAD)
    steps = heads.field("step").cast(pa.int64())
    found = {name: fields.numbers(*beginnings) for name, beginnings in NAMES.items()}
    norms = found["grad_norm_before_clip"]
    rows = {
        "seq": numbers,
        "attempt_id": steps,
        "reported_global_step": steps,
        "total": heads.field("total").cast(pa.int64()),
        "time": times_in(fields.first),
        "reported_loss": _losses(fields, lines),
        "skipped": counts_of(fields.numbers(SKIPPED)),
        "grad_norm_before_scope": where_any(norms, "global"),
        **found,
    }
    return _whole(rows, lines, records)


def _from_record(line: str) -> str:
    match = _RECORD.search(line)
    return line[match.start() :] if match else line


def _losses(fields: Fields, lines: pa.Array) -> pa.Array:
    """The loss of the model, or the first of another name where a line has none of that."""
    losses = fields.numbers(*LOSSES)
    if not losses.null_count:
        return losses
    missing = pc.is_null(losses)
    others = [
        number(match[1]) if (match := _OTHER_LOSS.search(line)) else None
        for line in lines.filter(missing).to_pylist()
    ]
    return pc.replace_with_mask(losses, missing, pa.array(others, pa.float64()))


def _whole(rows: Columns, lines: pa.Array, records: Records) -> Columns:
    """The rows of lines that do not end within a piece; all print the skipped iterations, near their end."""
    torn = pc.and_(pc.invert(pc.ends_with(lines, "|\n")), pc.is_null(rows["skipped"]))
    if not torn.true_count:
        return rows
    for place, line in zip(rows["seq"].filter(torn).to_pylist(), lines.filter(torn).to_pylist(), strict=True):
        records.damage(place, f"the record is torn at {line.rpartition('|')[2].strip()[:40]!r}")
    return {name: values.filter(pc.invert(torn)) for name, values in rows.items()}
