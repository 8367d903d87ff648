"""Running a scenario: in this process, or in several that meet on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from accumaudit.demo.faults import FAULTS
from accumaudit.demo.scenario import Scenario
from accumaudit.demo.variants import VARIANTS
from accumaudit.nearest import nearest

MEETING = "ACCUMAUDIT_DEMO_MEETING"
"""The variable that names the file in which the ranks meet; without it they meet as torchrun says."""

PATIENCE = 180.0
"""Seconds that a training of several ranks may take; it needs some ten."""


class LaunchError(Exception):
    """A training that did not end well."""


def scenario(name: str) -> Scenario:
    """The fault or variant of this name, or the fault that breaks the rule of this code."""
    by_code = {fault.code: fault for fault in FAULTS.values()}
    found = FAULTS.get(name) or by_code.get(name.upper()) or VARIANTS.get(name)
    if found is None:
        near = nearest(name.upper(), filter(None, by_code)) or nearest(name, (*FAULTS, *VARIANTS))
        hint = near or "; accumaudit demo --list shows all"
        raise LaunchError(f"there is no demo named {name!r}{hint}")
    return found


def able_ranks(training: Scenario, ranks: int | None) -> int:
    """The number of ranks to train on: what was asked for, where the training is able to."""
    if ranks is None:
        return training.ranks[0]
    if ranks not in training.ranks:
        able = " or ".join(map(str, training.ranks))
        raise LaunchError(f"{training.name} needs {able} ranks, not {ranks}: use --ranks {training.ranks[0]}")
    return ranks


def launch(training: Scenario, log_dir: Path, ranks: int) -> None:
    """Train on so many ranks; the ledger is in log_dir when this returns."""
    for number in range(training.launches):
        if ranks == 1:
            training.loop(training.settings, log_dir).train()
        else:
            launch_processes(training.name, log_dir, ranks, restart=number)


def launch_processes(name: str, log_dir: Path, ranks: int, *, restart: int = 0) -> None:
    """Start a process for each rank, wait for all of them, and leave none behind."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"rank-{rank}.txt") for rank in range(ranks)]
        try:
            for rank, output in enumerate(outputs):
                environment = os.environ | rank_environment(rank, ranks, Path(folder, "meeting"), restart)
                command = [sys.executable, "-m", "accumaudit.demo", name, str(log_dir)]
                with output.open("wb") as file:
                    processes.append(
                        subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
                    )
            failed = wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            text = outputs[failed].read_text(errors="replace")
            raise LaunchError(f"rank {failed} of {name} failed:\n{text[-4000:]}")


def rank_environment(rank: int, ranks: int, meeting: Path, restart: int = 0) -> dict[str, str]:
    """What torchrun would tell a rank, except that the ranks meet in a file: no port has to be free."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        MEETING: meeting.absolute().as_uri(),
        "TORCHELASTIC_RUN_ID": f"demo-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def wait(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """The first rank that failed, or None where all ended well; bounded by PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        running = [rank for rank, code in enumerate(codes) if code is None]
        if failed or not running:
            return failed[0] if failed else None
        if time.monotonic() > deadline:
            return running[0]
        time.sleep(0.02)


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """The group that the environment describes; nothing where it describes a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    use_loopback()
    dist.init_process_group(
        "gloo",
        init_method=os.environ.get(MEETING, "env://"),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def use_loopback() -> None:
    """Let gloo meet on the loopback interface: a host's name need not lead anywhere."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def run_rank(name: str, log_dir: Path) -> None:
    """Train one rank in this process."""
    torch.set_num_threads(1)
    training = scenario(name)
    with process_group():
        training.loop(training.settings, log_dir).train()
