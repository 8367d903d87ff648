"""`accumaudit serve` in a process of its own, asked over HTTP as anybody asks it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.servers import free_port, until

_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy."""


class Service:
    """The process."""

    def __init__(self, folder: Path, state: Path, *options: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        arguments = ["serve", str(folder), "--listen", self.url[7:], "--state", str(state), *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "accumaudit", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def get(self, path: str) -> str:
        """What it answers; nothing where it does not, or not with 200."""
        try:
            with _direct.open(self.url + path, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of the first series of a metric with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.get("/metrics").splitlines():
            found = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if found and all(label in (found[1] or "") for label in wanted):
                return float(found[2])
        return None

    def run(self, name: str) -> dict[str, Any] | None:
        """What `check` says of a run in JSON."""
        runs = json.loads(self.get("/api/runs") or '{"runs": []}')["runs"]
        return next((one for one in runs if one["run_id"] == name), None)

    def is_ready(self) -> bool:
        """Whether it has caught up; an error where it has ended instead."""
        assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
        return bool(self.get("/readyz"))

    def totals(self) -> dict[str, float]:
        """Every sample of /metrics that may only grow."""
        text = self.get("/metrics")
        counters = re.findall(r"# TYPE (\w+) (?:counter|histogram)", text)
        samples = re.findall(r"^((\w+)(?:{.*})?) (\S+)$", text, re.MULTILINE)
        return {series: float(value) for series, name, value in samples if name.startswith(tuple(counters))}

    def kill(self) -> str:
        """End it as a machine does that loses power; what it said."""
        self.process.kill()
        said, _ = self.process.communicate()
        return said

    def stop(self) -> str:
        """End it as a service manager does; what it said."""
        self.process.terminate()
        try:
            said, _ = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return said


@contextmanager
def serving(folder: Path, state: Path, *options: str, ready: bool = True) -> Iterator[Service]:
    """A service over a folder, from when it has caught up, or answers at all, to the end of the block."""
    service = Service(folder, state, *options)
    try:
        until(service.is_ready if ready else service.totals, "service that answers")
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()


def failed(run: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The findings of a run by their rules."""
    verdicts = run["verdicts"] if run else []
    return {one["code"]: one["finding"] for one in verdicts if one["status"] == "failed"}


def seconds_since(moment: float) -> float:
    """By the clock that records are stamped with."""
    return time.time() - moment
