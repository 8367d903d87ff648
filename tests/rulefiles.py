"""Hand-made rule files: every default is a sound rule, so that a test states only what differs."""

from __future__ import annotations

import json
from pathlib import Path

HEADER: dict[str, object] = {
    "severity": "error",
    "since": "0.1.0",
    "scope": "transaction",
    "scope_is_empty": "nothing was in scope",
    "needs": ["microbatches"],
    "summary": "something is wrong",
    "why": "It is a test.",
    "example": "None.",
    "fix": "Nothing\nto do.\n\nA second paragraph.",
    "not_a_fault_when": "Always.",
}


def rows(fault: str = "false", *, where: str = "true", more: str = "", rank: str = "NULL") -> str:
    """A query over the attempts."""
    table = "windows" if rank == "NULL" else "updates"
    return (
        f"SELECT run_id, launch, optimizer, attempt_id, {rank} AS rank, {fault} AS fault, 0.5 AS observed,\n"
        f"       1 AS expected, format('attempt {{}} is wrong', attempt_id) AS message{more}\n"
        f"FROM {table} WHERE {where}"
    )


def rule_text(code: str, name: str, sql: str, **header: object) -> str:
    """The text of a rule; a value of None leaves a key out."""
    values = {"code": code, "name": name, **HEADER, **header}
    params = values.pop("params", None)
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    if isinstance(params, dict):
        lines += ["[params]", *(f"{key} = {value}" for key, value in params.items())]
    return "\n".join(["/*", *lines, "*/", sql, ""])


def write_rule(folder: Path, code: str, sql: str, *, name: str = "", **header: object) -> Path:
    """Write a rule where a catalogue looks for it."""
    name = name or f"fault-{code.lower()}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{code}_{name.replace('-', '_')}.sql"
    file.write_text(rule_text(code, name, sql, **header), encoding="utf-8")
    return file
