"""`logging.jsonl` of ms-swift."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import trainer_entries
from accumaudit.importers.hyperparameters import Companions
from accumaudit.importers.reading.jsonl import LONGEST_OBJECT, objects
from accumaudit.importers.reading.log import Log, LogError
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import until_failure, with_restarts

PRECISE: Final = ("loss", "grad_norm", "learning_rate", "epoch")
"""What the lines round and the object at the end does not."""

LONGEST_LOG: Final = 2**62
"""Bytes; there is no limit."""

ROUNDED: Final = 0.6e-8
"""How far a number of eight decimals is from the true one, at most."""

_STEP: Final = re.compile(r"(\d{1,15})/(\d{1,15})")

Row = tuple[int, int, int | None, dict[str, Any]]
"""Line, step, planned updates, entry."""


def read(log: Log, records: Records) -> None:
    """Give each line; the object at the end has the numbers of all of them once more, and not rounded.

    Raises:
        LogError: the log cannot be read any further.
    """
    precise, companions = _precise(log), Companions(log)
    summed_up, entries = False, trainer_entries.Entries(records)
    try:
        for (line, step, planned, entry), resumed in with_restarts(_rows(log, records), _step_of):
            if not records.begun or resumed is not None:
                entries.end(None)
                records.begin(
                    runtime="transformers", planned_updates=planned, resumed_from_update=resumed or None
                )
                records.know(**companions.facts(planned))
                summed_up = False
            if "log_history" in entry:
                # It is written in any case, also after a failure.
                entries.close(line, step, finished=summed_up, name="last object")
                continue
            summed_up |= trainer_entries.kind_of(entry) == "close"
            entries.add(line, step, _refined(entry, precise.get(step)))
    finally:
        entries.end(None)


def step_and_plan(text: object) -> tuple[int | None, int | None]:
    """The step and the planned updates in a text such as `3/30`."""
    match = _STEP.fullmatch(text.strip()) if isinstance(text, str) else None
    return (int(match[1]), int(match[2]) or None) if match else (None, None)


def _rows(log: Log, records: Records) -> Iterator[Row]:
    for line, entry in objects(log, records):
        step, planned = step_and_plan(entry.get("global_step/max_steps"))
        if step is None:
            step = whole(entry.get("global_step"))
        if step is None:
            records.damage(line, "no global_step/max_steps in it")
        else:
            yield line, step, planned, entry


def _step_of(row: Row) -> int | None:
    return row[1] if trainer_entries.kind_of(row[3]) == "update" else None


def _precise(log: Log) -> dict[int, Mapping[str, Any]]:
    """The entries of the object at the end, by their steps."""
    found: dict[int, Mapping[str, Any]] = {}
    failures: list[LogError] = []  # told when the lines are read
    blocks = log.blocks(LONGEST_LOG)  # with a limit, so that the bytes count but once as read
    for _, block in until_failure(blocks, failures):
        if b'"log_history"' not in block:
            continue
        for line in block.split(b"\n"):
            if b'"log_history"' not in line or len(line) > LONGEST_OBJECT:
                continue
            try:
                history = json.loads(line).get("log_history")
            except (ValueError, RecursionError, AttributeError):
                continue
            entries = [one for one in history if isinstance(one, dict)] if isinstance(history, list) else []
            found |= {
                step: one
                for one in entries
                if trainer_entries.kind_of(one) == "update" and (step := whole(one.get("step"))) is not None
            }
    return found


def _refined(entry: dict[str, Any], precise: Mapping[str, Any] | None) -> dict[str, Any]:
    """An entry with the digits that were rounded away."""
    if precise is None or trainer_entries.kind_of(entry) != "update":
        return entry
    refined = dict(entry)
    for name in PRECISE:
        rounded, exact = number(entry.get(name)), number(precise.get(name))
        if rounded is not None and exact is not None and abs(rounded - exact) <= ROUNDED:
            refined[name] = exact
    return refined


FORMAT: Final = Format(
    name="ms_swift",
    title="logging.jsonl of ms-swift",
    read=read,
    marker=b'"global_step',
    record=re.compile(rb'"global_step/max_steps"\s*:\s*"\d+/\d+"|"model_parameter_info"\s*:'),
    names=("logging.jsonl",),
)
