"""fairseq's records of `train_inner` as columns; imported late, as it needs Arrow."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from accumaudit.importers.reading.fields import Fields, counts_of, numbers_of, times_in, where_any
from accumaudit.importers.reading.grep import Columns
from accumaudit.importers.records import Records

RECORD: Final = (
    r'\bepoch +\d{1,9}: +\d{1,15} / \d{1,15} +\w+=|\{"epoch": \d{1,9}, "update": .*"num_updates": "?\d'
)
"""A record, simple or in JSON."""

_NAMES: Final = {
    "learning_rate": "lr",
    "grad_norm_before_clip": "gnorm",
    "grad_scale": "loss_scale",
    "reported_tokens": "wpb",
    "reported_samples": "bsz",
}
_HEAD: Final = r"\bepoch +(?P<epoch>\d{1,9}): +(?P<place>\d{1,15}) / (?P<size>\d{1,15}) +loss=(?P<loss>\S+)$"
_JSON_HEAD: Final = r'\{"epoch": (?P<epoch>\d{1,9})$'
_GLUED: Final = re.compile(r"\bepoch +\d{1,9}: +\d{1,15} / ")


def columns(numbers: pa.Array, lines: pa.Array, records: Records) -> Columns:
    """The fields of records, one row each; what ranks wrote into one line is parted.

    Args:
        numbers: of the lines.
        lines: each with a record, and its end.
        records: is told which records lack their number.
    """
    numbers, lines = _parted(numbers, lines)
    fields = Fields(lines, ", ")
    updates = counts_of(_named(fields, "num_updates"))
    epochs, passes, losses = _heads(fields)
    found = {field: _named(fields, name) for field, name in _NAMES.items()}
    rows = {
        "seq": numbers,
        "optimizer_update_id": updates,
        "reported_global_step": updates,
        "reported_loss": pc.coalesce(losses, _named(fields, "loss")),
        "epoch": epochs,
        "reported_epoch": pc.coalesce(passes, _named(fields, "update")),
        "time": times_in(lines),
        "grad_norm_before_scope": where_any(found["grad_norm_before_clip"], "global"),
        **found,
    }
    return _numbered(rows, records)


def _numbered(rows: Columns, records: Records) -> Columns:
    """The rows that have a number of updates."""
    known = pc.is_valid(rows["optimizer_update_id"])
    if known.true_count == len(known):
        return rows
    for line in rows["seq"].filter(pc.invert(known)).to_pylist():
        records.damage(line, "a record without its number of updates")
    return {name: values.filter(known) for name, values in rows.items()}


def _named(fields: Fields, name: str) -> pa.Array:
    return fields.numbers(f"{name}=", f'"{name}": ')


def _heads(fields: Fields) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The epoch, the passes over the data, and the loss, as far as the first piece tells."""
    found = pc.extract_regex(fields.first, _HEAD)
    if found.null_count == len(found):
        none = pa.nulls(fields.count, pa.float64())
        found = pc.extract_regex(fields.first, _JSON_HEAD)
        epochs = none if found.null_count == len(found) else numbers_of(pc.struct_field(found, "epoch"))
        return counts_of(epochs), none, none
    epochs, places, sizes, losses = (
        numbers_of(pc.struct_field(found, name)) for name in ("epoch", "place", "size", "loss")
    )
    share = pc.divide(places, pc.if_else(pc.greater(sizes, 0), sizes, pa.scalar(None, pa.float64())))
    return counts_of(epochs), pc.add(pc.subtract(epochs, 1.0), share), losses


def _parted(numbers: pa.Array, lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Each record on a line of its own."""
    if pc.max(pc.count_substring(lines, "num_updates")).as_py() in (0, 1):
        return numbers, lines
    parts = []
    for number, line in zip(numbers.to_pylist(), lines.to_pylist(), strict=True):
        starts = [match.start() for match in _GLUED.finditer(line)]
        if len(starts) < 2:
            parts.append((number, line))
            continue
        for start, stop in zip([0, *starts[1:]], [*starts[1:], len(line)], strict=True):
            parts.append((number, line[start:stop].rstrip("\n") + ", \n"))
    return pa.array([number for number, _ in parts], pa.int64()), pa.array(
        [line for _, line in parts], pa.string()
    )
