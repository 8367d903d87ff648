"""The SQL that follows from the schema: how each field is stored, cleaned, and seen again."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from typing import Final

from accumaudit.ledger.derived import DERIVED
from accumaudit.ledger.schema import FIELDS, RECORD_FIELD, UPDATE_FIELDS, Field
from accumaudit.ledger.sums import LISTS

STORED_TYPES: Final = {"probe_gradient": "FLOAT[]"}
"""Types that differ from the schema's: gradients have no more digits, and these lists are the longest."""

_SOUND: Final = {
    "DOUBLE": "isfinite({})",
    "BIGINT": "{} BETWEEN -9007199254740992 AND 9007199254740992",
}
"""Numbers are finite, and integers fit in 53 bits; a larger one would make sums overflow."""

_SUSPICIOUS: Final = {
    "DOUBLE": "isfinite(list_sum({0})) IS FALSE",
    "FLOAT": "isfinite(list_sum({0})) IS FALSE",
    "BIGINT": "list_max({0}) > 9007199254740992 OR list_min({0}) < -9007199254740992",
}
"""What is true of a list where an entry is not sound, and of hardly any other."""


def quoted(text: str) -> str:
    """A string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def cast(present: Container[str]) -> str:
    """All fields from a table that has some of them, in whatever types."""
    return ", ".join(
        f"TRY_CAST({_name(field) if field.name in present else 'NULL'} AS {_type(field)}) AS {_name(field)}"
        for field in _FIELDS
    )


def filled(present: Container[str]) -> str | None:
    """The columns that records with these fields fill; None where the fields describe micro-steps.

    A log of another program has few of the fields, and a column costs time and room where it is NULL too.
    """
    if any(name in present for name in _OF_WINDOWS):
        return None
    stored = [_stored(field) for field in UPDATE_FIELDS if field.name in present]
    rest = [_rest(_RARE)] if any(field.name in present for field in _RARE) else []
    kept = ["CASE WHEN readable THEN record END AS record", "true AS lists_agree", *stored, *rest]
    return ", ".join([*kept, "true AS weights_uniform"])


def rare(name: str) -> str:
    """A field of the table `records` that runs and marks alone have."""
    return f'rest[1]."{name}"'


def table(kind: str) -> str:
    """Create the table of the records of runs or marks: their fields, whose they are, where they stand."""
    names = []
    for field in FIELDS[kind]:
        if field.name != "launch":
            names += list(_seen(field))
    return f"""
        CREATE TABLE {kind}_records AS
        SELECT h.run_id, h.launch, r.launch AS launch_token, {", ".join(names)},
               h.file, if(h.numbered, r.seq, r.n - h.first_line + 1) AS line, r.n AS place
        FROM stored.records r
        JOIN stored.homes h ON r.file_id = h.file_id AND r.launch = h.token AND r.rank = h.rank
                           AND r.n >= h.first AND r.n < h.last
        WHERE r.record = {quoted(kind)}
    """


def _seen(field: Field) -> Iterator[str]:
    """A field of the table `records` under its own name again, and its flag."""
    own = field.name in _OF_UPDATES
    value = f"r.{_name(field)}" if own else _cleaned(field, f"r.{rare(field.name)}")
    yield f"{value} AS {_name(field)}"
    if _has_flag(field):
        name = f'"{field.name}_nonfinite"'
        yield f"r.{name}" if own else f"{_flag(field, f'r.{rare(field.name)}')} AS {name}"


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


def _type(field: Field) -> str:
    return STORED_TYPES.get(field.name, field.type)


def _has_flag(field: Field) -> bool:
    return field.type in ("DOUBLE", "DOUBLE[]") or bool(_doubles(field))


def _members(field: Field) -> list[tuple[str, str]]:
    """The names and types in a STRUCT, or in a list of them."""
    return re.findall(r'("?\w+"?) (\w+)', field.type.removeprefix("STRUCT("))


def _doubles(field: Field) -> list[str]:
    """The members of a STRUCT, not of a list of them, that may be not finite."""
    if field.type.endswith("[]"):
        return []
    return [member for member, kind in _members(field) if kind == "DOUBLE"]


def _stored(field: Field) -> str:
    """A field of updates as `records` keeps it: NULL where not finite, lists where their lengths agree."""
    name = _name(field)
    value = _cleaned(field, name)
    if field.name in LISTS:
        value = f"CASE WHEN lists_agree THEN {value} END"
    flag = f', {_flag(field, name)} AS "{field.name}_nonfinite"' if _has_flag(field) else ""
    return f"{value} AS {name}{flag}"


def _cleaned(field: Field, value: str) -> str:
    """The field without numbers that no sum or product can be trusted with."""
    if field.type in _SOUND:
        return _sound(value, field.type)
    kind = field.type.removesuffix("[]")
    if kind in _SOUND:
        each = f"list_transform({value}, lambda x: {_sound('x', kind)})"
        return f"CASE WHEN {_SUSPICIOUS[kind].format(value)} THEN {each} ELSE {value} END"
    if not any(member == "DOUBLE" for _, member in _members(field)):
        return value
    if not field.type.endswith("[]"):
        return _packed(field, value)
    return f"list_transform({value}, lambda x: {_packed(field, 'x')})"


def _packed(field: Field, value: str) -> str:
    members = (f"{name} := {_sound(f'{value}.{name}', kind)}" for name, kind in _members(field))
    return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(members)}) END"


def _sound(value: str, kind: str) -> str:
    return f"CASE WHEN {_SOUND[kind].format(value)} THEN {value} END" if kind in _SOUND else value


def _flag(field: Field, value: str) -> str:
    """Whether a field, or an entry of it, is not finite; a finite sum says that none is."""
    if field.is_float:
        return f"NOT isfinite({value})"
    if members := _doubles(field):
        wrong = " OR ".join(f"coalesce(NOT isfinite({value}.{name}), false)" for name in members)
        return f"CASE WHEN {value} IS NOT NULL THEN {wrong} END"
    count = f"len(list_filter({value}, lambda x: NOT isfinite(x)))"
    return (
        f"CASE WHEN {_SUSPICIOUS['DOUBLE'].format(value)} THEN {count} > 0 "
        f"WHEN {value} IS NOT NULL THEN false END"
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
    lengths = ", ".join(f"len({name})" for name in LISTS)
    return (
        f"coalesce(least({lengths}) = greatest({lengths}) "
        f"AND coalesce(microbatches = greatest({lengths}), true), true)"
    )


def _rest(fields: Sequence[Field]) -> str:
    """The fields that no update has, in a list of one, so that a million updates pay nothing for them."""
    members = ", ".join(f"{_name(field)} := {_name(field)}" for field in fields)
    return f"CASE WHEN record IS DISTINCT FROM 'update' THEN [struct_pack({members})] END AS rest"


_FIELDS: Final = _all_fields()
_OF_UPDATES: Final = frozenset(field.name for field in UPDATE_FIELDS)
_OF_WINDOWS: Final = (*LISTS, "events", "loss_terms", "window_sums")
"""Fields from which more columns follow."""
_RARE: Final = [field for field in _FIELDS[1:] if field.name not in _OF_UPDATES]

TYPES: Final = {field.name: _type(field) for field in _FIELDS}

STRUCTURE: Final = quoted(json.dumps(TYPES))
"""The types of all fields, for from_json."""

COLUMNS: Final = "{" + ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in TYPES.items()) + "}"
"""The same, for read_json."""

JUDGED: Final = f"*, {_lists_agree()} AS lists_agree, {_readable()} AS readable"
"""What CLEANED wants beside the fields as they were read."""

CLEANED: Final = ", ".join(
    [
        "CASE WHEN readable THEN record END AS record",
        "lists_agree",
        *map(_stored, UPDATE_FIELDS),
        _rest(_RARE),
    ]
)
"""The fields as they are kept: `record` is NULL where a line is no record."""

# A STRUCT takes its room even where it is NULL, a list of one does not.
STORED: Final = f"""
    * EXCLUDE (steps, token_weights, token_losses)
      REPLACE (CASE WHEN window_sums IS NOT NULL THEN [window_sums] END AS window_sums), {DERIVED}
"""
"""The columns of the table `records`."""
