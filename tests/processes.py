"""Gloo processes that stay alive for a whole test session and run one function after another.

`Pair().call("module:function", name=value)` runs the function on both ranks, inside one process
group, and returns what it gave on each. Run as a module, this file is one of the processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import torch

from accumaudit.demo.launching import process_group, rank_environment

CHECKOUT: Final = Path(__file__).resolve().parent.parent


class PairError(Exception):
    """A function that raised on a rank, a process that died, or no answer in time."""


class Processes:
    """Some processes; started at the first call, and started anew after a failure."""

    def __init__(self, ranks: int) -> None:
        self._ranks = range(ranks)
        self._processes: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._answers: queue.Queue[tuple[int, str]] = queue.Queue()

    def call(self, function: str, *, timeout: float = 60.0, **arguments: Any) -> list[Any]:
        """Run `module:function` on every rank; what it returns must fit JSON."""
        if not self._processes:
            self._start()
        request = json.dumps({"function": function, "arguments": arguments})
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(request + "\n")
                process.stdin.flush()
            return self._collect(function, time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes: let them leave by themselves, and kill what has not left in a second."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
            process.kill()
            process.wait()
        self._processes = []
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self) -> None:
        self._answers = queue.Queue()
        self._folder = tempfile.TemporaryDirectory()
        for rank in self._ranks:
            with self._errors_of(rank).open("w") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.processes"],
                    cwd=CHECKOUT,
                    env=os.environ
                    | rank_environment(rank, len(self._ranks), Path(self._folder.name, "meeting")),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            arguments = (rank, process.stdout, self._answers)
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
            self._processes.append(process)

    def _errors_of(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, f"rank-{rank}.txt")

    def _collect(self, function: str, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < len(self._ranks):
            try:
                rank, line = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(self._ranks) - set(results))
                raise PairError(f"{function}: no answer in time from rank {missing}") from None
            died = f"the process died\n{self._errors_of(rank).read_text()[-4000:]}"
            answer = json.loads(line) if line else {"error": died}
            if "error" in answer:
                raise PairError(f"{function} on rank {rank}: {answer['error']}")
            results[rank] = answer["result"]
        return [results[rank] for rank in self._ranks]


class Pair(Processes):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__(2)


def _forward(rank: int, stream: IO[str], answers: queue.Queue[tuple[int, str]]) -> None:
    """Put each line of a process into the queue, and an empty one when it has ended."""
    with stream:
        for line in stream:
            answers.put((rank, line))
    answers.put((rank, ""))


def has_ended(pid: int) -> bool:
    """Whether a process is no more, or is only waited for by whoever has adopted it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def resolve(function: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def serve() -> None:
    """Answer requests until the other side closes its end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a function prints is no answer.
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    with process_group():
        for line in sys.stdin:
            request = json.loads(line)
            environment = dict(os.environ)
            try:
                answer = {"result": resolve(request["function"])(**request["arguments"])}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.environ.clear()
            os.environ.update(environment)  # Lightning takes WORLD_SIZE with it
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve()
    sys.stderr.flush()
    # gloo's threads now and then abort a process that ends in the ordinary way.
    os._exit(0)
