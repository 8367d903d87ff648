"""`python -m accumaudit.service.watcher RUN`: judges a run beside its training, which has started it.

It follows the run's folder while the ranks write, and says each finding of this launch on stdout, a line of
JSON each time that the finding changes. "close" on stdin asks for the judgement of all that was written, and
for the verdict; the end of stdin without it is the end of the training, and of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from accumaudit.engine.findings import FAILED, AuditReport, Finding
from accumaudit.outputs.words import footer, printable
from accumaudit.service import following
from accumaudit.service.folders import in_order
from accumaudit.service.judging import judge
from accumaudit.service.runs import Runs
from accumaudit.service.snapshot import RUNNING, FindingView
from accumaudit.service.telling import told

if TYPE_CHECKING:
    from accumaudit.engine.findings import RunReport

BEAT: Final = 1.0
"""Seconds from one look at the run to the next."""
LAST_BEAT: Final = 0.1
"""The same while the training waits."""
SHARE: Final = 0.2
"""Of a core that judging takes from the training's machine, at most."""
PATIENCE: Final = 10.0
"""Seconds that other ranks may write their last records later."""
TIMEOUT: Final = 50.0
"""Seconds that the last judgement may take with all this."""

HERE: Final = "."
"""The folder itself, among those below it."""
RUNS: Final = 1_000
"""That may have begun in one folder."""


def main(arguments: list[str] | None = None) -> int:
    """Watch a run until its training ends; always successful, because the training has started it."""
    parser = argparse.ArgumentParser(prog="python -m accumaudit.service.watcher", description=__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    run: Path = parser.parse_args(arguments).run
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the training is to end first
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(BrokenPipeError), open(0, "rb", buffering=0) as stdin:
        watch(run, Parent(stdin), sys.stdout)
    return 0


class Parent:
    """The training process at the other end of the pipes."""

    def __init__(self, stdin: IO[bytes]) -> None:
        self._stdin = stdin
        self._pid = os.getppid()
        self._text = b""
        self._hangs_up = False
        self.closes = False
        """It has written its last record and waits for the verdict."""
        self.is_gone = False

    def wait(self, seconds: float) -> None:
        """Wait for a word of it, or for its end."""
        if self._hangs_up:
            time.sleep(seconds)
        elif select.select([self._stdin], [], [], seconds)[0]:
            data = os.read(self._stdin.fileno(), 4096)
            self._text = (self._text + data)[-64:]
            self._hangs_up = not data
            self.closes = self.closes or b"close\n" in self._text
        # A fork of it may hold the other end of the pipe open.
        self.is_gone = (self._hangs_up and not self.closes) or os.getppid() != self._pid


class Teller:
    """Says what has been found in the launch that runs now, each time that it changes."""

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._counts: dict[tuple[str, str], int] = {}
        """Of findings that earlier launches had, when they were first seen."""
        self._said: dict[tuple[str, str], tuple[Finding | None, bool]] = {}

    def tell(self, report: RunReport, findings: Iterable[FindingView], launch: int) -> None:
        """Say what is new of a run, in which this is the number of the launch that runs now."""
        for view in findings:
            place = report.run_id, view.code
            now = view.verdict.finding, view.withdrawn
            if self._said.get(place) != now and (place in self._said or self._is_of_now(place, view, launch)):
                self._said[place] = now
                self.say(told(report, view))

    def say(self, line: str) -> None:
        """Say a line."""
        self._output.write(line + "\n")
        self._output.flush()

    def _is_of_now(self, place: tuple[str, str], view: FindingView, launch: int) -> bool:
        """Whether the launch that runs now has this fault, which one before may have had too."""
        finding = view.verdict.finding
        assert finding is not None
        launches = [one.launch for one in finding.examples if one.launch is not None]
        if not launches or max(launches) >= launch:
            return True
        return finding.count > self._counts.setdefault(place, finding.count)


class Watched:
    """One run: its records, and what the rules say of them."""

    def __init__(self, folder: Path) -> None:
        self._follower = following.Follower(folder, limits=following.Limits(slowest_look=BEAT))
        self._judge = judge.Judge(folder, limits=judge.Limits(share=SHARE))
        self._runs = Runs(folder.resolve().name or "run", RUNS)
        """Another begins where a launch in the same folder starts over."""

    def turn(self) -> list[judge.Judgement]:
        """Read what is new, and give what has been judged meanwhile."""
        for chunk in in_order(self._follower.turn()):
            if chunk.run == HERE:
                self._judge.take(chunk)
                for _ in self._runs.take(chunk, time.monotonic()):
                    pass
        return self._judge.turn(time.time())

    def launch(self, run: str) -> int:
        """The number of the newest launch of a run."""
        return self._runs[run].launches if run in self._runs else 1

    @property
    def newest(self) -> str | None:
        """The name of the run that began last."""
        return next(reversed(list(self._runs)), None)

    @property
    def is_written(self) -> bool:
        """Whether each rank of the newest launch has written its last record."""
        newest = self.newest
        if newest is not None:
            self._runs[newest].settle(time.monotonic())
        return newest is not None and self._runs[newest].state != RUNNING

    def finish(self) -> None:
        """Have the whole record judged."""
        self._judge.finish(HERE)

    def close(self) -> None:
        """End what judges."""
        self._judge.close()


def watch(folder: Path, parent: Parent, output: IO[str]) -> None:
    """Judge the run again and again until the training has ended, and then a last time."""
    teller = Teller(output)
    reports: dict[str, RunReport] = {}
    with contextlib.closing(Watched(folder)) as watched:
        for judgement in _judgements(watched, parent):
            reports[judgement.run] = judgement.report
            teller.tell(judgement.report, judgement.findings, watched.launch(judgement.run))
            if judgement.final and judgement.run == watched.newest:
                text = _verdict(folder, AuditReport(runs=tuple(reports.values())))
                teller.say(json.dumps({"record": "verdict", "text": text}))
                return


def _judgements(watched: Watched, parent: Parent) -> Iterator[judge.Judgement]:
    """What is judged while the training runs, and at its end."""
    while not parent.closes and not parent.is_gone:
        yield from watched.turn()
        parent.wait(BEAT)
    began, finished = time.monotonic(), False
    while not parent.is_gone and time.monotonic() - began < TIMEOUT:
        yield from watched.turn()
        if not finished and (watched.is_written or time.monotonic() - began > PATIENCE):
            watched.finish()
            finished = True
        parent.wait(LAST_BEAT)


def _verdict(folder: Path, report: AuditReport) -> str:
    failed = any(run.with_status(FAILED) for run in report.runs)
    more = f" `accumaudit check {folder}` says more." if failed else ""
    return printable(footer(report) + more)


if __name__ == "__main__":
    sys.exit(main())
