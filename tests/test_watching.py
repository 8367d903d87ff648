"""`watch=True`: a run is judged beside its training, which is told once of each finding and pays nothing."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import accumaudit
from accumaudit.service.snapshot import FindingView
from accumaudit.service.watcher import Parent, Teller, watch
from tests.findings import run_with
from tests.loops import TOKENS, TinyModel, batches, token_loss
from tests.processes import Pair, has_ended
from tests.recorded import faults, updates
from tests.records import write_run

pytestmark = pytest.mark.slow  # each waits for the judgement of another process


STEPS = 4
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def spool(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that is killed cannot take its folder with it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("spool")))


class Loop:
    """Every second window is short, and divided as if it were full."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = TinyModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.updates = 0

    def attach(self, folder: Path, **options: Any) -> accumaudit.Audit:
        options = {"accumulation_steps": STEPS, "watch": True, **options}
        return accumaudit.attach(self.model, self.optimizer, log_dir=folder, **options)

    def update(self) -> None:
        short = self.updates % 2
        for ids in batches(STEPS)[2 * short :]:
            (token_loss(self.model(ids), ids) / (STEPS * TOKENS)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1

    @property
    def parameters(self) -> bytes:
        flat = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        return bytes(flat.numpy().tobytes())


def until(happened: Callable[[], object], meanwhile: Callable[[], object] = lambda: time.sleep(0.02)) -> None:
    """Wait, and do something the while."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        meanwhile()


def watcher_of(audit: accumaudit.Audit) -> Any:
    """The process that judges."""
    assert audit._watcher is not None
    return audit._watcher._process


def test_a_finding_is_said_once_while_the_training_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    with loop.attach(tmp_path) as audit:
        process = watcher_of(audit)

        def goes_on() -> None:
            loop.update()
            time.sleep(0.1)

        until(audit.findings, goes_on)
        (live,) = audit.findings()
        process.send_signal(signal.SIGINT)  # of the terminal
        loop.update()
        loop.update()
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "ACC101" in line and "updates judged" not in line] == [
        f"accumaudit: {live.text}"
    ]
    (end,) = [line for line in said if "Found" in line]
    assert end.startswith("accumaudit: Found 1 fault in 1 run (")
    assert end.endswith(f" `accumaudit check {tmp_path}` says more.")
    (last,) = audit.findings()
    assert (live.code, live.severity, live.ranks, live.first_update) == ("ACC101", "error", (0,), 2)
    assert (last.count, last.last_update) == (loop.updates // 2, loop.updates // 2 * 2)
    assert live.observed == pytest.approx(0.5, abs=1e-4)
    assert last.advice.startswith("Divide by what the window really holds")
    assert process.returncode == 0
    bare = Loop()
    for _ in range(loop.updates):
        bare.update()
    assert bare.parameters == loop.parameters
    assert faults(tmp_path) == []


def test_rank_0_alone_watches_both(tmp_path: Path, pair: Pair) -> None:
    first, second = pair.call("tests.test_watching:train_apart", folder=str(tmp_path))
    assert (first["watches"], second["watches"]) == (True, False)
    assert "ACC501" in first["codes"]
    assert second["codes"] == []


def train_apart(folder: str) -> dict[str, Any]:
    """Gradients that are never reduced; runs on each rank."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(TinyModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    audit = accumaudit.attach(model, optimizer, log_dir=folder, summary=False, watch=True)
    for ids in batches(6)[torch.distributed.get_rank() :: 2]:
        with model.no_sync():
            (token_loss(model(ids), ids) / (2 * TOKENS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    watches = audit._watcher is not None
    audit.close()
    return {"watches": watches, "codes": [one.code for one in audit.findings()]}


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tests.test_watching import Loop, watcher_of
loop = Loop()
audit = loop.attach(Path(sys.argv[1]), summary=False)
forked = os.fork()
if not forked:
    time.sleep(600)
loop.update()
print(watcher_of(audit).pid, forked, flush=True)
time.sleep(600)
"""


def test_it_ends_with_a_training_that_is_killed_and_whose_forks_live_on(tmp_path: Path) -> None:
    """A data worker that was forked holds copies of all that the training has open."""
    training = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    with training:
        assert training.stdout is not None
        watcher, forked = map(int, training.stdout.readline().split())
        try:
            os.kill(watcher, 0)
            training.kill()
            training.wait()
            assert has_ended(watcher)
            os.kill(forked, 0)
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_watcher_that_dies_leaves_the_verdict_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    with loop.attach(tmp_path) as audit:
        watcher_of(audit).kill()
        until(lambda: caplog.messages)
        loop.update()
        loop.update()
    assert caplog.messages == [
        "accumaudit: the watcher has ended by itself: what it finds is told at the end alone"
    ]
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("accumaudit: error ACC101 fixed-divisor-tail, update 2: ")
    assert last.startswith("accumaudit: Found 1 fault in 1 run (")
    assert audit.findings() == []
    assert len(updates(tmp_path)) == 2


def test_without_duckdb_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "accumaudit.hooks.watching.find_spec", lambda name: None if name == "duckdb" else found(name)
    )
    caplog.set_level(logging.INFO, "accumaudit")
    loop = Loop()
    with loop.attach(tmp_path, summary=False, stop_on="error") as audit:
        loop.update()
        loop.update()
        loop.update()
    assert caplog.messages == [
        "accumaudit: nothing is watched: judging needs duckdb, which is not installed: pip install duckdb"
    ]
    assert audit.findings() == []


class Words(Parent):
    """A training that says "close" at once, or is gone."""

    def __init__(self, word: bytes) -> None:
        there, here = os.pipe()
        os.write(here, word)
        os.close(here)
        self._file = os.fdopen(there, "rb", buffering=0)
        super().__init__(self._file)

    def __enter__(self) -> Words:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_what_an_earlier_launch_had_is_not_said_again(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"total_weight": 4.0}, {}, {}]
    run = write_run(tmp_path / "run", wrong, ranks=1)
    resumed: dict[str, Any] = {
        "started_at": 1_700_100_000.0,
        "optimizer_state_step_at_attach": 3,
        "scheduler_step_at_attach": 3,
        "first_update": 4,
    }
    short = {"microbatches": 2, "total_weight": 0.5}
    write_run(run, [{}, short, {}], ranks=1, launch="bbbb", **resumed)
    output = io.StringIO()
    with Words(b"close\n") as parent:
        watch(run, parent, output)
    *found, verdict = lines(output)
    assert {one["code"] for one in found} == {"ACC101"}
    assert verdict["record"] == "verdict"
    assert verdict["text"].startswith("Found 2 faults in 1 run (")


def test_a_training_that_is_gone_is_not_judged(tmp_path: Path) -> None:
    output = io.StringIO()
    with Words(b"") as parent:
        watch(write_run(tmp_path / "run", [{"total_weight": 4.0}]), parent, output)
    assert output.getvalue() == ""


def test_a_finding_is_said_again_where_it_has_changed() -> None:
    output = io.StringIO()
    teller = Teller(output)
    run, finding = run_with()
    told = [finding, finding, _counting(finding, 2), replace(_counting(finding, 2), withdrawn=True)]
    for one in told:
        teller.tell(run.report, [one], launch=1)
    assert [(line["finding"]["count"], line["withdrawn"]) for line in lines(output)] == [
        (1, False),
        (2, False),
        (2, True),
    ]


def test_what_an_earlier_launch_had_is_said_once_this_one_has_it_too() -> None:
    output = io.StringIO()
    teller = Teller(output)
    run, finding = run_with()
    earlier = _of_launch(finding, 1)
    for one in (earlier, earlier, _counting(earlier, 2)):
        teller.tell(run.report, [one], launch=2)
    assert [line["finding"]["count"] for line in lines(output)] == [2]


def _counting(view: FindingView, count: int) -> FindingView:
    assert view.verdict.finding is not None
    return replace(view, verdict=replace(view.verdict, finding=replace(view.verdict.finding, count=count)))


def _of_launch(view: FindingView, launch: int) -> FindingView:
    finding = view.verdict.finding
    assert finding is not None
    examples = tuple(replace(one, launch=launch) for one in finding.examples)
    return replace(view, verdict=replace(view.verdict, finding=replace(finding, examples=examples)))


def test_a_finding_of_this_launch_is_said_at_once() -> None:
    output = io.StringIO()
    run, finding = run_with()
    Teller(output).tell(run.report, [_of_launch(finding, 2)], launch=2)
    assert [line["code"] for line in lines(output)] == ["ACC101"]
