"""The SQL that follows from the schema: the columns of `records`, and how each is read and cleaned."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Final

from accumaudit.ledger.schema import FIELDS, RECORD_FIELD, Field

PER_MICRO_STEP: Final = (
    "valid_tokens",
    "loss_weight",
    "loss_weight_sq",
    "weight_uniform",
    "loss",
    "loss_scale",
    "samples",
    "input_positions",
    "attended_positions",
    "masked_positions",
    "data_digest",
)
"""The lists of an update that have one entry per micro-step."""

_SOUND: Final = {
    "DOUBLE": "isfinite({})",
    "BIGINT": "{} BETWEEN -9007199254740992 AND 9007199254740992",
}
"""Numbers are finite, and integers fit in 53 bits; a larger one would make sums overflow."""

_SUSPICIOUS: Final = {
    "DOUBLE": "isfinite(list_sum({0})) IS FALSE",
    "BIGINT": "list_max({0}) > 9007199254740992 OR list_min({0}) < -9007199254740992",
}
"""What is true of a list where an entry is not sound, and of hardly any other."""


def quoted(text: str) -> str:
    """A string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def cast(present: Container[str]) -> str:
    """All fields from a table that has some of them, in whatever types."""
    return ", ".join(
        f"TRY_CAST({_name(field) if field.name in present else 'NULL'} AS {field.type}) AS {_name(field)}"
        for field in _FIELDS
    )


def view(kind: str) -> str:
    """Create the view of one kind's records: its own fields, whose they are and where they stand."""
    names = ["r.lists_agree"] if kind == "update" else []
    for field in FIELDS[kind]:
        if field.name != "launch":
            names += [f"r.{_name(field)}", *([f'r."{field.name}_nonfinite"'] if _has_flag(field) else [])]
    return f"""
        CREATE VIEW {kind}_records AS
        SELECT s.run_id, s.launch, r.launch AS launch_token, {", ".join(names)},
               f.file, r.n - f.first + 1 AS line, r.n AS place
        FROM records r
        JOIN segments s ON r.file_id = s.file_id AND r.launch = s.token AND r.rank = s.rank
                       AND r.n >= s.first AND r.n < s.last
        JOIN files f ON f.file_id = r.file_id
        WHERE r.record = {quoted(kind)} AND r.readable
    """


def _all_fields() -> tuple[Field, ...]:
    """Every field of the three kinds of record once; a name that two kinds share has one type."""
    fields: dict[str, Field] = {RECORD_FIELD.name: RECORD_FIELD}
    for kind in FIELDS.values():
        for field in kind:
            shared = fields.setdefault(field.name, field)
            assert shared.type == field.type, f"two types of {field.name}"
    return tuple(fields.values())


def _name(field: Field) -> str:
    return '"' + field.name.replace('"', '""') + '"'


def _has_flag(field: Field) -> bool:
    return field.type in ("DOUBLE", "DOUBLE[]")


def _selected(field: Field) -> str:
    """A field as `records` keeps it: NULL where it is not finite, lists only where their lengths agree."""
    name = _name(field)
    value = _cleaned(field)
    if field.name in PER_MICRO_STEP:
        value = f"CASE WHEN lists_agree THEN {value} END"
    return f"{value} AS {name}" + (
        f', {_flag(field)} AS "{field.name}_nonfinite"' if _has_flag(field) else ""
    )


def _cleaned(field: Field) -> str:
    """The field without numbers that no sum or product can be trusted with."""
    name = _name(field)
    element = field.type.removesuffix("[]")
    if field.type in _SOUND:
        return _sound(name, field.type)
    if element in _SOUND:
        each = f"list_transform({name}, lambda x: {_sound('x', element)})"
        return f"CASE WHEN {_SUSPICIOUS[element].format(name)} THEN {each} ELSE {name} END"
    members = re.findall(r'("?\w+"?) (\w+)', field.type.removeprefix("STRUCT("))
    if any(kind == "DOUBLE" for _, kind in members):
        whole = "x" if field.type.endswith("[]") else name
        packed = ", ".join(f"{member} := {_sound(f'{whole}.{member}', kind)}" for member, kind in members)
        if whole == name:
            return f"CASE WHEN {name} IS NOT NULL THEN struct_pack({packed}) END"
        return f"list_transform({name}, lambda x: struct_pack({packed}))"
    return name


def _sound(value: str, kind: str) -> str:
    return f"CASE WHEN {_SOUND[kind].format(value)} THEN {value} END" if kind in _SOUND else value


def _flag(field: Field) -> str:
    """Whether a field, or an entry of it, is not finite; a finite sum says that none is."""
    name = _name(field)
    if field.is_float:
        return f"NOT isfinite({name})"
    count = f"len(list_filter({name}, lambda x: NOT isfinite(x)))"
    return (
        f"CASE WHEN {_SUSPICIOUS['DOUBLE'].format(name)} THEN {count} > 0 "
        f"WHEN {name} IS NOT NULL THEN false END"
    )


def _readable() -> str:
    """Whether a record is of a known kind and has all that its kind requires."""
    kinds = []
    for kind, fields in FIELDS.items():
        required = [
            _SOUND.get(field.type, "{} IS NOT NULL").format(_name(field))
            for field in fields
            if field.required
        ]
        kinds.append(" AND ".join([f"record = {quoted(kind)}", *required]))
    return "coalesce(" + " OR ".join(f"({kind})" for kind in kinds) + ", false)"


def _lists_agree() -> str:
    """Whether all lists of an update that are there have as many entries as it has micro-steps."""
    lengths = ", ".join(f"len({name})" for name in PER_MICRO_STEP)
    return (
        f"coalesce(least({lengths}) = greatest({lengths}) "
        f"AND coalesce(microbatches = greatest({lengths}), true), true)"
    )


def _defined() -> str:
    columns = ["readable BOOLEAN", "lists_agree BOOLEAN"]
    for field in _FIELDS:
        columns.append(f"{_name(field)} {field.type}")
        if _has_flag(field):
            columns.append(f'"{field.name}_nonfinite" BOOLEAN')
    return ", ".join(columns)


_FIELDS: Final = _all_fields()

STRUCTURE: Final = quoted(json.dumps({field.name: field.type for field in _FIELDS}))
"""The types of all fields, for from_json."""

DEFINED: Final = _defined()
"""The columns of `records`, beside n and file_id."""

LISTS_AGREE: Final = _lists_agree()
"""The column lists_agree, from fields as they were read; SELECTED wants it beside them."""

SELECTED: Final = ", ".join([f"{_readable()} AS readable", "lists_agree", *map(_selected, _FIELDS)])
"""The columns of `records`, from fields as they were read."""
