"""The tables `schedules` and `positions`, from the rates that a record or a log holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from accumaudit.schedules.inversion import Rates
from accumaudit.schedules.recognition import Declared, Fit, recognise
from accumaudit.schedules.shapes import Numbers

FITTED: Final = ("warmup_updates", "schedule_updates", "decay_updates", "peak", "minimum", "power", "habit")
"""Columns that a schedule has where the rates fit it."""

FROM_ZERO: Final = ("transformers", "megatron")
"""Runtimes whose own warm-ups begin at a rate of 0; one's own schedule is declared to none."""

_DECLARED: Final = """
SELECT run_id, launch, max(schedule), max(warmup_updates), max(coalesce(schedule_updates, planned_updates)),
       max(decay_updates), max(peak_learning_rate), max(min_learning_rate), max(schedule_power), max(runtime),
       any_value(format) = 'ledger', max(resumed_from_update),
       max(coalesce(schedule_unit, 'updates')) = 'updates'
           AND max(coalesce(scheduler_steps_per_update, 1)) = 1
FROM runs GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a launch declares."""

    declared: Declared
    resumed: bool
    in_updates: bool


def insert(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill both tables from the rates in the table `rates`."""
    schedules: list[dict[str, Any]] = []
    positions: list[pa.Table] = []
    setups = _setups(connection)
    for _, launches in groupby(_launches(connection), key=lambda one: (one.run_id, one.optimizer)):
        before: Fit | None = None
        habit = None
        for launch in launches:
            setup = setups[launch.run_id, launch.launch]
            follows = before.schedule if before is not None and setup.resumed else None
            fit = recognise(launch.rates, setup.declared, follows) if setup.in_updates else None
            if fit is not None and (habit is None or not setup.resumed):
                habit = _habit(launch.rates, fit)
            schedules.append(_schedule(launch, setup, fit, habit if fit else None))
            if launch.logged and fit is not None:
                positions.append(_positions(launch, fit, habit or 0))
            before = fit or (before if setup.resumed else None)
    _store(connection, "schedules", pa.Table.from_pylist(schedules))
    for table in positions:
        _store(connection, "positions", table)


@dataclass(frozen=True, slots=True)
class _Launch:
    run_id: str
    launch: int
    optimizer: int
    logged: bool
    rates: Rates


def _launches(connection: duckdb.DuckDBPyConnection) -> list[_Launch]:
    """The rates of each launch and optimizer."""
    columns = connection.execute("FROM rates ORDER BY run_id, optimizer, launch, attempt_id").fetchnumpy()
    keys: list[Any] = [columns[name] for name in ("run_id", "launch", "optimizer", "logged")]
    attempts = _numbers(columns["attempt_id"])
    updates = _numbers(columns["optimizer_update_id"])
    rates = _numbers(columns["rate"])
    found = []
    for first, last in _stretches(keys):
        chosen = slice(first, last)
        counted = attempts if np.isnan(updates[chosen]).any() else updates
        run_id, launch, optimizer, logged = (key[first] for key in keys)
        found.append(
            _Launch(
                str(run_id),
                int(launch),
                int(optimizer),
                bool(logged),
                Rates.of(attempts[chosen], counted[chosen], rates[chosen]),
            )
        )
    return found


def _stretches(keys: list[Any]) -> Iterator[tuple[int, int]]:
    """Where equal keys begin and end."""
    count = len(keys[0])
    if count:
        changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
        starts = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
        yield from pairwise(starts)


def _numbers(column: Any) -> Numbers:
    """A column of numbers; what is missing is NaN."""
    return np.asarray(np.ma.filled(column.astype(np.float64), np.nan))


def _setups(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, int], _Setup]:
    setups = {}
    for run_id, launch, *facts, resumed_from, in_updates in connection.execute(_DECLARED).fetchall():
        shape, warmup, updates, decay, peak, minimum, power, runtime, is_ledger = facts
        declared = Declared(
            shape=shape,
            warmup=warmup,
            updates=updates,
            decay=decay,
            peak=peak,
            minimum=minimum,
            power=power,
            warm_up="from zero" if runtime in FROM_ZERO and shape is not None else None,
            # The hooks write the rate at the step.
            habit=1 if is_ledger else None,
        )
        setups[run_id, launch] = _Setup(declared, launch > 1 or resumed_from is not None, in_updates)
    return setups


def _habit(rates: Rates, fit: Fit) -> int:
    """Whether the log writes the rate that was used (1), or the one of the next step (0).

    A log that is exactly one step behind from its beginning writes the one that was used.
    """
    return int(np.nanmin(rates.updates - fit.positions) == 1)


def _schedule(launch: _Launch, setup: _Setup, fit: Fit | None, habit: int | None) -> dict[str, Any]:
    """A row of the table `schedules`."""
    row: dict[str, Any] = dict.fromkeys(FITTED) | {
        "run_id": launch.run_id,
        "launch": launch.launch,
        "optimizer": launch.optimizer,
        "schedule": setup.declared.shape,
        "declared": setup.declared.is_known,
        "fits": fit is not None,
    }
    if fit is None:
        return row
    schedule = fit.schedule
    return row | {
        "schedule": schedule.shape,
        "warmup_updates": schedule.warmup,
        "schedule_updates": schedule.updates,
        "decay_updates": schedule.length if schedule.shape == "wsd" else None,
        "peak": schedule.peak,
        "minimum": schedule.minimum,
        "power": schedule.power,
        "habit": habit,
    }


def _positions(launch: _Launch, fit: Fit, habit: int) -> pa.Table:
    """Rows of the table `positions`."""
    count = len(launch.rates)
    lags = launch.rates.attempts - habit - fit.positions
    whole = {
        name: pa.array(column, mask=np.isnan(column))
        for name, column in (("position", fit.positions), ("lag", lags))
    }
    columns = {
        "run_id": pa.repeat(pa.scalar(launch.run_id), count),
        "launch": pa.repeat(pa.scalar(launch.launch), count),
        "optimizer": pa.repeat(pa.scalar(launch.optimizer), count),
        "attempt_id": pa.array(launch.rates.attempts),
        **whole,
    }
    return pa.table(columns)


def _store(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("built", table)
    connection.execute(f"INSERT INTO {name} BY NAME FROM built")
    connection.unregister("built")
