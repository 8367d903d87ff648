"""What wandb keeps in files of its own: the last values of a run, and in old versions its history.

Text that a run printed is in `output.log`, in whatever grammar. `_step` numbers the calls of the logger,
which says nothing of updates: a counter of the loop itself goes before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.metric_names import SUMMARY, field_of, is_evaluation
from accumaudit.importers.reading import table
from accumaudit.importers.reading.jsonl import objects
from accumaudit.importers.reading.log import HEAD, Log, LogError
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import with_restarts

_FROM_1: Final = ("train/global_step", "global_step", "iteration", "step")
_FROM_0: Final = ("trainer/global_step", "iter")
"""Counters of loops; Lightning's and nanoGPT's count from 0."""


def read_summary(log: Log, records: Records) -> None:
    """Give the one record that the last values are."""
    try:
        values = json.loads(log.document())
    except RecursionError:
        raise LogError("nested too deeply") from None
    except ValueError as error:
        raise LogError(f"no JSON ({error})") from None
    if not isinstance(values, dict):
        raise LogError("no JSON object")
    records.begin(**_facts(log, values))
    attempt = _attempt(values)
    _give(1, values, attempt, records)
    if not records.count:
        records.mark(1, "close", attempt_id=attempt, time=number(values.get("_timestamp")))


def read_history(log: Log, records: Records) -> None:
    """Give each call of the logger that tells of an update or of an evaluation."""
    facts: dict[str, Any] | None = None
    told = 0
    for (line, values), resumed in with_restarts(objects(log, records), _attempt_of_row):
        if facts is None:
            facts = _facts(log, values)
        if resumed is not None or not records.begun:
            records.begin(**facts, resumed_from_update=resumed or None)
        told += bool(_fields(values))
        # Without a counter of the loop the updates that were logged are numbered: calls are of all kinds.
        _give(line, values, _attempt(values) if _counter(values) else told, records)


def _facts(log: Log, values: Mapping[str, Any]) -> dict[str, Any]:
    runtime = None
    if any(name in values for name in ("train/global_step", *SUMMARY)):
        runtime = "transformers"
    elif "trainer/global_step" in values:
        runtime = "lightning"
    elif {"iter", "mfu"} <= values.keys():
        runtime = "nanogpt"
    return {"runtime": runtime, **hyperparameters.declared(log)}


def _give(line: int, values: Mapping[str, Any], attempt: int | None, records: Records) -> None:
    time, fields = number(values.get("_timestamp")), _fields(values)
    if attempt is not None and fields:
        counter = whole(values.get(_counter(values)))
        records.update(line, attempt, reported_global_step=counter, time=time, **fields)
    elif any(name in values for name in SUMMARY):
        records.mark(line, "close", attempt_id=attempt, time=time, finished=True)
    elif any(map(is_evaluation, values)):
        records.mark(line, "eval", attempt_id=attempt, time=time)


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        field = field_of(name)
        if field is not None and field != "epoch" and (size := number(value)) is not None:
            found.setdefault(field, size)
    if not found.keys() - {"reported_epoch"}:
        return {}
    if "grad_norm_before_clip" in found:
        found["grad_norm_before_scope"] = "global"
    return found


def _attempt_of_row(row: tuple[int, Mapping[str, Any]]) -> int | None:
    return _attempt(row[1]) if _fields(row[1]) else None


def _attempt(values: Mapping[str, Any]) -> int | None:
    name = _counter(values)
    counter = whole(values.get(name))
    return counter if counter is None else counter + (name in _FROM_0)


def _counter(values: Mapping[str, Any]) -> str:
    """The name of the loop's own counter; empty where there is none."""
    return next((name for name in (*_FROM_1, *_FROM_0) if whole(values.get(name)) is not None), "")


def _is_summary(head: bytes) -> bool:
    """One object, on one line or on many, with the names that wandb adds."""
    if not head.lstrip().startswith(b"{"):
        return False
    try:
        found = json.loads(head)
    except (ValueError, RecursionError):
        return len(head) == HEAD and b'"_wandb"' in head
    return isinstance(found, dict) and ("_wandb" in found or {"_step", "_runtime"} <= found.keys())


def _is_history(head: bytes) -> bool:
    return any({"_step", "_timestamp"} <= found.keys() for found in table.first_objects(head)[:1])


SUMMARY_FORMAT: Final = Format(
    name="wandb_summary",
    title="wandb-summary.json",
    read=read_summary,
    begins=_is_summary,
    names=("wandb-summary.json", "output.log"),
)

HISTORY_FORMAT: Final = Format(
    name="wandb_history",
    title="wandb-history.jsonl",
    read=read_history,
    begins=_is_history,
    names=("wandb-history.jsonl",),
)
