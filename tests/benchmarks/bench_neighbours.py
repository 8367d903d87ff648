"""The same loop under other tools that watch a training, in the same run, where they are installed.

None of them is needed by this project: `pip install torch-audit trainscope traincheck` into an
environment of its own, and run this file with its Python. They look for other faults than this one does.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import accumaudit
from accumaudit import Audit
from tests.benchmarks.tiny_gpt import TinyGpt, cpu_time, micro_batches, spread, train

ROUNDS = 7
UPDATES = 10
ACCUMULATION = 4
TIMEOUT = 900.0
"""Seconds for each of TrainCheck's commands."""

Parts = tuple[nn.Module, torch.optim.Optimizer, list[Tensor]]


def parts() -> Parts:
    """A fresh loop: some tools patch what they are given."""
    torch.manual_seed(0)
    model = TinyGpt()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), micro_batches(ACCUMULATION, 1)


def bare() -> float:
    """Seconds an update."""
    return cpu_time(*parts(), UPDATES, Audit(None))


def with_accumaudit() -> float:
    """Everything on."""
    model, optimizer, data = parts()
    with (
        tempfile.TemporaryDirectory() as folder,
        accumaudit.attach(model, optimizer, log_dir=folder, accumulation_steps=4, summary=False) as audit,
    ):
        return cpu_time(model, optimizer, data, UPDATES, audit)


def with_torch_audit() -> float:
    """Its patching mode, at every step."""
    torch_audit: Any = __import__("torch_audit")
    model, optimizer, data = parts()
    auditor = torch_audit.autopatch(model, optimizer=optimizer, every_n_steps=1, fail_level="FATAL")
    try:
        return cpu_time(model, optimizer, data, UPDATES, Audit(None))
    finally:
        auditor.unpatch()


def with_trainscope() -> float:
    """Its default configuration, told of every update before the step; reading the loss is not its cost."""
    trainscope: Any = __import__("trainscope.core.config")
    model, optimizer, data = parts()
    with tempfile.TemporaryDirectory() as folder:
        config = trainscope.core.config.TrainScopeConfig(run_dir=folder)
        scope = trainscope.TrainScope(model, optimizer, config=config).attach()
        handle = optimizer.register_step_pre_hook(lambda *_: scope.step(1.0))
        try:
            return cpu_time(model, optimizer, data, UPDATES, Audit(None))
        finally:
            handle.remove()
            scope.detach()


IN_PROCESS: dict[str, Callable[[], float]] = {
    "torch_audit": with_torch_audit,
    "trainscope": with_trainscope,
}

SCRIPT = """
import os, statistics, time
import torch
from tests.benchmarks.tiny_gpt import TinyGpt, micro_batches, train
torch.set_num_threads(1)
torch.manual_seed(0)
model = TinyGpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = micro_batches(4, 1)
train(model, optimizer, data, 2)
times = []
for _ in range(0 if "REFERENCE" in os.environ else 5):
    begin = time.process_time()
    train(model, optimizer, data, 2)
    times.append((time.process_time() - begin) / 2)
if times:
    print("SECONDS", statistics.median(times))
"""


def seconds_of(command: list[str], folder: Path, **more: str) -> float | None:
    """Run a command in a folder; the time that the script printed, if it did."""
    checkout = str(Path(__file__).resolve().parent.parent.parent)
    environment = {**os.environ, **more, "PYTHONPATH": checkout, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    found = re.search(r"SECONDS ([0-9.e-]+)", done.stdout + done.stderr)
    return float(found.group(1)) if found else None


def with_traincheck() -> None:
    """Its selective mode: only what the invariants of a reference run need."""
    tools = Path(sys.executable).parent
    collect = [str(tools / "traincheck-collect"), "--pyscript", "loop.py", "--models-to-track", "model"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.py").write_text(SCRIPT)
        seconds_of([*collect, "--output-dir", "reference"], folder, REFERENCE="1")
        seconds_of([str(tools / "traincheck-infer"), "-f", "reference", "-o", "found.json"], folder)
        plain = seconds_of([sys.executable, "loop.py"], folder)
        traced = seconds_of([*collect, "--invariants", "found.json", "--output-dir", "target"], folder)
    if plain is None or traced is None:
        print("traincheck: it did not run the loop")
    else:
        print(f"traincheck, selective: ratio {traced / plain:.3f}")


def main() -> None:
    """Ratios against the bare loop, in turns."""
    torch.set_num_threads(1)
    train(*parts(), 3)
    ways = {"accumaudit": with_accumaudit}
    for name, way in IN_PROCESS.items():
        if find_spec(name) is None:
            print(f"{name} is not installed: not measured")
        else:
            ways[name] = way
    times: dict[str, list[float]] = {name: [] for name in ("bare", *ways)}
    for _ in range(ROUNDS):
        times["bare"].append(bare())
        for name, way in ways.items():
            times[name].append(way())
    print(f"bare: {1e3 * statistics.median(times['bare']):.1f} ms an update")
    for name in ways:
        print(f"{name}: ratio {spread([b / a for a, b in zip(times['bare'], times[name], strict=True)])}")
    if find_spec("traincheck") is None:
        print("traincheck is not installed: not measured")
        return
    try:
        with_traincheck()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"traincheck: not measured ({error})")


if __name__ == "__main__":
    main()
