"""The newest snapshot as metrics of Prometheus, made anew at each scrape from a registry of its own."""

from __future__ import annotations

import math
import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from accumaudit import __version__
from accumaudit.engine.findings import STATUSES
from accumaudit.service import metric_list as names
from accumaudit.service.board import Board
from accumaudit.service.metric_list import COUNTER, Metric
from accumaudit.service.rank_metrics import CONTENT_TYPE
from accumaudit.service.rank_statistics import agreements
from accumaudit.service.samples import label, run_info, spelled
from accumaudit.service.snapshot import RUNNING, STATES, Intake, OptimizerView, RunView, Snapshot

SERIES_SHOWN: Final = 20_000
"""Series of runs, so that a scrape stays short and the server's memory bounded: about 250 runs."""
INTERVALS: Final = 50
"""Newest attempts whose time from one to the next is looked at."""

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Value: TypeAlias = tuple[Metric, tuple[str, ...], float]
"""A metric, the values of its labels, and the sample."""
Family: TypeAlias = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


class RunCollector(Collector):
    """The runs of a snapshot alone: what `check --textfile` writes."""

    def __init__(self, board: Board, series_shown: int = SERIES_SHOWN) -> None:
        self._board = board
        self._series_shown = series_shown
        self._made: dict[str, tuple[RunView, list[Value]]] = {}
        """The values of each run that is shown, until it changes."""

    def collect(self) -> Iterator[Family]:
        """The families with a sample, in the order of the list."""
        return _families((*names.OF_RUNS, *names.OF_RANKS), self._of_runs(self._board.snapshot))

    def describe(self) -> Iterator[Family]:
        """Nothing: the registry need not ask for samples to learn the names."""
        return iter(())

    def _of_runs(self, snapshot: Snapshot) -> list[Value]:
        """The values of the runs that come first, as many as there may be."""
        made, count = {}, 0
        for run in sorted(snapshot.runs, key=_importance):
            values = self._values(run)
            count += len(values)
            if count > self._series_shown:
                break
            made[run.run_id] = (run, values)
        self._made = made
        return [value for _, values in made.values() for value in values]

    def _values(self, run: RunView) -> list[Value]:
        made = self._made.get(run.run_id)
        if made is not None and made[0] is run:
            return made[1]
        return [value for value in run_values(run) if _fits(value)]


class ServiceCollector(RunCollector):
    """The runs, and how the service itself does."""

    def collect(self) -> Iterator[Family]:
        """The families with a sample, in the order of the list, and the histogram of the lag."""
        snapshot = self._board.snapshot
        of_runs = self._of_runs(snapshot)
        of_the_service = service_values(snapshot, len(snapshot.runs) - len(self._made))
        order = (*names.OF_THE_SERVICE, *names.OF_RUNS, *names.OF_RANKS)
        yield from _families(order, (*of_the_service, *of_runs))
        yield _lag(snapshot.intake)


def _families(order: Iterable[Metric], values: Iterable[Value]) -> Iterator[Family]:
    by_metric: dict[Metric, list[Value]] = defaultdict(list)
    for value in values:
        by_metric[value[0]].append(value)
    return (_family(metric, by_metric[metric]) for metric in order if by_metric[metric])


def _importance(run: RunView) -> tuple[bool, float, str]:
    """Those that run come first, then those that began last: an order that stays from scrape to scrape."""
    return run.state != RUNNING, -(run.started_at or 0.0), run.run_id


class Exposition:
    """What `/metrics` answers; the same bytes until the snapshot changes."""

    def __init__(self, board: Board, series_shown: int = SERIES_SHOWN) -> None:
        self._board = board
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ServiceCollector(board, series_shown))
        self._lock = threading.Lock()
        self._version = -1
        self._rendered: dict[str, bytes] = {}

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that an Accept header asks for, and its content type."""
        content_type = OPENMETRICS if OPENMETRICS.partition(";")[0] in accept.lower() else CONTENT_TYPE
        with self._lock:
            version = self._board.version
            if version != self._version:
                self._rendered = {}
                self._version = version
            if content_type not in self._rendered:
                encode = generate_openmetrics if content_type == OPENMETRICS else generate_latest
                self._rendered[content_type] = encode(self._registry)
            return self._rendered[content_type], content_type


def _fits(value: Value) -> bool:
    """Whether a sample may be shown: a total that is no number, or below 0, would spoil every rate."""
    metric, _, number = value
    return metric.kind != COUNTER or (math.isfinite(number) and number >= 0)


def _family(metric: Metric, values: Iterable[Value]) -> Family:
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.meaning, labels=metric.labels)
    for _, labels, number in values:
        family.add_metric(labels, number)
    return family


def _lag(intake: Intake) -> HistogramMetricFamily:
    metric = names.INGEST_LAG
    buckets = [(spelled(bound), float(count)) for bound, count in sorted(intake.lag_buckets.items())]
    buckets = [bucket for bucket in buckets if bucket[0] != "+Inf"] + [("+Inf", float(intake.lag_count))]
    return HistogramMetricFamily(metric.name, metric.meaning, buckets=buckets, sum_value=intake.lag_sum)


def service_values(snapshot: Snapshot, not_exported: int) -> Iterator[Value]:
    """How the service does."""
    intake = snapshot.intake
    yield names.BUILD_INFO, (__version__,), 1.0
    yield names.READY, (), float(snapshot.ready)
    yield names.SNAPSHOT_TIME, (), snapshot.time
    yield names.TROUBLES, (), float(len(snapshot.troubles))
    states = Counter(run.state for run in snapshot.runs)
    for state in STATES:
        yield names.RUNS, (state,), float(states[state])
    yield names.RUNS_LEFT_OUT, (), float(intake.runs_left_out)
    yield names.RUNS_NOT_EXPORTED, (), float(not_exported)
    for field, metric in names.INTAKE.items():
        yield metric, (), float(getattr(intake, field))


def run_values(run: RunView) -> Iterator[Value]:
    """What is known of a run, over all its ranks; what is unknown has no sample."""
    name, report = label(run.run_id), run.report
    yield names.RUN_INFO, run_info(run), 1.0
    if not report.is_foreign:  # its log does not say whether it ended
        for state in STATES:
            yield names.RUN_STATE, (name, state), float(run.state == state)
    expected = report.world_size if report.recorded_ranks is None else len(report.recorded_ranks)
    # The records of some ranks may lie so far back that a service started anew has not read them.
    ranks = {view.rank for view in run.ranks} | set(report.ranks)
    single = (
        (names.LAUNCHES, run.launches),
        (names.STARTED, run.started_at),
        (names.LAST_RECORD, run.last_record_time),
        (names.RANKS, len(ranks)),
        (names.EXPECTED_RANKS, expected),
        (names.LATE_RANKS, len(run.late_ranks)),
        (names.JUDGED_ATTEMPT, run.judged_through),
    )
    yield from ((metric, (name,), float(value)) for metric, value in single if value is not None)
    yield from _verdicts(name, run)
    for optimizer in run.optimizers:
        yield from optimizer_values((name, str(optimizer.index)), optimizer)
    yield from _ranks(name, run)


def _verdicts(name: str, run: RunView) -> Iterator[Value]:
    counts = Counter(one.status for one in run.report.verdicts)
    for status in STATUSES:
        yield names.VERDICTS, (name, status), float(counts[status])
    for found in run.active:
        verdict = found.verdict
        labels = (name, label(verdict.code), label(verdict.name), verdict.severity)
        yield names.FINDINGS_ACTIVE, labels, 1.0
    yield names.FINDINGS, (name,), float(len(run.findings))
    for found in run.findings:
        yield names.FAULTY_ATTEMPTS, (name, label(found.code)), float(max(found.count, found.most))


def optimizer_values(labels: tuple[str, str], optimizer: OptimizerView) -> Iterator[Value]:
    """What one optimizer has done, and its newest attempt."""
    yield names.OPTIMIZER_INFO, (*labels, label(optimizer.name)), 1.0
    yield names.ATTEMPTS, labels, float(optimizer.attempts)
    yield names.UPDATES, labels, float(optimizer.updates)
    for reason, count in optimizer.skipped.items():
        yield names.SKIPPED, (*labels, reason), float(count)
    yield names.MICROBATCHES, labels, float(optimizer.microbatches)
    yield names.VALID_TOKENS, labels, optimizer.valid_tokens
    yield names.NONFINITE_NORMS, labels, float(optimizer.nonfinite_grad_norms)
    interval = update_interval(optimizer)
    if interval is not None:
        yield names.UPDATE_INTERVAL, labels, interval
    if optimizer.last is not None:
        for field, metric in names.POINT_GAUGES.items():
            value = getattr(optimizer.last, field)
            if value is not None:
                yield metric, labels, float(value)


def update_interval(optimizer: OptimizerView) -> float | None:
    """Median of the seconds between the newest attempts of the newest launch."""
    newest = optimizer.history[-INTERVALS:]
    times = [one.time for one in newest if one.launch == newest[-1].launch and one.time is not None]
    if len(times) < 2:
        return None
    return statistics.median(after - before for before, after in pairwise(times))


def _ranks(name: str, run: RunView) -> Iterator[Value]:
    for one in agreements(run.ranks):
        labels = (name, str(one.optimizer), one.field)
        yield names.RANKS_MIN, labels, one.minimum
        yield names.RANKS_MEDIAN, labels, one.median
        yield names.RANKS_MAX, labels, one.maximum
        if one.spread_ratio is not None:
            yield names.RANKS_SPREAD, labels, one.spread_ratio
        yield names.OUTLIER_RANKS, labels, float(one.outliers)
        yield names.OUTLIERS_LEFT_OUT, labels, float(one.outliers - len(one.worst))
        for rank, value in one.worst:
            yield names.OUTLIER_RANK_VALUE, (*labels, str(rank)), value
