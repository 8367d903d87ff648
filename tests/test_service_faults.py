"""The service as a process: killed, stopped, started twice, asked by those who do not listen."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accumaudit.service.metrics import Exposition
from tests.live_load import processes
from tests.servers import until
from tests.serving import Service, failed, serving
from tests.watched import Watched, Writer

pytestmark = pytest.mark.slow  # each service is a process, with one that judges


HALVED: dict[str, Any] = {"total_weight": 0.5}
NO_NORM = {"grad_norm_after_clip": "NaN", "grad_norm_before_clip": "NaN"}
ATTEMPTS: list[dict[str, Any]] = [{}, HALVED, {}, {}, {"skipped": True}, {}, {}, {}, {}, HALVED, NO_NORM, {}]


def is_gone(process: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def children(service: Service) -> list[int]:
    """The processes that judge."""
    return [one for one in processes(service.process.pid) if one != service.process.pid]


def of_run(text: str) -> set[str]:
    """The samples of a run."""
    return {line for line in text.splitlines() if 'run="run"' in line}


def attempts(service: Service) -> float | None:
    return service.metric("accumaudit_attempts_total", run="run")


def test_a_service_that_is_killed_loses_nothing_and_tells_nothing_twice(tmp_path: Path) -> None:
    logs, told = tmp_path / "logs", tmp_path / "told"
    logs.mkdir()
    writer = Writer(logs / "run", ATTEMPTS)
    options = ("--on-finding", f"tee -a {told}")
    said = []
    with serving(logs, tmp_path / "state", *options) as service:
        writer.write(4)
        until(lambda: told.exists() and told.read_text(), "finding told to the command")
        writer.write(6)
        until(lambda: attempts(service) == 6, "sixth attempt")
        before = service.totals()
        judging = children(service)
        assert judging
        said.append(service.kill())
    until(lambda: all(map(is_gone, judging)), "end of those that judged")
    writer.write(8)
    writer.tear()
    with serving(logs, tmp_path / "state", *options, ready=False) as service:
        after = service.totals()
        assert {series: value for series, value in before.items() if after.get(series, 0.0) < value} == {}
        until(lambda: attempts(service) == 8, "eighth attempt")
        writer.write(10)
        until(lambda: attempts(service) == 10, "tenth attempt")
        before = service.totals()
        said.append(service.kill())
    writer.write(len(ATTEMPTS) + 1)
    with serving(logs, tmp_path / "state", *options, ready=False) as service:
        after = service.totals()
        assert {series: value for series, value in before.items() if after.get(series, 0.0) < value} == {}
        until(lambda: service.metric("accumaudit_files_at_rest") == 2, "end of the run")
        run = service.run("run")
        metrics = service.get("/metrics")
        said.append(service.stop())
    assert run is not None
    findings = failed(run)
    assert findings["ACC104"]["count"] == 2
    with Watched(logs) as undisturbed:
        undisturbed.until(lambda: undisturbed.caught_up() and undisturbed.snapshot.intake.files_at_rest == 2)
        text = Exposition(undisturbed.board).render("")[0].decode()
    assert of_run(metrics) == of_run(text)
    lines = [re.search(r"ACC\d+", line) for line in "".join(said).splitlines() if line.startswith("run: ")]
    assert sorted(found[0] for found in lines if found) == sorted(findings)
    commanded = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted(one["code"] for one in commanded) == sorted(findings)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One over a run of many ranks."""
    folder = tmp_path_factory.mktemp("serving")
    Writer(folder / "logs" / "run", [{}], ranks=400).write(1)
    with serving(folder / "logs", folder / "state") as service:
        until(lambda: service.metric("accumaudit_ranks", run="run") == 400, "last rank")
        yield service


def asking(service: Service, path: str) -> socket.socket:
    """A client that has asked, and takes as little as it can."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.settimeout(30)
    host, port = service.url[7:].split(":")
    client.connect((host, int(port)))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    return client


def test_clients_that_read_byte_by_byte_hold_up_nobody(service: Service) -> None:
    paths = ("/metrics", "/metrics/ranks?run=run", "/runs/run", "/events", "/events?run=run") * 4
    slow = [asking(service, path) for path in paths]
    try:
        for _ in range(3):
            assert all(client.recv(1) for client in slow)
            assert service.metric("accumaudit_ranks", run="run") == 400
            assert service.get("/metrics/ranks?run=run").count("accumaudit_rank_loss{") == 400
            assert service.get("/healthz")
            assert "run" in service.get("/")
    finally:
        for client in slow:
            client.close()


def test_a_second_service_on_the_same_state_is_refused(service: Service) -> None:
    arguments = service.process.args
    assert isinstance(arguments, list)
    again = [*map(str, arguments)]
    again[again.index("--listen") + 1] = "127.0.0.1:0"
    done = subprocess.run(again, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "another service holds this state; end it" in done.stderr
    assert "Traceback" not in done.stderr
    assert service.get("/healthz")


def test_it_ends_when_told_to_while_a_judgement_hangs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    writer = Writer(logs / "run", ATTEMPTS)
    with serving(logs, tmp_path / "state") as service:
        writer.write(1)
        until(lambda: service.metric("accumaudit_judged_attempt_id", run="run") == 1, "judgement")
        judging = children(service)
        for one in judging:
            os.kill(one, signal.SIGSTOP)
        writer.write(4)
        until(lambda: attempts(service) == 4, "fourth attempt")
        service.stop()
    assert service.process.returncode == 0
    assert judging
    assert all(map(is_gone, judging))


def test_a_folder_that_is_not_there_is_told_at_once_and_watched_when_it_comes(tmp_path: Path) -> None:
    with serving(tmp_path / "logs", tmp_path / "state", ready=False) as service:
        Writer(tmp_path / "logs" / "run", ATTEMPTS).write(1)
        until(lambda: attempts(service) == 1, "attempt")
        said = service.stop()
    assert f"accumaudit: warning: there is no folder {tmp_path / 'logs'}; it is watched once" in said
