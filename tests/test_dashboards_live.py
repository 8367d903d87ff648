"""Every query of every dashboard has an answer in a Prometheus that scrapes what a real training left."""

from __future__ import annotations

import math
import re
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from accumaudit.dashboards import boards
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.service.board import Board
from accumaudit.service.metrics import Exposition
from accumaudit.service.rank_metrics import RankExposition
from accumaudit.service.snapshot import FindingView, Intake, RunView, Snapshot
from accumaudit.service.whole import snapshot_of
from tests import servers
from tests.dashboard_lint import Json, filled, label_queries, panels, queries
from tests.records import write_run

pytestmark = pytest.mark.slow  # it trains, and starts a Prometheus

DEMO: Final = "demo"
FULL: Final = 'every "kind"\\of field#2'
"""A run of four ranks with every field, of a name that has to be escaped."""
ALERT: Final = {"alert": "AccumauditTest", "expr": "vector(1)", "labels": {"run": DEMO}}
SCRAPES: Final = 4


@dataclass(frozen=True)
class Live:
    """A Prometheus with a few scrapes in it."""

    prometheus: servers.Prometheus

    def answer(self, text: str, instant: bool) -> list[Json]:
        """The series that have a number."""
        if instant:
            found = self.prometheus.query(text)
            return [one for one in found if not math.isnan(float(one["value"][1]))]
        now = time.time()
        found = self.prometheus.query_range(text, now - 60, now, 0.5)
        return [one for one in found if any(not math.isnan(float(value)) for _, value in one["values"])]

    def label_values(self, series: str, label: str) -> list[str]:
        """What the variable offers."""
        values: list[str] = self.prometheus.json(f"/api/v1/label/{label}/values", **{"match[]": series})[
            "data"
        ]
        return values


def trained(folder: Path) -> Snapshot:
    """A demo with a fault, and a run of records with all that a demo lacks."""
    from accumaudit.demo.launching import launch, scenario

    launch(scenario("fixed-divisor-tail"), folder / DEMO, 1)
    scaled: dict[str, Any] = {"grad_norm_before_clip": 2.0, "grad_scale": 1024.0}
    lost: dict[str, Any] = {**scaled, "skipped": True, "grad_norm_after_clip": math.inf}
    one_stands_out: dict[str, Any] = {**scaled, "on": {3: {"window_seconds": 9.0}}}
    write_run(folder / "full", [scaled, lost, *[one_stands_out] * 4], ranks=4, precision="float16")
    with read_ledger([folder]) as ledger:
        snapshot = snapshot_of(ledger, audit(ledger, load_rules()), time.time())
    assert [run.run_id for run in snapshot.runs] == [DEMO, "full"]
    return replace(snapshot, runs=(snapshot.runs[0], _renamed(snapshot.runs[1])))


def _renamed(run: RunView) -> RunView:
    return replace(
        run, report=replace(run.report, run_id=FULL), late_ranks=(3,), last_record_time=time.time()
    )


def grown(snapshot: Snapshot, turns: int) -> Snapshot:
    """The snapshot after so many turns of a service: more was read, and a fault was found in the demo."""
    demo, *others = snapshot.runs
    standing: tuple[FindingView, ...] = demo.findings if turns > 1 else ()
    intake = Intake(
        bytes=1000 * turns,
        records=10 * turns,
        judgements=turns,
        judgement_seconds=0.1 * turns,
        lag_buckets={0.1: 5 * turns, 1.0: 9 * turns},
        lag_sum=3.0 * turns,
        lag_count=10 * turns,
    )
    return replace(
        snapshot, runs=(replace(demo, findings=standing), *others), intake=intake, time=time.time()
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    servers.require("prometheus")
    folder = tmp_path_factory.mktemp("live")
    snapshot = trained(folder / "runs")
    board = Board()
    exposition, ranks = Exposition(board), RankExposition(board)

    def render(path: str) -> str:
        asked = urllib.parse.urlsplit(path)
        if asked.path == "/metrics":
            board.publish(grown(snapshot, board.version))
            return exposition.render("")[0].decode()
        text = ranks.render(urllib.parse.parse_qs(asked.query)["run"][0])
        return text.decode() if text else ""

    rules = folder / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": [ALERT]}]}), encoding="utf-8")
    with servers.exposing(render) as url:
        each = f"{url}/metrics/ranks?" + urllib.parse.urlencode({"run": FULL})
        config = servers.scraping(f"{url}/metrics", each, rules=[rules])
        with servers.prometheus(folder, config) as prometheus:
            scrapes = f"count_over_time(accumaudit_build_info[5m]) >= {SCRAPES}"
            servers.until(lambda: prometheus.query(scrapes), "fourth scrape")
            servers.until(lambda: prometheus.query('ALERTS{alertstate="firing"}'), "alert")
            servers.until(lambda: prometheus.query("accumaudit_rank_loss"), "scrape of ranks")
            yield Live(prometheus)


def choices(run: str) -> dict[str, str]:
    """The variables as Grafana fills them in: escaped where the operator is an expression."""
    return {"instance": ".*", "rank": "0|3", "run": run}


def in_text(run: str) -> str:
    """A run's name between the quotes of PromQL."""
    return run.replace("\\", "\\\\").replace('"', '\\"')


@pytest.mark.parametrize("file", boards.by_file())
def test_every_query_has_an_answer(live: Live, file: str) -> None:
    board = boards.by_file()[file]
    of_all = "run=~" in str(board)
    chosen = [".*"] if of_all else [in_text(FULL), DEMO]
    silent = []
    for place, text, instant in queries(board):
        asked = (filled(text, choices(run)) for run in chosen)
        if not any(live.answer(one, instant) for one in asked):
            silent.append(f"{place}: {text}")
    assert silent == []


def test_a_real_training_fills_the_dashboard_of_a_run(live: Live) -> None:
    board = boards.by_file()["grafana/run.json"]
    silent = {
        place
        for place, text, instant in queries(board)
        if not live.answer(filled(text, choices(DEMO)), instant)
    }
    assert silent == {"Scale of the loss A"}


@pytest.mark.parametrize("file", boards.by_file())
def test_every_variable_has_values(live: Live, file: str) -> None:
    found = {
        name: live.label_values(filled(series, choices(in_text(FULL))), label)
        for name, series, label in label_queries(boards.by_file()[file])
    }
    assert set(found.pop("run")) == {DEMO, FULL}
    assert found.pop("instance")
    assert all(found.values())


@pytest.mark.parametrize("file", boards.by_file())
def test_legends_and_columns_name_labels_that_series_have(live: Live, file: str) -> None:
    board = boards.by_file()[file]
    run = ".*" if "run=~" in str(board) else in_text(FULL)
    for panel in panels(board):
        held: set[str] = set()
        for target in panel["targets"]:
            series = live.answer(filled(target["expr"], choices(run)), target["instant"])
            labels = {label for one in series for label in one["metric"]}
            held |= labels
            if series:
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]
        for one in panel.get("transformations", ()):
            if one["id"] == "organize":
                names = {name for name in one["options"]["renameByName"] if not name.startswith("Value")}
                assert names <= held, panel["title"]


@pytest.mark.parametrize("file", boards.by_file())
def test_the_queries_of_a_table_meet_in_one_row_a_key(live: Live, file: str) -> None:
    board = boards.by_file()[file]
    run = ".*" if "run=~" in str(board) else in_text(FULL)
    tables = [panel for panel in panels(board) if panel["type"] == "table"]
    assert tables
    for panel in tables:
        answers = [
            [one["metric"] for one in live.answer(filled(target["expr"], choices(run)), instant=True)]
            for target in panel["targets"]
        ]
        shared = set.intersection(*map(_keys, answers))
        for rows in answers:
            keys = [tuple(row[label] for label in sorted(shared)) for row in rows]
            assert len(keys) == len(set(keys)), panel["title"]


def _keys(rows: list[Json]) -> set[str]:
    """The labels that all rows have."""
    return set.intersection(*(set(row) for row in rows))
