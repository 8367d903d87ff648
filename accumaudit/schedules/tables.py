"""The tables `schedules` and `positions`, from the rates that a record or a log holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import duckdb
import numpy as np

from accumaudit.schedules.inversion import Rates
from accumaudit.schedules.recognition import Declared, Fit, recognise
from accumaudit.schedules.shapes import Numbers

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
# In lists: neither pandas nor pyarrow is worth its import here.
_BY_LAUNCH: Final = """
SELECT run_id, launch, optimizer, any_value(logged), list(attempt_id ORDER BY attempt_id),
       list(optimizer_update_id ORDER BY attempt_id), list(rate ORDER BY attempt_id)
FROM rates GROUP BY run_id, launch, optimizer ORDER BY run_id, optimizer, launch
"""
_SCHEDULE: Final = """
INSERT INTO schedules BY NAME
SELECT $run_id AS run_id, $launch AS launch, $optimizer AS optimizer, $schedule AS schedule,
       $declared AS declared, $fits AS fits, $warmup AS warmup_updates, $updates AS schedule_updates,
       $decay AS decay_updates, $peak AS peak, $minimum AS minimum, $power AS power, $habit AS habit
"""
_POSITIONS: Final = """
INSERT INTO positions BY NAME
SELECT $run_id AS run_id, $launch AS launch, $optimizer AS optimizer, unnest($attempts) AS attempt_id,
       unnest($positions) AS position, unnest($lags) AS lag
"""


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a launch declares."""

    declared: Declared
    resumed: bool
    in_updates: bool


def insert(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill both tables from the rates in the table `rates`."""
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
            connection.execute(_SCHEDULE, _schedule(launch, setup, fit, habit))
            if launch.logged and fit is not None:
                connection.execute(_POSITIONS, _positions(launch, fit, habit or 0))
            before = fit or (before if setup.resumed else None)


@dataclass(frozen=True, slots=True)
class _Launch:
    run_id: str
    launch: int
    optimizer: int
    logged: bool
    rates: Rates

    @property
    def key(self) -> dict[str, Any]:
        """The columns that name it."""
        return {"run_id": self.run_id, "launch": self.launch, "optimizer": self.optimizer}


def _launches(connection: duckdb.DuckDBPyConnection) -> Iterator[_Launch]:
    """The rates of each launch and optimizer."""
    rows = connection.execute(_BY_LAUNCH).fetchall()
    for run_id, launch, optimizer, logged, attempt_ids, update_ids, rates in rows:
        attempts, updates = _numbers(attempt_ids), _numbers(update_ids)
        counted = attempts if np.isnan(updates).any() else updates
        yield _Launch(run_id, launch, optimizer, logged, Rates.of(attempts, counted, _numbers(rates)))


def _numbers(column: list[float | None]) -> Numbers:
    """A column of numbers; what is missing is NaN."""
    return np.array(column, dtype=np.float64)


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
    """The values of a row of the table `schedules`."""
    schedule = fit.schedule if fit is not None else None
    return launch.key | {
        "schedule": schedule.shape if schedule else setup.declared.shape,
        "declared": setup.declared.is_known,
        "fits": schedule is not None,
        "warmup": schedule and schedule.warmup,
        "updates": schedule and schedule.updates,
        "decay": schedule.length if schedule and schedule.shape == "wsd" else None,
        "peak": schedule and schedule.peak,
        "minimum": schedule and schedule.minimum,
        "power": schedule and schedule.power,
        "habit": habit if schedule else None,
    }


def _positions(launch: _Launch, fit: Fit, habit: int) -> dict[str, Any]:
    """The values of rows of the table `positions`."""
    return launch.key | {
        "attempts": _whole(launch.rates.attempts),
        "positions": _whole(fit.positions),
        "lags": _whole(launch.rates.attempts - habit - fit.positions),
    }


def _whole(column: Numbers) -> list[int | None]:
    return [None if number != number else int(number) for number in column.tolist()]
