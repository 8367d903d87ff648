"""Runs of which only a few measures are known, many in one folder: reading takes longer than judging."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accumaudit.engine.catalogue import load_rules
from accumaudit.ledger.reader import Ledger, read_ledger
from tests.records import to_line

Row = dict[str, Any]

RUN: Row = {"record": "run", "schema": 1, "launch": "a", "rank": 0, "started_at": 1.0, "world_size": 1}


def write_series(folder: Path, cases: Mapping[str, Iterable[Mapping[str, Any]]], **run_fields: Any) -> Path:
    """Write a run for each case, a dict for each attempt; norms are those of all parameters."""
    for case, attempts in cases.items():
        path = folder / case / "rank-00" / "00000.a.jsonl"
        path.parent.mkdir(parents=True)
        lines = [RUN | run_fields]
        for attempt, fields in enumerate(attempts, 1):
            head = {"record": "update", "launch": "a", "rank": 0, "optimizer": 0, "attempt_id": attempt}
            lines.append(head | {"grad_norm_before_scope": "global"} | dict(fields))
        path.write_text("".join(map(to_line, lines)), encoding="utf-8")
    return folder


def rows_of(code: str, path: Path) -> dict[str, list[Row]]:
    """The rows of a rule over each run below a folder."""
    with read_ledger([path]) as ledger:
        return judged(code, ledger)


def judged(code: str, ledger: Ledger) -> dict[str, list[Row]]:
    """The rows of a rule over each run of a ledger."""
    rule = load_rules()[code]
    found: dict[str, list[Row]] = {run_id: [] for run_id, _ in ledger.runs}
    cursor = ledger.connection.execute(rule.sql, dict(rule.params) or None)
    names = [column[0] for column in cursor.description]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        found[row["run_id"]].append(row)
    return found


def verdicts_of(code: str, path: Path) -> dict[str, list[bool | None]]:
    """The verdicts alone, each once: what a run is accused of, cleared of, or left open."""
    return {
        run_id: sorted({row["fault"] for row in rows}, key=repr)
        for run_id, rows in rows_of(code, path).items()
    }


def faults_of(code: str, path: Path) -> dict[str, list[Row]]:
    """The faulty rows of each run that has any."""
    return faulty(rows_of(code, path))


def faulty(found: Mapping[str, Iterable[Row]]) -> dict[str, list[Row]]:
    """The faulty rows among those found, in their order."""
    faults = {run_id: [row for row in rows if row["fault"]] for run_id, rows in found.items()}
    return {run_id: sorted(rows, key=_place) for run_id, rows in faults.items() if rows}


def each(cases: Iterable[str], *verdicts: bool | None) -> dict[str, list[bool | None]]:
    """The same verdicts for each case."""
    return {case: list(verdicts) for case in cases}


def columns(**values: Sequence[Any]) -> list[Row]:
    """Attempts by their columns."""
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def write_jsonl(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """A foreign log of one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def megatron_line(step: int, **fields: Any) -> str:
    """A line of an iteration as Megatron prints it."""
    known = {
        "consumed samples": 4 * step,
        "learning rate": "1.000000E-04",
        "global batch size": 4,
        "lm loss": f"{2 + 8 / step:.6E}",
        "loss scale": 65536.0,
        "number of skipped iterations": 0,
        "number of nan iterations": 0,
    }
    shown = {name: value for name, value in (known | fields).items() if value is not None}
    cells = " | ".join(f"{name}: {value}" for name, value in shown.items())
    return f" iteration {step:8}/ {100_000} | {cells} |\n"


def _place(row: Row) -> tuple[int, int]:
    return row["launch"] or 0, row["attempt_id"] or 0
