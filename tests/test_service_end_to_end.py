"""A training with a fault, the service, Prometheus, Alertmanager, a webhook: all of them real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import accumaudit.dashboards
from tests.live_load import memory_bytes
from tests.servers import alertmanager, hurried, prometheus, receiver, scraping, tool, until
from tests.serving import Service, failed, seconds_since, serving

pytestmark = pytest.mark.slow  # servers, and the 20 seconds of a run that is being written

FAULT = "fixed-divisor-tail"
ALERTS = Path(accumaudit.dashboards.__file__).parent / "prometheus" / "alerts.yml"


def time_of(folder: Path, attempt: int) -> float:
    """When the last of the ranks wrote an attempt."""
    lines = (line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines())
    records = (json.loads(line) for line in lines)
    return float(max(one["time"] for one in records if one.get("attempt_id") == attempt))


def say(figure: str) -> None:
    """What was measured, for who reads the test's output: nothing is judged by it."""
    sys.stdout.write(f"{figure}\n")


def mean_lag(service: Service) -> float:
    total, count = (service.metric(f"accumaudit_ingest_lag_seconds_{what}") for what in ("sum", "count"))
    return (total or 0.0) / count if count else 0.0


def is_told(service: Service, rule: str) -> float | None:
    return service.metric("accumaudit_findings_active", rule=rule, severity="error")


def test_a_fault_of_a_training_arrives_at_the_webhook(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    tool("promtool", "check", "rules", ALERTS)
    alerts = hurried(ALERTS, tmp_path)
    with receiver() as webhook, serving(logs, tmp_path / "state") as service:
        with (
            alertmanager(tmp_path, webhook.url) as manager,
            prometheus(tmp_path, scraping(service.url, rules=[alerts], alertmanager=manager)),
        ):
            training = [sys.executable, "-m", "accumaudit", "demo", "--fault", FAULT, "--log-dir", str(logs)]
            with subprocess.Popen(training, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
                until(lambda: is_told(service, "ACC101"), "finding among the metrics")
                say(f"{seconds_since(time_of(logs / FAULT, 4)):.1f} s from the record to the metric")
            assert demo.returncode == 0
            arrived = until(
                lambda: [one for one in webhook.alerts() if one["labels"].get("rule") == "ACC101"], "alert"
            )
            say(f"{seconds_since(time_of(logs / FAULT, 4)):.1f} s from the record to the webhook")
        assert arrived[0]["labels"]["alertname"] == "AccumauditErrorFound"
        assert arrived[0]["labels"]["run"] == FAULT
        assert arrived[0]["status"] == "firing"
        assert FAULT in arrived[0]["annotations"]["description"]
        assert f"acc101-{FAULT}" in arrived[0]["annotations"]["runbook_url"]
        others = {one["labels"]["alertname"] for one in webhook.alerts()} - {"AccumauditErrorFound"}
        assert others == set()
        said = service.stop()
    assert said.count(f"{FAULT}: error ACC101 {FAULT}, update") == 1


def test_a_hundred_ranks_are_followed_while_they_write(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    ranks, seconds, wrong = 100, 20, 12
    with serving(logs, tmp_path / "state") as service:
        writer = [sys.executable, "-m", "tests.live_load", str(logs / "load")]
        arguments = [f"--ranks={ranks}", f"--seconds={seconds}", f"--fault-at={wrong}"]
        peak = 0
        with subprocess.Popen([*writer, *arguments]) as writing:
            while writing.poll() is None:
                peak = max(peak, memory_bytes(service.process.pid))
                assert service.get("/healthz")
        assert writing.returncode == 0
        total = ranks * (seconds + 1)
        until(lambda: service.metric("accumaudit_ingest_records_total") == total, "last record")
        until(lambda: service.metric("accumaudit_judged_attempt_id", run="load") == seconds, "last judgement")
        assert service.metric("accumaudit_attempts_total", run="load") == seconds
        assert service.metric("accumaudit_microbatches_total", run="load") == 4 * ranks * seconds
        assert service.metric("accumaudit_ranks", run="load") == ranks
        assert service.metric("accumaudit_failed_judgements_total") == 0
        findings = failed(service.run("load"))
        say(f"{peak / 1e6:.0f} MB at most; records read after {mean_lag(service):.2f} s on average")
    assert list(findings) == ["ACC104"]
    assert (findings["ACC104"]["first_update"], findings["ACC104"]["count"]) == (wrong, 1)
    assert peak < 600e6
