"""Whole runs in the OpenMetrics text format, each sample at its attempt's own time: to backfill a Prometheus.

`promtool tsdb create-blocks-from openmetrics FILE DIR` makes blocks of it. Names and labels are those that
the service exports, so that the same dashboards show a run that has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, TypeAlias

from accumaudit.service import metric_list as names
from accumaudit.service.metric_list import COUNTER, Metric
from accumaudit.service.samples import escaped, label, run_info, spelled
from accumaudit.service.snapshot import RUNNING, STATES, FindingView, OptimizerView, Point, RunView, Snapshot

LATEST: Final = 2.0**33
"""No clock is beyond it: the year 2242."""
STEP: Final = 0.001
"""Seconds between two samples of a series at least: Prometheus counts in thousandths."""

Samples: TypeAlias = Iterable[tuple[float, float]]
"""Time and value, one after another."""
Series: TypeAlias = Iterator[tuple[tuple[str, ...], Samples]]
"""The values of the labels, and the samples, of each series of a metric."""


@dataclass(frozen=True, slots=True)
class _Attempts:
    """One optimizer's, each with the time of its samples."""

    optimizer: OptimizerView
    labels: tuple[str, str]
    dated: list[tuple[float, Point]]


@dataclass(frozen=True, slots=True)
class _Run:
    """A run, and the times of all its attempts."""

    view: RunView
    name: str
    optimizers: list[_Attempts]
    times: list[float]


def lines(snapshot: Snapshot) -> Iterator[str]:
    """The lines of the file, with their ends: families together, the series of a family one after another."""
    runs = [_run(view) for view in snapshot.runs]
    for metric, series_of in _SERIES.items():
        name = metric.name.removesuffix("_total") if metric.kind == COUNTER else metric.name
        yield f"# HELP {name} {metric.meaning}\n"
        yield f"# TYPE {name} {metric.kind}\n"
        for run in runs:
            for labels, samples in series_of(run):
                pairs = zip(metric.labels, labels, strict=True)
                head = metric.name + "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in pairs) + "}"
                yield from (f"{head} {spelled(value)} {time:.3f}\n" for time, value in samples)
    yield "# EOF\n"


def undated(snapshot: Snapshot) -> list[RunView]:
    """The runs that cannot be exported: no attempt has a time."""
    return [run for run in snapshot.runs if not any(_dated(one.history) for one in run.optimizers)]


def _run(view: RunView) -> _Run:
    name = label(view.run_id)
    optimizers = [_Attempts(one, (name, str(one.index)), _dated(one.history)) for one in view.optimizers]
    return _Run(view, name, optimizers, sorted({time for one in optimizers for time, _ in one.dated}))


def _dated(history: Iterable[Point]) -> list[tuple[float, Point]]:
    """The attempts that have a time, in their order; a clock that was set back stands still meanwhile."""
    dated, last = [], 0.0
    for point in history:
        if point.time is None or not 0.0 < point.time < LATEST:
            continue
        last = round(max(point.time, last + STEP), 3)
        dated.append((last, point))
    return dated


def _infos(run: _Run) -> Series:
    yield run_info(run.view), ((time, 1.0) for time in run.times)


def _last_records(run: _Run) -> Series:
    yield (run.name,), ((time, time) for time in run.times)


def _states(run: _Run) -> Series:
    """Running up to its last attempt; the log of another program does not say."""
    for state in () if run.view.report.is_foreign else STATES:
        last = float(state == run.view.state)
        before = float(state == RUNNING)
        yield (run.name, state), ((time, last if time == run.times[-1] else before) for time in run.times)


def _active(run: _Run) -> Series:
    for found in run.view.active:
        begin, verdict = _begin(run, found), found.verdict
        labels = (run.name, label(verdict.code), label(verdict.name), verdict.severity)
        yield labels, [(time, 1.0) for time in run.times if time >= begin]


def _findings(run: _Run) -> Series:
    begins = [_begin(run, found) for found in run.view.active]
    yield (run.name,), [(time, float(sum(begin <= time for begin in begins))) for time in run.times]


def _begin(run: _Run, found: FindingView) -> float:
    """The time of the first update that the finding is about."""
    first = found.verdict.finding.first_update if found.verdict.finding else None
    return min(
        (
            time
            for one in run.optimizers
            for time, point in one.dated
            if first is None or (point.update_id is not None and point.update_id >= first)
        ),
        default=math.inf,
    )


def _names(run: _Run) -> Series:
    for one in run.optimizers:
        yield (*one.labels, label(one.optimizer.name)), ((time, 1.0) for time, _ in one.dated)


def _totals(run: _Run, *, of: Callable[[Point], bool]) -> Series:
    """How many attempts there have been of a kind."""
    for one in run.optimizers:
        counts = accumulate(float(of(point)) for _, point in one.dated)
        yield one.labels, ((time, count) for (time, _), count in zip(one.dated, counts, strict=True))


def _skips(run: _Run) -> Series:
    """With a reason where all of them have the same: an attempt alone does not say."""
    totals = _totals(run, of=lambda point: point.applied is False)
    for one, (labels, samples) in zip(run.optimizers, totals, strict=True):
        reasons = [reason for reason, count in one.optimizer.skipped.items() if count]
        yield (*labels, reasons[0] if len(reasons) == 1 else "unknown"), samples


def _tokens(run: _Run) -> Series:
    for one in run.optimizers:
        known = (0.0 if point.tokens_so_far is None else point.tokens_so_far for _, point in one.dated)
        yield (
            one.labels,
            ((time, total) for (time, _), total in zip(one.dated, accumulate(known, max), strict=True)),
        )


def _gauges(run: _Run, *, field: str) -> Series:
    for one in run.optimizers:
        values = ((time, getattr(point, field)) for time, point in one.dated)
        yield one.labels, ((time, float(value)) for time, value in values if value is not None)


_SERIES: Final[dict[Metric, Callable[[_Run], Series]]] = {
    names.RUN_INFO: _infos,
    names.OPTIMIZER_INFO: _names,
    names.RUN_STATE: _states,
    names.LAST_RECORD: _last_records,
    names.FINDINGS_ACTIVE: _active,
    names.FINDINGS: _findings,
    names.ATTEMPTS: partial(_totals, of=lambda _: True),
    names.UPDATES: partial(_totals, of=lambda point: point.applied is not False),
    names.SKIPPED: _skips,
    names.VALID_TOKENS: _tokens,
    **{metric: partial(_gauges, field=field) for field, metric in names.POINT_GAUGES.items()},
}
