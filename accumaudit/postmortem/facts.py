"""What a run is: how it was launched and what was declared, in words."""

from __future__ import annotations

from typing import Any, Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.outputs.text import size
from accumaudit.outputs.words import number, plural, printable

_DECLARED: Final = """
SELECT max(launch) AS launches, arg_max(wrapper, launch) AS wrapper, arg_max(precision, launch) AS precision,
       arg_max(accumulation_steps, launch) AS accumulation_steps,
       arg_max(max_grad_norm, launch) AS max_grad_norm, arg_max(scheduler_class, launch) AS scheduler_class,
       arg_max(planned_updates, launch) AS planned_updates, arg_max(warmup_updates, launch) AS warmup_updates,
       arg_max(peak_learning_rate, launch) AS peak_learning_rate,
       arg_max(min_learning_rate, launch) AS min_learning_rate,
       arg_max(gradient_divisor, launch) AS gradient_divisor, arg_max(optimizers, launch) AS optimizers,
       arg_max(recorded_every, launch) AS recorded_every
FROM runs WHERE run_id = $1
"""

Declared = dict[str, Any]


def declared(connection: duckdb.DuckDBPyConnection, run: RunReport) -> Declared:
    """What the last launch of a run declares of itself; None where it does not tell."""
    cursor = connection.execute(_DECLARED, [run.run_id])
    names = [column[0] for column in cursor.description]
    return dict(zip(names, cursor.fetchall()[0], strict=True))


def facts(run: RunReport, known: Declared) -> tuple[tuple[str, str], ...]:
    """A label and a text for each thing that is known of the run."""
    rows: list[tuple[str, str | None]] = [
        ("Record", size(run)),
        ("Launches", str(known["launches"]) if (known["launches"] or 0) > 1 else None),
        ("Framework", run.runtime),
        ("Wrapper", known["wrapper"]),
        ("Precision", known["precision"]),
        ("Optimizer", _optimizers(known["optimizers"])),
        ("Micro-steps to an update", _count(known["accumulation_steps"])),
        ("Gradients are divided by", _value(known["gradient_divisor"])),
        ("Limit of the norm", _value(known["max_grad_norm"])),
        ("Scheduler", known["scheduler_class"]),
        ("Peak rate", _value(known["peak_learning_rate"])),
        ("Lowest rate", _value(known["min_learning_rate"])),
        ("Warm-up", _updates(known["warmup_updates"])),
        ("Planned", _updates(known["planned_updates"])),
        ("Recorded", f"one attempt in {known['recorded_every']:,}" if known["recorded_every"] else None),
    ]
    return tuple((label, printable(text)) for label, text in rows if text)


def _optimizers(described: list[dict[str, Any]] | None) -> str | None:
    names = [one["class"] or one["name"] or "" for one in described or []]
    return ", ".join(name for name in names if name) or None


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _value(value: float | None) -> str | None:
    return None if value is None else number(value)


def _updates(value: int | None) -> str | None:
    return None if value is None else plural(value, "update")
