"""One run under the real launcher: its token, its two files, and what rank 0 says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def end(launcher: subprocess.Popen[str]) -> None:
    """Stop a launcher that still runs; asked to, it ends its ranks, which are in sessions of their own."""
    if launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.wait(60)
        except subprocess.TimeoutExpired:
            launcher.kill()


@pytest.mark.slow
def test_a_run_under_torchrun_says_its_line_and_its_verdict(tmp_path: Path) -> None:
    """Both ranks agree on the elastic launch; rank 0 speaks after three windows and at the end."""
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launcher, "-m", "tests.torchrun_training", str(run)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        _, said = process.communicate(timeout=180)
    finally:
        end(process)
    assert process.returncode == 0, said
    lines = [line for line in said.splitlines() if line.startswith("accumaudit:")]
    assert lines == [
        "accumaudit: 3 updates judged: T 1.000, tokens weigh 1.00 to 1.00, sync ok, schedule not checked",
        lines[-1],
    ]
    assert lines[-1].startswith("accumaudit: Found no fault in 1 run")
    heads = [json.loads(path.read_text().splitlines()[0]) for path in sorted(run.glob("rank-00/*.jsonl"))]
    assert [head["rank"] for head in heads] == [0, 1]
    assert len({head["launch"] for head in heads}) == 1
    assert heads[0]["launch"].endswith("-0")
