"""The metrics of a snapshot: what a ledger's numbers become, whatever its names and values are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from accumaudit.service import metric_list
from accumaudit.service.board import Board
from accumaudit.service.metrics import Exposition
from accumaudit.service.rank_metrics import RankExposition
from accumaudit.service.samples import LONGEST, label
from accumaudit.service.snapshot import (
    FINISHED,
    RUNNING,
    SILENT,
    Intake,
    OptimizerView,
    Point,
    RankView,
    RunView,
    Snapshot,
)
from tests.records import START, write_run
from tests.servers import alertmanager, exposing, hurried, prometheus, receiver, scraping, tool, until

OPENMETRICS: Final = "application/openmetrics-text;version=1.0.0"
PROMETHEUS: Final = Path(__file__).resolve().parent.parent / "dashboards" / "prometheus"
HOSTILE: Final = 'a"b\\c <script>\n日本 {run="x"}'
"""What a folder may be called."""


def rank(number: int, **fields: Any) -> RankView:
    """The last record of a rank of a healthy run."""
    healthy: dict[str, Any] = {
        "optimizer": 0,
        "attempt_id": 3,
        "update_id": 3,
        "time": START + 3,
        "learning_rate": 1e-3,
        "loss": 2.0 + 0.01 * (number % 7),
        "grad_norm_before": 1.0,
        "grad_norm_after": 0.5,
        "grad_scale": None,
        "valid_tokens": 100.0,
        "window_seconds": 1.0,
    }
    return RankView(rank=number, **{**healthy, **fields})


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A run in a folder with a hostile name: 4 attempts on 2 ranks, one skipped, one with half its weight."""
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.judge import audit
    from accumaudit.ledger.reader import read_ledger
    from accumaudit.service.whole import snapshot_of

    folder = tmp_path_factory.mktemp("metrics") / HOSTILE
    attempts = [
        {},
        {"skipped": True, "grad_norm_after_clip": math.inf},
        {"microbatches": 2, "total_weight": 0.5},
        {"grad_scale": 8.0},
    ]
    write_run(folder, attempts)
    with read_ledger([folder]) as ledger:
        return snapshot_of(ledger, audit(ledger, load_rules()), START + 100)


def run_of(snapshot: Snapshot, **fields: Any) -> RunView:
    """The run, with other facts."""
    return replace(snapshot.runs[0], **fields)


def rendered(*runs: RunView, accept: str = "", **fields: Any) -> str:
    """The exposition of some runs."""
    board = Board(Snapshot(time=START, runs=runs, **fields))
    return Exposition(board).render(accept)[0].decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each sample by name and labels."""
    parse = parse_openmetrics if text.endswith("# EOF\n") else parse_text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def values(text: str, name: str, *keys: str) -> dict[Any, float]:
    """The samples of one metric by the values of some labels."""
    found = {}
    for (metric, labels), value in samples(text).items():
        if metric == name:
            chosen = tuple(dict(labels)[key] for key in keys)
            found[chosen[0] if len(keys) == 1 else chosen] = value
    return found


def test_promtool_finds_nothing_in_either_endpoint(snapshot: Snapshot) -> None:
    run = run_of(snapshot, ranks=tuple(map(rank, range(12))))
    assert tool("promtool", "check", "metrics", stdin=rendered(run)) == ""
    text = RankExposition(Board(Snapshot(time=START, runs=(run,)))).render(run.run_id)
    assert text is not None
    assert tool("promtool", "check", "metrics", stdin=text.decode()) == ""


def test_both_formats_say_the_same(snapshot: Snapshot) -> None:
    run = snapshot.runs[0]
    content, kind = Exposition(Board(snapshot)).render(OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    assert samples(content.decode()) == samples(Exposition(Board(snapshot)).render("")[0].decode())
    assert samples(rendered(run, accept=OPENMETRICS)) == samples(rendered(run))


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1", "application/"),
        ("Application/OpenMetrics-Text; version=x.y", "application/"),
        ("text/plain;version=a.b;escaping=\0", "text/plain"),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", "text/plain"),
        (";,;=,", "text/plain"),
    ],
)
def test_there_are_two_formats_whatever_is_asked_for(snapshot: Snapshot, accept: str, kind: str) -> None:
    assert Exposition(Board(snapshot)).render(accept)[1].startswith(kind)


def test_the_samples_are_the_ledger_s(snapshot: Snapshot) -> None:
    text = rendered(*snapshot.runs)
    name = label(HOSTILE)
    assert values(text, "accumaudit_attempts_total", "run", "optimizer") == {(name, "0"): 4}
    assert values(text, "accumaudit_updates_total", "run") == {name: 3}
    assert values(text, "accumaudit_skipped_updates_total", "reason") == {"overflow": 1, "unknown": 0}
    assert values(text, "accumaudit_nonfinite_grad_norms_total", "run") == {name: 1}
    assert values(text, "accumaudit_grad_scale", "run") == {name: 8}
    assert values(text, "accumaudit_last_attempt_id", "run") == {name: 4}
    assert values(text, "accumaudit_update_interval_seconds", "run") == {name: pytest.approx(1.0)}
    assert values(text, "accumaudit_ranks", "run") == {name: 2}
    assert values(text, "accumaudit_expected_ranks", "run") == {name: 2}
    assert values(text, "accumaudit_run_state", "state")[FINISHED] == 1
    assert sum(values(text, "accumaudit_run_state", "state").values()) == 1
    info = ("run", "runtime", "wrapper", "world_size")
    assert values(text, "accumaudit_run_info", *info) == {(name, "torch", "ddp", "2"): 1}


def test_each_finding_is_a_series_with_what_leads_to_its_manual(snapshot: Snapshot) -> None:
    run = snapshot.runs[0]
    text = rendered(run)
    found = values(text, "accumaudit_findings_active", "rule", "name", "severity")
    assert found == {(one.code, one.verdict.name, one.verdict.severity): 1 for one in run.findings}
    assert ("ACC101", "fixed-divisor-tail", "error") in found
    statuses = values(text, "accumaudit_verdicts", "status")
    assert statuses["failed"] == len(run.findings)
    assert statuses["broken"] == 0
    assert sum(statuses.values()) == len(run.report.verdicts)


def test_totals_of_findings_never_go_down(snapshot: Snapshot) -> None:
    """A judgement over the whole record withdraws one finding, and has fewer attempts of another."""
    first, *others = snapshot.runs[0].findings
    run = run_of(
        snapshot, findings=(replace(first, withdrawn=True), *(replace(one, most=9) for one in others))
    )
    before, after = rendered(*snapshot.runs), rendered(run)
    assert first.code in values(before, "accumaudit_findings_active", "rule")
    assert first.code not in values(after, "accumaudit_findings_active", "rule")
    for name, keys in (
        ("accumaudit_findings_total", ("run",)),
        ("accumaudit_faulty_attempts_total", ("rule",)),
    ):
        old, new = values(before, name, *keys), values(after, name, *keys)
        assert old.keys() == new.keys()
        assert all(new[key] >= old[key] > 0 for key in old)
    assert 9 in values(after, "accumaudit_faulty_attempts_total", "rule").values()


def test_a_run_without_findings_begins_their_total_at_0(snapshot: Snapshot) -> None:
    text = rendered(run_of(snapshot, findings=()))
    assert list(values(text, "accumaudit_findings_total", "run").values()) == [0]


def optimizer(snapshot: Snapshot, **last: Any) -> OptimizerView:
    """The optimizer, with other facts of its newest attempt."""
    (view,) = snapshot.runs[0].optimizers
    assert isinstance(view.last, Point)
    return replace(view, last=replace(view.last, **last))


def test_what_is_unknown_has_no_sample_and_what_is_no_number_is_told_so(snapshot: Snapshot) -> None:
    view = optimizer(snapshot, loss=math.nan, total_weight=math.inf, learning_rate=None)
    view = replace(view, valid_tokens=math.nan, microbatches=-3)
    text = rendered(run_of(snapshot, optimizers=(view,), started_at=None, judged_through=None))
    assert math.isnan(*values(text, "accumaudit_loss", "run").values())
    assert list(values(text, "accumaudit_total_weight", "run").values()) == [math.inf]
    for name in ("learning_rate", "valid_tokens_total", "microbatches_total", "judged_attempt_id"):
        assert values(text, f"accumaudit_{name}", "run") == {}, name
    assert (
        samples(text).keys()
        == samples(
            rendered(
                run_of(snapshot, optimizers=(view,), started_at=None, judged_through=None), accept=OPENMETRICS
            )
        ).keys()
    )


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_any_name_is_one_label_of_bounded_length(snapshot: Snapshot, accept: str) -> None:
    """Quotes, line ends, a byte that is no UTF-8, a zero, and two long names that differ at their end."""
    given = [HOSTILE, "a\udc80b", "a\0b\r\u2028", "x" * 5000, "x" * 4999 + "y", "", "a/b#2"]
    report = snapshot.runs[0].report
    runs = [run_of(snapshot, report=replace(report, run_id=name)) for name in given]
    runs[0] = replace(runs[0], wrapper="w" * 100_000 + "\0")
    text = rendered(*runs, accept=accept)
    found = values(text, "accumaudit_attempts_total", "run")
    assert found == {label(name): 4 for name in given}
    assert len(found) == len(given)
    assert all(name.isprintable() for name in found)
    assert max(len(value) for value in re.findall(r'"([^"\n]*)"', text)) <= LONGEST
    ranks = RankExposition(Board(Snapshot(time=START, runs=tuple(runs))))
    for name in given:
        assert ranks.render(name) == ranks.render(label(name)) != None  # noqa: E711 - both, and something


def test_more_runs_than_are_shown_are_counted(snapshot: Snapshot) -> None:
    """Those that run come first, then those that began last, whoever wrote last."""
    report = snapshot.runs[0].report
    facts = [
        ("old", FINISHED, 1.0),
        ("new", FINISHED, 3.0),
        ("silent", SILENT, 2.0),
        ("running", RUNNING, 0.5),
    ]
    runs = tuple(
        run_of(snapshot, report=replace(report, run_id=name), state=state, started_at=time)
        for name, state, time in facts
    )
    of_one = len(samples(rendered(runs[0]))) - len(samples(rendered()))
    shown = Exposition(Board(Snapshot(time=START, runs=runs)), series_shown=2 * of_one)
    text = shown.render("")[0].decode()
    assert set(values(text, "accumaudit_run_info", "run")) == {"running", "new"}
    assert values(text, "accumaudit_runs_not_exported") == {(): 2}
    assert values(text, "accumaudit_runs", "state")[FINISHED] == 2


def test_the_ranks_that_stand_apart_are_named_and_the_rest_counted(snapshot: Snapshot) -> None:
    """Of 400 ranks, 11 have a larger norm and one an infinite; all agree on the rate."""
    ranks = [rank(number, grad_norm_before=1.0 + 0.01 * (number % 5)) for number in range(400)]
    for number in range(100, 111):
        ranks[number] = rank(number, grad_norm_before=float(number))
    ranks[7] = rank(7, grad_norm_before=math.inf)
    text = rendered(run_of(snapshot, ranks=tuple(ranks)))
    worst = {
        number: value
        for (field, number), value in values(text, "accumaudit_outlier_rank_value", "field", "rank").items()
        if field == "grad_norm_before"
    }
    assert worst == {"7": math.inf, **{str(number): float(number) for number in range(104, 111)}}
    assert values(text, "accumaudit_outlier_ranks", "field")["grad_norm_before"] == 12
    assert values(text, "accumaudit_outlier_ranks_left_out", "field")["grad_norm_before"] == 4
    assert values(text, "accumaudit_outlier_ranks", "field")["learning_rate"] == 0
    assert values(text, "accumaudit_ranks_spread_ratio", "field")["learning_rate"] == 0
    assert values(text, "accumaudit_ranks_max", "field")["grad_norm_before"] == 110
    assert "grad_scale" not in values(text, "accumaudit_ranks_max", "field")


def test_a_rank_whose_last_record_is_not_known_any_more_has_written_all_the_same(snapshot: Snapshot) -> None:
    text = rendered(run_of(snapshot, ranks=(rank(0),)))
    assert [*values(text, "accumaudit_ranks", "run").values()] == [2]


def test_ranks_are_compared_at_the_same_attempt(snapshot: Snapshot) -> None:
    """A rank that is one attempt behind has another rate, and rightly so."""
    ranks = [rank(number) for number in range(5)] + [rank(5, attempt_id=2, learning_rate=2e-3)]
    text = rendered(run_of(snapshot, ranks=tuple(ranks)))
    assert values(text, "accumaudit_ranks_max", "field")["learning_rate"] == 1e-3
    assert values(text, "accumaudit_outlier_ranks", "field")["learning_rate"] == 0


def test_ten_thousand_ranks_make_a_few_hundred_series(snapshot: Snapshot) -> None:
    ranks = tuple(rank(number, loss=(number * 7919 % 10_000) ** 3.0) for number in range(10_000))
    assert len(samples(rendered(run_of(snapshot, ranks=ranks)))) < 250


def test_the_series_of_ranks_are_their_last_records(snapshot: Snapshot) -> None:
    ranks = (rank(0), rank(1, loss=math.nan), rank(1, optimizer=1, loss=None, learning_rate=2.0))
    run = run_of(snapshot, ranks=ranks)
    content = RankExposition(Board(Snapshot(time=START, runs=(run,)))).render(run.run_id)
    assert content is not None
    text = content.decode()
    assert values(text, "accumaudit_rank_learning_rate", "optimizer", "rank") == {
        ("0", "0"): 1e-3,
        ("0", "1"): 1e-3,
        ("1", "1"): 2.0,
    }
    losses = values(text, "accumaudit_rank_loss", "optimizer", "rank")
    assert losses.pop(("0", "0")) == 2.0
    assert [key for key, value in losses.items() if math.isnan(value)] == [("0", "1")] == list(losses)
    assert values(text, "accumaudit_rank_series_left_out", "run") == {label(HOSTILE): 0}


def test_a_run_of_too_many_ranks_is_cut_and_says_so(snapshot: Snapshot) -> None:
    run = run_of(snapshot, ranks=tuple(map(rank, range(50))))
    content = RankExposition(Board(Snapshot(time=START, runs=(run,))), ranks_shown=20).render(run.run_id)
    assert content is not None
    assert len(values(content.decode(), "accumaudit_rank_loss", "rank")) == 20
    assert list(values(content.decode(), "accumaudit_rank_series_left_out", "run").values()) == [30]


def test_a_run_that_there_is_not_has_no_ranks(snapshot: Snapshot) -> None:
    assert RankExposition(Board(snapshot)).render("../../etc/passwd") is None


def test_a_scrape_sees_the_newest_snapshot(snapshot: Snapshot) -> None:
    board = Board(snapshot)
    exposition, ranks = Exposition(board), RankExposition(board)
    for state in (RUNNING, FINISHED):
        run = run_of(snapshot, state=state, ranks=(rank(0, loss=float(len(state))),))
        board.publish(Snapshot(time=START, runs=(run,)))
        text, again = (exposition.render("")[0] for _ in range(2))
        assert values(text.decode(), "accumaudit_run_state", "state")[state] == 1
        assert again is text
        of_ranks = ranks.render(HOSTILE)
        assert of_ranks is not None
        assert list(values(of_ranks.decode(), "accumaudit_rank_loss", "rank").values()) == [len(state)]


def test_the_service_tells_of_itself() -> None:
    intake = Intake(
        bytes=10,
        records=3,
        malformed_records=1,
        lag_buckets={0.5: 1, 10.0: 2},
        lag_sum=31.0,
        lag_count=3,
        behind_bytes=7,
    )
    text = rendered(intake=intake, ready=False, troubles=("the folder is gone",), accept=OPENMETRICS)
    for name, value in (
        ("ingest_bytes_total", 10),
        ("ingest_malformed_records_total", 1),
        ("ingest_behind_bytes", 7),
        ("ready", 0),
        ("troubles", 1),
        ("ingest_lag_seconds_sum", 31),
        ("snapshot_timestamp_seconds", START),
    ):
        assert values(text, f"accumaudit_{name}") == {(): value}, name
    buckets = values(text, "accumaudit_ingest_lag_seconds_bucket", "le")
    assert buckets == {"0.5": 1, "10.0": 2, "+Inf": 3}


def everything(snapshot: Snapshot) -> Iterator[str]:
    """Every endpoint for a run of which everything is known."""
    view = optimizer(snapshot, **dict.fromkeys(metric_list.POINT_GAUGES, 1.0))
    ranks = tuple(rank(number, grad_scale=1.0, loss=float(number == 9)) for number in range(10))
    run = run_of(snapshot, optimizers=(view,), ranks=ranks)
    yield rendered(run)
    content = RankExposition(Board(Snapshot(time=START, runs=(run,)))).render(run.run_id)
    assert content is not None
    yield content.decode()


LISTED: Final = (
    *metric_list.OF_THE_SERVICE,
    *metric_list.OF_RUNS,
    *metric_list.OF_RANKS,
    *metric_list.OF_EACH_RANK,
)


def test_what_is_listed_is_what_is_exported(snapshot: Snapshot) -> None:
    """With the labels, the kind and the meaning of the list."""
    exported = {}
    for text in everything(snapshot):
        for family in parse_text(text):
            labels = {key for sample in family.samples for key in sample.labels} - {"le"}
            name = family.name + "_total" * (family.type == "counter")
            exported[name] = (family.type, labels, family.documentation)
    assert exported == {one.name: (one.kind, set(one.labels), one.meaning) for one in LISTED}


def test_every_metric_of_rules_and_alerts_is_exported() -> None:
    text = (PROMETHEUS / "rules.yml").read_text() + (PROMETHEUS / "alerts.yml").read_text()
    used = set(re.findall(r"\baccumaudit_\w+", re.sub(r"\S+:accumaudit_\w+:\w+", "", text)))
    assert len(used) > 15
    listed = {one.name for one in LISTED} | {metric_list.INGEST_LAG.name + "_bucket"}
    assert used <= listed
    recorded = set(re.findall(r"record: (\S+)", text))
    assert set(re.findall(r"\w+:accumaudit_\w+:\w+", text)) == recorded


@pytest.mark.slow  # it starts two servers
def test_a_real_prometheus_takes_both_endpoints_and_alerts(snapshot: Snapshot, tmp_path: Path) -> None:
    """The alert of a finding reaches whom Alertmanager tells, with the page of the rule's manual."""
    run = run_of(snapshot, ranks=tuple(map(rank, range(20))))
    board = Board(Snapshot(time=START, runs=(run,)))
    exposition, ranks = Exposition(board), RankExposition(board)

    def render(path: str) -> str:
        if path.startswith("/metrics/ranks?run="):
            return (ranks.render(HOSTILE) or b"").decode()
        return exposition.render("")[0].decode()

    alerts = hurried(PROMETHEUS / "alerts.yml", tmp_path)
    with (
        receiver() as webhook,
        exposing(render) as url,
        alertmanager(tmp_path, webhook.url) as manager,
        prometheus(
            tmp_path,
            scraping(url, f"{url}/metrics/ranks?run=x", rules=[alerts], alertmanager=manager),
        ) as server,
    ):
        until(lambda: len(server.query("accumaudit_rank_loss")) == 20, "series of ranks")
        until(lambda: server.query("accumaudit_updates_total"), "series of the run")
        assert server.values("accumaudit_updates_total", "run") == {label(HOSTILE): 3}
        told = until(
            lambda: [one for one in webhook.alerts() if one["labels"].get("rule") == "ACC101"], "alert"
        )
        assert told[0]["labels"]["alertname"] == "AccumauditErrorFound"
        assert told[0]["labels"]["run"] == label(HOSTILE)
        assert told[0]["annotations"]["runbook_url"].endswith("/docs/rules.md#acc101-fixed-divisor-tail")
        assert "AccumauditErrorFound" in server.firing()
