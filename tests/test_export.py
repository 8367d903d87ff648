"""Metrics of runs that have ended: `check --textfile` and `export --format openmetrics`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from accumaudit.cli import main
from accumaudit.outputs import openmetrics
from accumaudit.service.samples import label
from accumaudit.service.snapshot import Snapshot
from tests.records import START, write_run
from tests.servers import prometheus, scraping, tool

pytestmark = pytest.mark.slow  # each test runs a check, and one a server
NAME: Final = 'run "1"\n'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: 6 attempts of which one was skipped and the last has half its weight; and a healthy one."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / NAME, [{}, {}, {"skipped": True}, {}, {}, {"microbatches": 2, "total_weight": 0.5}])
    write_run(folder / "healthy", 2, ranks=1)
    return folder


def ran(*arguments: str | Path, status: int = 0) -> Result:
    """What a verb did, with this exit status."""
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture(scope="module")
def exported(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs as one file of OpenMetrics."""
    file = tmp_path_factory.mktemp("exported") / "runs.om"
    ran("export", runs, "--format", "openmetrics", "--output", file)
    return file


def test_a_check_leaves_metrics_for_the_node_exporter(runs: Path, tmp_path: Path) -> None:
    """The old file goes; nothing else stays behind; the exit status is the check's."""
    file = tmp_path / "accumaudit.prom"
    file.write_text("old")
    said = ran("check", runs, "--textfile", file, "--format", "json", status=1)
    assert said.stdout.startswith("{")
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o444 == 0o444
    text = file.read_text()
    assert tool("promtool", "check", "metrics", stdin=text) == ""
    found = {(sample.name, *sample.labels.values()): sample for f in parse_text(text) for sample in f.samples}
    assert not [sample for sample in found.values() if sample.timestamp is not None]
    updates = {key[1:]: one.value for key, one in found.items() if key[0] == "accumaudit_updates_total"}
    assert updates == {("0", label(NAME)): 5, ("0", "healthy"): 2}
    active = [one.labels for key, one in found.items() if key[0] == "accumaudit_findings_active"]
    assert {(one["run"], one["rule"]) for one in active} >= {(label(NAME), "ACC101")}
    assert "accumaudit_ingest" not in text


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(runs: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "x.prom"
    said = ran("check", runs / "healthy", "--textfile", missing, status=2)
    assert f"{missing}: the metrics cannot be written: No such file" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_attempt_is_a_sample_at_its_own_time(exported: Path) -> None:
    text = exported.read_text()
    found = {
        (sample.name, sample.labels["run"]): [
            (one.timestamp, one.value) for one in family.samples if one.labels == sample.labels
        ]
        for family in parse_openmetrics(text)
        for sample in family.samples
        if sample.labels.get("state", "finished") == "finished"
    }
    name = label(NAME)
    assert [value for _, value in found["accumaudit_updates_total", name]] == [1, 2, 2, 3, 4, 5]
    assert [value for _, value in found["accumaudit_skipped_updates_total", name]] == [0, 0, 1, 1, 1, 1]
    assert [value for _, value in found["accumaudit_total_weight", name]] == pytest.approx([1, 1, 1, 1, 0.5])
    assert [value for _, value in found["accumaudit_findings_active", name]] == [1]
    assert [value for _, value in found["accumaudit_run_state", name]] == [0, 0, 0, 0, 0, 1]
    times = [float(time) for time, _ in found["accumaudit_attempts_total", name]]
    assert times == pytest.approx([START + 2 + index for index in range(6)], abs=0.01)
    assert len(found["accumaudit_attempts_total", "healthy"]) == 2
    assert text.endswith("# EOF\n")


def test_prometheus_shows_a_run_that_ended_long_ago(exported: Path, tmp_path: Path) -> None:
    """promtool makes blocks of the file, and a server gives the values at the time of the records."""
    tool("promtool", "tsdb", "create-blocks-from", "openmetrics", exported, tmp_path / "data")
    options = ("--storage.tsdb.retention.time=100y",)
    with prometheus(tmp_path, scraping(), *options) as server:
        (series,) = server.query_range(
            'accumaudit_total_weight{run!="healthy"}', START + 4.5, START + 7.5, 1.0
        )
        assert series["metric"]["run"] == label(NAME)
        assert [float(value) for _, value in series["values"]][-1] == pytest.approx(0.5)
        (series,) = server.query_range("sum(accumaudit_updates_total)", START + 7.5, START + 7.5, 1.0)
        assert [float(value) for _, value in series["values"]] == [7]


def test_clocks_that_jump_give_samples_that_prometheus_takes(tmp_path: Path) -> None:
    """The clock is set back by an hour, stands still, and has no sense in one record."""
    times = [START, START + 1, START - 3600, START - 3600, 1e300, START + 2]
    write_run(tmp_path / "run", [{"time": time} for time in times], ranks=1)
    file = tmp_path / "run.om"
    ran("export", tmp_path / "run", "--format", "openmetrics", "--output", file)
    tool("promtool", "tsdb", "create-blocks-from", "openmetrics", file, tmp_path / "data")
    (family,) = (one for one in parse_openmetrics(file.read_text()) if one.name == "accumaudit_attempts")
    assert [one.value for one in family.samples] == [1, 2, 3, 4, 5]
    stamps = [float(one.timestamp) - START for one in family.samples]
    assert stamps == pytest.approx([0, 1, 1.001, 1.002, 2])


def test_runs_without_times_cannot_be_exported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [{"time": None}] * 2, ranks=1)
    file = tmp_path / "x.om"
    said = ran("export", run, "--format", "openmetrics", "--output", file, status=2)
    assert "no record of these runs has a time, which every sample of Prometheus needs" in said.stderr
    assert not file.exists()


def test_logs_of_other_programs_are_exported_as_far_as_they_tell(tmp_path: Path) -> None:
    """Some have no times, and none says whether its training ended."""
    data = [Path(__file__).parent / "data" / name for name in ("hf", "wandb")]
    file, textfile = tmp_path / "runs.om", tmp_path / "runs.prom"
    said = ran("export", *data, "--format", "openmetrics", "--output", file)
    assert "no record has a time; the run was left out" in said.stderr
    assert "more runs without times were left out" in said.stderr
    tool("promtool", "tsdb", "create-blocks-from", "openmetrics", file, tmp_path / "data")
    ran("check", *data, "--textfile", textfile, "--select", "ACC1", "--fail-on", "never", "--format", "json")
    assert tool("promtool", "check", "metrics", stdin=textfile.read_text()) == ""
    for text in (file.read_text(), textfile.read_text()):
        assert "accumaudit_loss{" in text
        assert "accumaudit_run_state{" not in text


def test_a_file_of_no_runs_is_whole() -> None:
    assert list(openmetrics.lines(Snapshot(time=math.nan)))[-1] == "# EOF\n"
