"""The action for GitHub and the hook for pre-commit: what they would run is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from accumaudit.cli.check import command
from tests.records import write_run

ROOT = Path(__file__).resolve().parent.parent

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture
def action() -> Any:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def hook() -> Any:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return hook


def audit_step(action: Any) -> Any:
    (step,) = (step for step in action["runs"]["steps"] if step["name"] == "Audit")
    return step


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with the command `accumaudit`, as an environment has it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "accumaudit"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m accumaudit "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder


def run_step(action: Any, commands: Path, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the step as a workflow does: the script in bash, the inputs as variables."""
    step = audit_step(action)
    values = {name: one.get("default", "") for name, one in action["inputs"].items()} | inputs
    variables = {
        name: values[re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", text)[1]]  # type: ignore[index]  # else it fails
        for name, text in step["env"].items()
    }
    environment = os.environ | variables | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@bash
def test_the_action_marks_faults_and_fails_the_step(action: Any, commands: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "right", 3)
    write_run(tmp_path / "runs" / "two words", [{"total_weight": 2.0}] * 3)
    done = run_step(
        action,
        commands,
        tmp_path,
        paths="  runs/right\nruns/two words\n",
        args="--select=ACC104\n",
        sarif="a b.sarif",
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=runs/two words/rank-00/")
    assert "ACC104 wrong-total-weight" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert '"ruleId": "ACC104"' in (tmp_path / "a b.sarif").read_text(encoding="utf-8")


@bash
def test_the_action_passes_where_nothing_is_found(action: Any, commands: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "right", 3)
    done = run_step(action, commands, tmp_path, paths="runs")
    assert (done.returncode, done.stderr) == (0, "")


@bash
def test_the_action_ends_as_the_audit_does_where_it_cannot_read(
    action: Any, commands: Path, tmp_path: Path
) -> None:
    done = run_step(action, commands, tmp_path, paths="runs", sarif="report.sarif")
    assert done.returncode == 2
    assert "runs: no such file or folder" in done.stderr


@bash
def test_nothing_in_an_input_is_read_as_code(action: Any, commands: Path, tmp_path: Path) -> None:
    done = run_step(
        action, commands, tmp_path, paths="$(touch ran); `touch ran`", args="--select=$(touch ran)"
    )
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_the_action_explains_its_inputs(action: Any) -> None:
    assert action["runs"]["using"] == "composite"
    assert all(one["description"] for one in action["inputs"].values())
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])


@pytest.mark.parametrize(
    ("path", "audited"),
    [
        ("runs/first/rank-00/00000.5d1f0c2a.jsonl", True),
        ("rank-12/12345.job-7.0.jsonl", True),
        ("out/checkpoint-500/trainer_state.json", True),
        ("data/train.jsonl", False),
        ("src/trainer_state.json.py", False),
    ],
)
def test_the_hook_takes_the_files_that_are_logs(hook: Any, path: str, audited: bool) -> None:
    assert bool(re.search(hook["files"], path)) is audited


def test_the_hook_takes_the_files_that_the_recorder_writes(hook: Any, tmp_path: Path) -> None:
    for file in write_run(tmp_path / "run", 1).rglob("*.jsonl"):
        assert re.search(hook["files"], file.relative_to(tmp_path).as_posix())


def test_the_hook_runs_the_command(hook: Any) -> None:
    name, verb = hook["entry"].split()
    assert (name, verb, hook["language"]) == ("accumaudit", command.name, "python")
