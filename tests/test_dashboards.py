"""The dashboards as files: their structure, their queries, and how they are given to Grafana."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import _jsonnet
import click
import pytest
import yaml
from click.testing import CliRunner

from accumaudit.cli import main
from accumaudit.dashboards import boards
from accumaudit.dashboards.exporting import HERE, files, text
from accumaudit.service import metric_list
from tests.dashboard_lint import Json, faults, filled, label_queries, panels, queries, selectors

ROOT: Final = Path(__file__).resolve().parent.parent
BOARDS: Final = boards.by_file()
ANY: Final = {"instance": ".*", "run": "a", "rank": "0"}
METRICS: Final = {
    metric.name: metric
    for group in (metric_list.OF_RUNS, metric_list.OF_RANKS, metric_list.OF_THE_SERVICE)
    for metric in (*group, *metric_list.OF_EACH_RANK)
}


@pytest.mark.parametrize("file", BOARDS)
class TestEachDashboard:
    def test_the_file_is_what_the_builder_makes(self, file: str) -> None:
        assert (HERE / file).read_text(encoding="utf-8") == text(BOARDS[file])

    def test_it_keeps_to_what_every_grafana_can_import(self, file: str) -> None:
        assert faults(json.loads(text(BOARDS[file]))) == []

    def test_its_queries_ask_for_metrics_and_labels_that_are_exported(self, file: str) -> None:
        asked = [expression for _, expression, _ in queries(BOARDS[file])]
        asked += [series for _, series, _ in label_queries(BOARDS[file])]
        for expression in asked:
            for selector in selectors(filled(expression, ANY)):
                name = re.sub(r"(?<=_seconds)_bucket$", "", selector.name or "")
                if name == "ALERTS":
                    continue
                labels = {matcher.name for matcher in selector.matchers.matchers}
                assert labels <= {"instance", *METRICS[name].labels}, expression

    def test_its_variables_are_labels_of_the_series_that_they_ask_for(self, file: str) -> None:
        for _, series, label in label_queries(BOARDS[file]):
            (selector,) = selectors(filled(series, ANY))
            assert label in {"instance", *METRICS[selector.name or ""].labels}


def test_no_file_lies_there_that_is_not_made() -> None:
    assert {f"grafana/{path.name}" for path in (HERE / "grafana").iterdir()} == set(BOARDS)


def test_dashboards_have_names_of_their_own() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


def test_links_lead_to_dashboards_that_exist_and_keep_the_choices() -> None:
    urls = [
        link["url"]
        for board in BOARDS.values()
        for panel in panels(board)
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "links"
        for link in one["value"]
    ]
    assert len(urls) == 2
    for url in urls:
        uid, _, query = url.removeprefix("/d/").partition("?")
        assert uid in {board["uid"] for board in BOARDS.values()}
        assert "var-run=${__data.fields.Run:percentencode}" in query
        assert "${datasource:queryparam}" in query


def _changed(change: Callable[[Json], object]) -> list[str]:
    board = copy.deepcopy(json.loads(text(BOARDS["grafana/run.json"])))
    change(board)
    return faults(board)


def _first(board: Json) -> Json:
    return panels(board)[0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda board: board.update(id=7), "id is 7"),
        (lambda board: board.update(uid="abc"), "uid 'abc'"),
        (lambda board: board.update(schemaVersion=42), "schemaVersion 42"),
        (lambda board: _first(board).update(datasource={"uid": "P1"}), "a data source of its own"),
        (lambda board: _first(board).update(title=""), "no title"),
        (lambda board: _first(board).update(description="No full stop"), "no description"),
        (lambda board: _first(board).update(type="graph"), "the kind graph"),
        (lambda board: _first(board).update(id=1), "two panels have one number"),
        (lambda board: _first(board)["gridPos"].update(w=25), "does not fit into 24 columns"),
        (lambda board: _first(board)["gridPos"].update(x=4), "lies on"),
        (lambda board: _first(board)["fieldConfig"]["defaults"].update(unit="ms"), "the units ['ms']"),
        (lambda board: board["templating"]["list"][0].update(current={}), "remembers a choice"),
        (lambda board: board["templating"]["list"][1].update(refresh=1), "is not renewed"),
        (lambda board: board["templating"]["list"][1].update(allValue="a|b"), "is a list"),
        (lambda board: board["templating"]["list"].pop(), "the variable run does not exist"),
        (lambda board: _ask(board, 'accumaudit_runs{instance=~"$instance"'), "unexpected end of input"),
        (lambda board: _ask(board, "sum(accumaudit_runs)"), "accumaudit_runs of every service"),
        (lambda board: _ask(board, _of("rate(accumaudit_updates_total{}[5m])")), "rate over 5m"),
        (lambda board: _ask(board, _of("accumaudit_updates_total{}")), "only ever grows"),
        (lambda board: _ask(board, _of("rate(accumaudit_runs{})")), "expected type"),
    ],
)
def test_what_a_dashboard_must_not_have_is_found(change: Callable[[Json], object], fault: str) -> None:
    assert any(fault in found for found in _changed(change)), _changed(change)


def _of(expression: str) -> str:
    return expression.replace("{}", '{instance=~"$instance"}')


def _ask(board: Json, expression: str) -> None:
    _first(board)["targets"][0].update(expr=expression, instant=False, range=True)


def _export(*arguments: str | Path) -> str:
    done = CliRunner().invoke(main, ["dashboards", "export", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def _data_source(board: Json) -> Any:
    return board["templating"]["list"][0]


class TestExport:
    def test_every_file_is_written_and_named(self, tmp_path: Path) -> None:
        said = _export(tmp_path / "out")
        written = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
        assert {line.removeprefix("wrote ") for line in said.splitlines()} == set(map(str, written))
        assert {path.relative_to(tmp_path / "out").as_posix() for path in written} == {
            *BOARDS,
            *("prometheus/rules.yml", "prometheus/alerts.yml", "prometheus/mixin.libsonnet"),
            *("provisioning/dashboards/accumaudit.yml", "provisioning/datasources/accumaudit.yml"),
        }

    def test_the_dashboards_are_the_committed_ones(self, tmp_path: Path) -> None:
        _export(tmp_path)
        for name in BOARDS:
            assert (tmp_path / name).read_text(encoding="utf-8") == text(BOARDS[name])

    def test_grafana_is_told_where_they_are(self, tmp_path: Path) -> None:
        folder = tmp_path / 'with: "quotes" # $HOME and {braces}'
        _export(folder)
        told = yaml.safe_load((folder / "provisioning/dashboards/accumaudit.yml").read_text(encoding="utf-8"))
        (provider,) = told["providers"]
        path = provider["options"]["path"].replace("$$", "$")
        assert {file.name for file in Path(path).iterdir()} == {"fleet.json", "ranks.json", "run.json"}

    def test_a_prometheus_is_provisioned_for_a_grafana_that_has_none(self, tmp_path: Path) -> None:
        told = yaml.safe_load(files(tmp_path)["provisioning/datasources/accumaudit.yml"])
        (source,) = told["datasources"]
        assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")

    def test_a_data_source_that_is_there_already_is_chosen(self, tmp_path: Path) -> None:
        said = _export(tmp_path, "--datasource-uid", 'P"1')
        assert "datasources" not in said
        for name, board in BOARDS.items():
            written = json.loads((tmp_path / name).read_text(encoding="utf-8"))
            assert _data_source(written).pop("current") == {"selected": True, "text": 'P"1', "value": 'P"1'}
            assert written == board

    def test_the_mixin_finds_the_dashboards_beside_it(self, tmp_path: Path) -> None:
        _export(tmp_path)
        program = "std.objectValues((import 'mixin.libsonnet').grafanaDashboards)"
        made = json.loads(_jsonnet.evaluate_snippet(str(tmp_path / "prometheus" / "mine.jsonnet"), program))
        assert {board["uid"] for board in made} == {board["uid"] for board in BOARDS.values()}

    def test_it_is_written_again_over_what_is_there(self, tmp_path: Path) -> None:
        _export(tmp_path, "--datasource-uid", "P1")
        _export(tmp_path, "--datasource-uid", "P2")
        written = json.loads((tmp_path / "grafana" / "run.json").read_text(encoding="utf-8"))
        assert _data_source(written)["current"]["value"] == "P2"

    def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "grafana").write_text("a file")
        done = CliRunner().invoke(main, ["dashboards", "export", str(tmp_path)])
        assert done.exit_code == 2
        assert f"{tmp_path / 'grafana' / 'fleet.json'} cannot be written: File exists" in done.output

    def test_an_unknown_verb_names_the_nearest(self) -> None:
        done = CliRunner().invoke(main, ["dashboards", "exprot"])
        assert done.exit_code == click.UsageError.exit_code
        assert "export" in done.output
