"""Real servers on free loopback ports: Prometheus, Alertmanager, TensorBoard, a browser, and what they call.

Each is a context manager that ends what it started. Debian's packages are asked for with `require`, which
skips the test, saying so, on a machine that lacks them; continuous integration installs them.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml

PACKAGES: Final = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "chromium-headless-shell": "chromium-headless-shell",
}
"""Programs, and Debian's packages that bring them."""
READY_SECONDS: Final = 60.0
"""A loaded machine may take this long to start a server."""
STARTS: Final = 3
"""A free port may be taken before the server has it."""

_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy."""

Answer = TypeVar("Answer")


def require(program: str) -> str:
    """The program's path; the test is skipped where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: apt-get install {PACKAGES[program]}")
    return found


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def until(ask: Callable[[], Answer | None], what: str, seconds: float = READY_SECONDS) -> Answer:
    """Ask again and again until the answer is truthy, and give it; an error that names `what` after that."""
    end = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"in {seconds:g} seconds there was no {what}"
        time.sleep(0.05)


class Server:
    """A process that answers at a URL of its own."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.url = url
        self.process = process
        self._log = log

    def get(self, path: str, **query: str) -> bytes:
        """What it answers, where that is no error."""
        address = self.url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        with _direct.open(address, timeout=READY_SECONDS) as answer:
            content: bytes = answer.read()
            return content

    def json(self, path: str, **query: str) -> Any:
        """The same, where it is JSON."""
        return json.loads(self.get(path, **query))

    def answers(self, path: str) -> bool:
        """Whether it answers without an error."""
        try:
            self.get(path)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def is_up(self, path: str) -> bool:
        """Wait until it answers; False where the process ended before."""
        until(lambda: self.answers(path) or self.process.poll() is not None, f"answer at {self.url}{path}")
        return self.process.poll() is None

    def said(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4000:]


class Prometheus(Server):
    """A Prometheus."""

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector: [{"metric": {...}, "value": [time, text]}]."""
        found: list[dict[str, Any]] = self.json("/api/v1/query", query=expression)["data"]["result"]
        return found

    def values(self, expression: str, label: str) -> dict[str, float]:
        """The values by one label."""
        return {one["metric"].get(label, ""): float(one["value"][1]) for one in self.query(expression)}

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The range vector: [{"metric": {...}, "values": [[time, text], ...]}]."""
        span = {"start": str(start), "end": str(end), "step": str(step)}
        answer = self.json("/api/v1/query_range", query=expression, **span)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self.json("/api/v1/alerts")["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any], *options: str) -> Iterator[Prometheus]:
    """A Prometheus with its data in the folder; `config` is what stands in its prometheus.yml.

    The folder may hold a tsdb already: folder/data.
    """
    program = require("prometheus")
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    command = [
        *(program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"),
        *("--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *options),
    ]
    with _serving(Prometheus, command, folder / "prometheus.log", "/-/ready") as server:
        yield server


def scraping(*urls: str, rules: Sequence[Path] = (), alertmanager: Server | None = None) -> dict[str, Any]:
    """A configuration that asks once a second: each URL is a job, `accumaudit` and then by number."""
    jobs = []
    for index, url in enumerate(urls):
        parts = urllib.parse.urlsplit(url)
        job: dict[str, Any] = {
            "job_name": "accumaudit" if index == 0 else f"accumaudit-{index}",
            "metrics_path": parts.path or "/metrics",
            "static_configs": [{"targets": [parts.netloc]}],
        }
        if parts.query:
            job["params"] = urllib.parse.parse_qs(parts.query)
        jobs.append(job)
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": jobs,
        "rule_files": [str(path) for path in rules],
    }
    if alertmanager is not None:
        target = alertmanager.url.removeprefix("http://")
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    return config


def hurried(rules: Path, folder: Path) -> Path:
    """A copy of a file of rules, in the folder, whose alerts fire at once."""
    content = yaml.safe_load(rules.read_text(encoding="utf-8"))
    for group in content["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
            rule.pop("keep_firing_for", None)
    copy = folder / rules.name
    copy.write_text(yaml.safe_dump(content), encoding="utf-8")
    return copy


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[Server]:
    """An Alertmanager that sends every alert to a URL at once."""
    program = require("prometheus-alertmanager")
    config = {
        "route": {"receiver": "test", "group_wait": "0s", "group_interval": "1s", "group_by": ["..."]},
        "receivers": [{"name": "test", "webhook_configs": [{"url": webhook}]}],
    }
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        *(program, f"--config.file={file}", f"--storage.path={folder / 'alertmanager'}"),
        *("--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn"),
    ]
    with _serving(Server, command, folder / "alertmanager.log", "/-/ready") as server:
        yield server


@contextmanager
def tensorboard(logdir: Path) -> Iterator[Server]:
    """A TensorBoard over a folder, which keeps every point."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"),
            *("--port", "{port}", "--load_fast=true", "--reload_interval=1"),
            "--samples_per_plugin=scalars=200000",
        ]
        with _serving(Server, command, Path(folder, "log.txt"), "/data/environment") as server:
            yield server


SomeServer = TypeVar("SomeServer", bound=Server)


@contextmanager
def _serving(kind: type[SomeServer], command: Sequence[str], log: Path, ready: str) -> Iterator[SomeServer]:
    said = ""
    for _ in range(STARTS):
        server = _started(kind, command, log)
        try:
            if server.is_up(ready):
                yield server
                return
            said = server.said()
        finally:
            _end(server.process)
    raise AssertionError(f"{command[0]} did not start: {said}")


def _started(kind: type[SomeServer], command: Sequence[str], log: Path) -> SomeServer:
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return kind(process, f"http://127.0.0.1:{port}", log)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Receiver:
    """A loopback server that keeps the JSON that is posted to it: a webhook's other end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: list[Any] = []

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts of all notifications of Alertmanager, in the order of their arrival."""
        return [alert for one in list(self.received) for alert in one["alerts"]]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A webhook's other end."""

    def answer(handler: BaseHTTPRequestHandler) -> tuple[str, bytes]:
        content = handler.rfile.read(int(handler.headers["Content-Length"]))
        kept.received.append(json.loads(content))
        return "text/plain", b""

    with _answering(answer) as url:
        kept = Receiver(url + "/")
        yield kept


@contextmanager
def exposing(render: Callable[[str], str]) -> Iterator[str]:
    """A server of metrics: `render` gets the path with its query, and gives the text format; its URL."""

    def answer(handler: BaseHTTPRequestHandler) -> tuple[str, bytes]:
        return "text/plain; version=0.0.4; charset=utf-8", render(handler.path).encode()

    with _answering(answer) as url:
        yield url


@contextmanager
def _answering(answer: Callable[[BaseHTTPRequestHandler], tuple[str, bytes]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = answer(self)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - as above

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    dom: str
    console: tuple[str, ...]
    """What the page wrote to its console, and what the browser held against it."""


class Browser:
    """A headless Chromium with a profile of its own."""

    def __init__(self, program: str, profile: Path) -> None:
        self._program = program
        self._profile = profile

    def see(self, url: str, *, width: int = 1280, height: int = 900, milliseconds: int = 5000) -> Seen:
        """Open a page; its scripts have this much (virtual) time."""
        done = self._run(url, width, height, milliseconds, "--dump-dom")
        lines = re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr.decode(errors="replace"))
        return Seen(done.stdout.decode(errors="replace"), tuple(lines))

    def shoot(
        self,
        url: str,
        file: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        milliseconds: int = 5000,
    ) -> Path:
        """A picture of a page."""
        scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
        self._run(url, width, height, milliseconds, f"--screenshot={file}", "--hide-scrollbars", *scheme)
        assert file.stat().st_size > 0
        return file

    def _run(
        self, url: str, width: int, height: int, milliseconds: int, *what: str
    ) -> subprocess.CompletedProcess[bytes]:
        command = [
            *(self._program, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"),
            *("--enable-logging=stderr", "--log-level=0", f"--user-data-dir={self._profile}"),
            *(f"--window-size={width},{height}", f"--virtual-time-budget={milliseconds}", *what, url),
        ]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
        return done


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program = require("chromium-headless-shell")
    with tempfile.TemporaryDirectory() as profile:
        yield Browser(program, Path(profile))


def tool(program: str, *arguments: str | Path, stdin: str = "") -> str:
    """Run promtool, amtool or their like; what it says, where it is content."""
    done = subprocess.run(
        [require(program), *map(str, arguments)],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
