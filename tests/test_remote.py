"""Logs at URLs: an S3 server that runs here, and the file systems of fsspec that need none."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

import accumaudit
from accumaudit.cli import main
from accumaudit.importers import Options
from accumaudit.ledger import remote
from accumaudit.ledger.reader import LedgerError, read_ledger
from tests.records import write_run

LOG = " iteration {0:8d}/ 20 | consumed samples: {1} | learning rate: 1.000E-04 | lm loss: 2.5E+00 |\n"


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies are made; none may be left."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system in which `runs` is a new bucket."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
    }.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system.mkdir("runs")
    yield system
    system.rm("runs", recursive=True)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def write_log(path: Path) -> Path:
    path.write_text("".join(LOG.format(step, 4 * step) for step in range(1, 21)), encoding="utf-8")
    return path


@pytest.mark.slow
class TestS3:
    def test_a_ledger_is_judged_as_if_it_were_here(self, bucket: Any, tmp_path: Path) -> None:
        run = write_run(tmp_path / "first", [{"total_weight": 0.25}, {}])
        file = next(run.rglob("*.jsonl"))
        file.write_text(file.read_text(encoding="utf-8") + "torn\n", encoding="utf-8")
        bucket.put(str(run), "runs/deep/first", recursive=True)
        here = json.loads(invoke("check", str(run), "--format", "json").stdout)
        there = json.loads(invoke("check", "s3://runs/deep/first", "--format", "json").stdout)
        assert json.loads(json.dumps(here).replace(str(run), "s3://runs/deep/first")) == there
        assert there["runs"][0]["path"] == "s3://runs/deep/first"
        assert there["runs"][0]["unreadable"][0]["file"].startswith("s3://runs/deep/first/rank-00/")

    def test_a_whole_bucket_with_foreign_logs(self, bucket: Any, tmp_path: Path) -> None:
        bucket.put(str(write_log(tmp_path / "a.log")), "runs/x/a.log")
        bucket.pipe("runs/x/launch.sh", b"torchrun train.py\n")
        bucket.pipe("runs/x/model.safetensors", bytes(1000))
        with accumaudit.Ledger.open("s3://runs") as ledger:
            assert ledger.updates["attempt_id"] == list(range(1, 21))
            assert [(one.file, one.why) for one in ledger.no_logs] == [
                ("s3://runs/x/launch.sh", "it looks like the output of a launcher")
            ]
        asked = invoke("sql", "s3://runs/x/a.log", "SELECT path, count(*) FROM runs, updates GROUP BY 1")
        assert "s3://runs/x/a.log  20" in asked.stdout

    @pytest.mark.usefixtures("bucket")
    def test_what_is_not_there(self) -> None:
        for url in ("s3://runs/nothing", "s3://no-such-bucket/run"):
            result = invoke("check", url)
            assert result.exit_code == 2
            assert f"{url}: cannot be read (" in result.stderr
            assert "check its name and your access" in result.stderr

    def test_a_folder_of_nothing_but_weights(self, bucket: Any) -> None:
        bucket.pipe("runs/x/model.safetensors", bytes(1000))
        assert "s3://runs/x: no log below this folder" in invoke("check", "s3://runs/x").stderr

    def test_names_that_lead_out_of_the_folder(self, bucket: Any, tmp_path: Path, copies: Path) -> None:
        bucket.pipe("runs/x/../../escaped.log", write_log(tmp_path / "a.log").read_bytes())
        with read_ledger(["s3://runs/x"]) as ledger:
            (file,) = ledger.sources.values()
            assert file.path.is_relative_to(copies)
            assert file.path.parts[-3:] == ("_", "_", "escaped.log")


class TestWithoutServer:
    def test_memory_and_files(self, tmp_path: Path) -> None:
        system = fsspec.filesystem("memory")
        system.pipe("/logs/a.log", write_log(tmp_path / "b.log").read_bytes())
        try:
            with read_ledger(["memory://logs/a.log", f"file://{tmp_path}/b.log"]) as ledger:
                assert ledger.runs == [
                    ("a.log", "memory://logs/a.log"),
                    ("b.log", f"file://{tmp_path}/b.log"),
                ]
                assert ledger.connection.sql("SELECT count(*) FROM updates").fetchall() == [(40,)]
        finally:
            system.rm("/logs", recursive=True)

    def test_progress_tells_all_bytes(self, tmp_path: Path) -> None:
        log = write_log(tmp_path / "b.log")
        told: dict[str, list[int]] = {}
        options = Options(
            on_start=lambda what, length: told.update({what: [length, 0]}),
            on_read=lambda length: told[next(reversed(told))].append(length),
        )
        read_ledger([f"file://{log}"], options).close()
        size = log.stat().st_size
        assert [(what, length, sum(read)) for what, (length, *read) in told.items()] == [
            (f"fetching file://{log}", size, size),
            ("reading the records", size, size),
        ]

    def test_a_protocol_that_nobody_knows(self) -> None:
        with pytest.raises(LedgerError, match=r"^gopher://x: cannot be read .*gopher"):
            read_ledger(["gopher://x"])

    def test_a_package_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(LedgerError, match=r"^s3://runs: .*pip install 'accumaudit\[remote\]'"):
            read_ledger(["s3://runs"])

    def test_more_than_there_is_room_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = write_log(tmp_path / "b.log")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
        with pytest.raises(LedgerError, match=r"bytes lie there, and 10 are free"):
            read_ledger([f"file://{log}"])

    @pytest.mark.parametrize("place", ["runs/first", "C:\\runs", "/x//y", "", "://", Path("s3://x")])
    def test_paths_are_no_urls(self, place: str | Path) -> None:
        assert not remote.is_url(place)
