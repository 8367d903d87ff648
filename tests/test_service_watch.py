"""The loop of the service goes on, whatever its files, its clock, its listeners and its judge do."""

from __future__ import annotations

import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from accumaudit.outputs.tensorboard.live import Live
from accumaudit.service import following, watch
from accumaudit.service.board import Board
from accumaudit.service.judging import judge as judging
from accumaudit.service.judging.judge import Asked, Judge, Judgement
from accumaudit.service.snapshot import FINISHED, RUNNING, SILENT, FindingView, RunView
from accumaudit.service.store import StoreError
from accumaudit.service.watch import Limits
from accumaudit.service.web.app import create_app
from accumaudit.service.web.options import Options
from accumaudit.service.web.reports import Reports
from accumaudit.testing.records import build_run, write_run
from tests.test_writer import file_limit
from tests.watched import Listening, Watched, Writer

pytestmark = pytest.mark.slow  # most of them have a process that judges

HALVED = {"total_weight": 0.5}
ATTEMPTS = [{}, HALVED, {}, {}, {}, HALVED, {}, {}]
DONE = len(ATTEMPTS) + 1
READ = {
    *("record", "launch", "rank", "time", "started_at", "world_size", "recorded_ranks", "recorded_every"),
    *("wrapper", "runtime", "optimizers", "optimizer", "attempt_id", "optimizer_update_id", "microbatches"),
    *("local_valid_tokens", "optimizer_step_skipped", "skip_evidence", "grad_norm_before_clip", "loss"),
    *("grad_norm_after_clip", "valid_tokens", "window_seconds", "learning_rate", "grad_scale"),
    *("pipeline_rank", "pipeline_size", "tensor_rank", "optimizer_state_step_at_attach"),
}
"""Fields that the service itself looks at."""


class Idle(Judge):
    """One that judges nothing."""

    def turn(self, now: float) -> list[Judgement]:
        return [] if now else super().turn(now)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def attempts(watched: Watched, name: str = "run") -> int:
    run = watched.snapshot.run(name)
    return sum(one.attempts for one in run.optimizers) if run else 0


def judged(watched: Watched, name: str = "run") -> int:
    run = watched.snapshot.run(name)
    return (run.judged_through or 0) if run else 0


class TestFiles:
    def test_the_folder_may_go_and_come_back(self, logs: Path, tmp_path: Path) -> None:
        writer = Writer(logs / "run", ATTEMPTS)
        writer.write(3)
        with Watched(logs, tmp_path / "state") as watched:
            watched.until(lambda: judged(watched) == 3)
            logs.rename(tmp_path / "elsewhere")
            watched.until(lambda: watched.snapshot.troubles, "trouble told")
            assert str(logs) in watched.snapshot.troubles[0]
            assert attempts(watched) == 3
            (tmp_path / "elsewhere").rename(logs)
            writer.write(DONE)
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 2, "end of the run")
            assert watched.snapshot.troubles == ()
            assert watched.view().state == FINISHED
            assert watched.view().report.attempts == len(ATTEMPTS)
            assert sorted(watched.listening.attempts) == list(range(1, len(ATTEMPTS) + 1))
            assert sorted(watched.listening.findings) == [
                ("run", finding.code) for finding in sorted(watched.view().findings, key=lambda one: one.code)
            ]

    def test_a_file_may_be_cut_and_replaced(self, logs: Path) -> None:
        writer = Writer(logs / "run", ATTEMPTS)
        writer.write(5)
        first, second = sorted(logs.rglob("*.jsonl"))
        with Watched(logs) as watched:
            watched.until(lambda: judged(watched) == 5)
            first.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:3]))
            copy = second.with_suffix(".new")
            copy.write_bytes(second.read_bytes()[:-20] + b"\n")
            copy.replace(second)
            watched.until(lambda: watched.snapshot.intake.malformed_records == 1, "torn line")
            writer.write(DONE)
            watched.until(lambda: watched.view().state == FINISHED and watched.caught_up(), "end of the run")
            assert attempts(watched) == len(ATTEMPTS)
            assert watched.snapshot.intake.failed_judgements == 0
            assert [one.line for one in watched.view().report.unreadable] == [6]


class TestDisk:
    def test_it_goes_on_without_its_state_and_saves_it_later(self, logs: Path, tmp_path: Path) -> None:
        writer = Writer(logs / "run", ATTEMPTS)
        writer.write(1)
        state = tmp_path / "state"
        judge = Judge(logs, limits=judging.Limits(pause=0.1))
        with Watched(logs, state, judge=judge) as watched:
            watched.until(lambda: judged(watched) == 1)
            writer.write(8)
            with file_limit(state.stat().st_size):
                watched.until(lambda: watched.snapshot.intake.state_write_errors, "write that fails")
                assert "the state cannot be written" in watched.snapshot.troubles[0]
            watched.until(lambda: watched.listening.findings)
            watched.until(lambda: not watched.snapshot.troubles, "state that is saved")
            told = watched.listening.findings
            assert watched.snapshot.intake.state_write_errors > 0
        with Watched(logs, state) as watched:
            writer.write(DONE)
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 2, "end of the run")
            assert attempts(watched) == len(ATTEMPTS)
            assert not {*told} & {*watched.listening.findings}
            assert watched.snapshot.intake.state_write_errors > 0

    def test_it_goes_on_without_the_files_for_tensorboard(self, logs: Path, tmp_path: Path) -> None:
        writer = Writer(logs / "run", ATTEMPTS)
        writer.write(4)
        place = tmp_path / "board"
        place.write_text("no folder")
        with Watched(logs, listeners=[Live(place)]) as watched:
            watched.until(lambda: any(str(place) in one for one in watched.snapshot.troubles), "trouble")
            place.unlink()
            writer.write(DONE)
            watched.until(lambda: place.exists() and not watched.snapshot.troubles, "event files")
            assert attempts(watched) == len(ATTEMPTS)


class TestClock:
    def test_it_may_jump(self, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        start = 1_700_000_000.0
        clock = [start]
        monkeypatch.setattr(time, "time", lambda: clock[-1])
        written = (start, start + 1e8, 1.0, -1e300, 1e300, start, start, start)
        writer = Writer(logs / "run", [{"time": one} for one in written])
        writer.write(1)
        with Watched(logs) as watched:
            watched.until(lambda: judged(watched) == 1)
            for attempt, now in enumerate((start - 1e9, start + 1e9, 0.0, *[start] * 4), 2):
                clock.append(now)
                writer.write(attempt)
                watched.until(lambda attempt=attempt: attempts(watched) == attempt)  # type: ignore[misc]
            writer.write(9)
            watched.until(lambda: watched.view().state == FINISHED and watched.caught_up(), "end of the run")
            assert attempts(watched) == 8
            assert watched.snapshot.intake.internal_errors == 0
            assert watched.snapshot.intake.lag_sum < 24 * 3600 * watched.snapshot.intake.lag_count
            last = watched.view().last_record_time
            assert last is not None
            assert last <= start + 1e9


class Falling(Listening):
    """Raises whatever it is told, a number of times."""

    def __init__(self, error: BaseException, times: int) -> None:
        super().__init__()
        self._error, self.times = error, times

    def found(self, run: RunView, finding: FindingView) -> None:
        if self.times:
            self.times -= 1
            raise self._error
        super().found(run, finding)


def falls(*_: object) -> None:
    raise ValueError("fell")


class Stumbling(Idle):
    """Raises in turn whatever is given."""

    errors: list[Exception]

    def turn(self, now: float) -> list[Judgement]:
        if self.errors:
            raise self.errors.pop()
        return super().turn(now)


class TestErrors:
    def test_what_raises_is_told_and_the_loop_goes_on(
        self, logs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = Writer(logs / "run", ATTEMPTS)
        judge = Stumbling(logs)
        judge.errors = [OSError(28, "No space left on device"), KeyError("x"), MemoryError()]
        with Watched(logs, judge=judge) as watched:
            for attempt in range(1, 4):
                writer.write(attempt)
                watched.watch.turn()
                assert attempts(watched) == attempt
                assert watched.snapshot.intake.internal_errors == attempt
            assert len(watched.snapshot.troubles) == 1
            told = "judging failed (OSError: [Errno 28] No space left on device)"
            assert told in watched.snapshot.troubles[0]
            monkeypatch.setattr(judge, "take", falls)
            writer.write(4)
            watched.watch.turn()
            assert "keeping records to be judged failed (ValueError" in watched.snapshot.troubles[-1]
            assert attempts(watched) == 4
            monkeypatch.setattr(judge, "keep_from", falls)
            watched.watch.turn()
            assert watched.snapshot.run("run") is not None

    def test_whoever_asks_while_runs_change_is_answered(self, logs: Path) -> None:
        writer = Writer(logs / "run", [{}] * 40)
        with Watched(logs, judge=Idle(logs)) as watched, ThreadPoolExecutor(2) as others:
            writer.write(1)
            watched.watch.turn()
            asked = [others.submit(shown, watched.board) for _ in range(10)]
            for attempt in range(2, 41):
                writer.write(attempt)
                watched.watch.turn()
            answers = [one.result() for one in asked]
            assert all("accumaudit_attempts_total" in answer for answer in answers)
            assert attempts(watched) == 40

    def test_a_listener_that_raises_keeps_nothing_from_the_others(self, logs: Path) -> None:
        Writer(logs / "run", ATTEMPTS).write(DONE)
        falling = Falling(BrokenPipeError(32, "Broken pipe"), times=1)
        with Watched(logs, listeners=[falling]) as watched:
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 2, "end of the run")
            watched.watch.turn()
            assert ("run", "ACC104") in watched.listening.findings
            assert len(falling.findings) == len(watched.listening.findings) - 1
            assert watched.snapshot.troubles == (
                "telling Falling failed (BrokenPipeError: [Errno 32] Broken pipe)",
            )

    def test_what_cannot_be_judged_is_told_in_a_sentence(self, logs: Path) -> None:
        class Sorry(Idle):
            @property
            def troubles(self) -> dict[str, str]:
                return {f"run {number:02d}": f"run {number:02d}: not judged" for number in range(50)}

        with Watched(logs, judge=Sorry(logs)) as watched:
            watched.watch.turn()
            assert watched.snapshot.troubles[0] == "run 00: not judged"
            assert len(watched.snapshot.troubles) == watch.TROUBLES


class TestRestart:
    def test_a_finding_that_was_saved_and_not_told_is_told_by_the_next(
        self, logs: Path, tmp_path: Path
    ) -> None:
        Writer(logs / "run", ATTEMPTS).write(DONE)
        falling = Falling(KeyboardInterrupt(), times=1)
        with Watched(logs, tmp_path / "state", listeners=[falling]) as watched:
            with pytest.raises(KeyboardInterrupt):
                watched.until(lambda: False)
            assert falling.findings == watched.listening.findings == []
            found = [("run", one.code) for one in watched.view().findings]
        falling.waiting = found[:1]
        with Watched(logs, tmp_path / "state", listeners=[falling]) as watched:
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 2, "end of the run")
            assert sorted(watched.listening.findings) == sorted(falling.findings) == sorted(found)
        falling.findings.clear()
        with Watched(logs, tmp_path / "state", listeners=[falling]) as watched:
            for _ in range(3):
                watched.watch.turn()
            assert watched.listening.findings == []
            assert falling.findings == found[:1]

    def test_what_ended_stays_ended_and_is_forgotten_in_time(
        self, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_run(logs / "done", 3)
        write_run(logs / "open", 3, close=False)
        monkeypatch.setattr("accumaudit.service.counters.SILENCE", -1.0)
        monkeypatch.setattr("accumaudit.service.runs.SILENCE", -1.0)
        with Watched(logs, tmp_path / "state") as watched:
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 4, "ends of the runs")
            watched.stop()
        monkeypatch.undo()
        limits = Limits(retain_ended=0.0)
        with Watched(logs, tmp_path / "state", judge=Idle(logs)) as watched:
            watched.watch.turn()
            assert {run.run_id: run.state for run in watched.snapshot.runs} == {
                "done": FINISHED,
                "open": SILENT,
            }
            assert [len(run.ranks) for run in watched.snapshot.runs] == [2, 2]
        with Watched(logs, tmp_path / "state", limits, judge=Idle(logs)) as watched:
            watched.watch.turn()
            watched.watch.turn()
            assert len(watched.snapshot.runs) == 2  # their ends may be still to be judged
        with Watched(logs, tmp_path / "state", limits) as watched:
            watched.watch.turn()
            watched.watch.turn()
            assert watched.snapshot.runs == ()
            watched.stop()
        with Watched(logs, tmp_path / "state", judge=Idle(logs)) as watched:
            watched.watch.turn()
            assert watched.snapshot.runs == ()
            assert watched.snapshot.intake.records == 18

    def test_a_state_that_cannot_be_used_is_refused_with_advice(self, logs: Path, tmp_path: Path) -> None:
        state = tmp_path / "state"
        write_run(logs / "run", 3)
        with Watched(logs, state, judge=Idle(logs)) as watched:
            watched.watch.turn()
            watched.stop()
        connection = sqlite3.connect(state)
        connection.execute("UPDATE kept SET value = '{}' WHERE kind = 'runs'")
        connection.commit()
        connection.close()
        with pytest.raises(StoreError, match=r"KeyError.*move the file away to begin anew"):
            Watched(logs, state, judge=Idle(logs))


class TestGarbage:
    """Lines that nobody meant to write."""

    LINES = (
        b"\xff\xfe\x00garbage",
        b"[" * 100_000,
        b'{"record": "update", "launch": "aaaa", "rank": 0, "attempt_id": ' + b"9" * 5_000 + b"}",
        b'{"record": ["update"], "launch": {}}',
        b'"a"' * 10,
        b'{"record": "update", "launch": "' + b"x" * 999 + b'", "rank": 0, "optimizer": 0, "attempt_id": 1}',
        b"x" * (17 << 20),
    )
    WRONG: tuple[Any, ...] = (
        *(None, True, -1, 2**53, 2**63, 1e308, -1e308, "NaN", "x" * 10_000),
        *([], [[]], {}, {"a": [1]}, "\ud800"),
    )

    def test_every_field_may_hold_anything(self, logs: Path, tmp_path: Path) -> None:
        records = build_run([{}, {}], 1)[0]
        lines = list(self.LINES)
        for record in records:
            lines += [
                json.dumps(record | {field: wrong}).encode()
                for field in record
                if field != "schema"  # a later one is refused
                for wrong in (self.WRONG if field in READ else self.WRONG[:4])
            ]
        lines += [
            json.dumps(records[1] | {"optimizer": one, "rank": 10**15 + one, "attempt_id": one}).encode()
            for one in range(10_000)
        ]
        write_run(logs / "run", ATTEMPTS)
        file = logs / "run" / "rank-00" / "00007.aaaa.jsonl"
        file.write_bytes(b"\n".join(lines) + b"\n")
        with Watched(logs, tmp_path / "state") as watched:
            watched.until(watched.caught_up, "judgement")
            watched.watch.turn()
            intake = watched.snapshot.intake
            assert intake.internal_errors == 0
            assert len(self.LINES) < intake.malformed_records < len(lines) - 10_000
            assert len(watched.view().optimizers) <= 64
            assert shown(watched.board)
            watched.stop()
            assert watched.snapshot.troubles == ()
        with Watched(logs, tmp_path / "state", judge=Idle(logs)) as watched:
            watched.watch.turn()
            assert watched.snapshot.intake.records == intake.records
            assert watched.view().optimizers[0].microbatches > 0


def shown(board: Board) -> str:
    """What everybody asks for."""
    client = TestClient(create_app(board, Options(), Reports(Asked())), base_url="http://localhost")
    paths = ("/", "/runs/run", "/metrics", "/metrics/ranks?run=run", "/api/runs")
    answers = [client.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    return "".join(answer.text for answer in answers)


class TestRuns:
    def test_a_new_run_takes_the_place_of_one_that_ended_long_ago(self, logs: Path, tmp_path: Path) -> None:
        for day, name in enumerate(("c", "a", "b")):
            write_run(logs / name, [{"time": 1_700_000_000.0 + 86_400 * day}] * 2)
        limits = Limits(runs=2)
        with Watched(logs, tmp_path / "state", limits, judge=Idle(logs)) as watched:
            watched.watch.turn()
            assert [run.run_id for run in watched.snapshot.runs] == ["b", "c"]
            write_run(logs / "d", 2, close=False)
            write_run(logs / "e", 2, close=False)
            watched.until(lambda: watched.snapshot.run("e"), "run that was found")
            assert [run.run_id for run in watched.snapshot.runs] == ["d", "e"]
            assert watched.snapshot.intake.runs_left_out == 0
            write_run(logs / "f", 2, close=False)
            watched.until(lambda: watched.snapshot.intake.runs_left_out, "run that is left out")
            assert [run.run_id for run in watched.snapshot.runs] == ["d", "e"]

    def test_one_that_was_left_out_is_read_whole_when_there_is_room(self, logs: Path) -> None:
        open_runs = Writer(logs / "a", [{}] * 3), Writer(logs / "b", [{}] * 3)
        for one in open_runs:
            one.write(1)
        quick = following.Limits(rest_look=0.0, search_every=0.1)
        with Watched(logs, limits=Limits(runs=1, following=quick), judge=Idle(logs)) as watched:
            watched.watch.turn()
            assert [run.run_id for run in watched.snapshot.runs] == ["a"]
            open_runs[1].write(2)
            watched.watch.turn()
            assert watched.snapshot.intake.runs_left_out == 1
            open_runs[0].write(4)
            watched.until(lambda: watched.view("a").state == FINISHED, "end of the first")
            open_runs[1].write(3)
            watched.until(lambda: watched.snapshot.intake.runs_left_out == 0, "room")
            open_runs[1].write(4)
            watched.until(lambda: watched.snapshot.run("b"), "run that was left out")
            watched.watch.turn()
            assert attempts(watched, "b") == 3
            assert watched.view("b").launches == 1
            assert watched.view("b").optimizers[0].microbatches == 24

    def test_an_earlier_run_that_falls_silent_does_not_end_the_one_that_follows_it(
        self, logs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_run(logs / "run", 2, launch="a", close=False)
        finished: list[str] = []
        judge = Idle(logs)
        monkeypatch.setattr(judge, "finish", finished.append)
        with Watched(logs, judge=judge) as watched:
            watched.watch.turn()
            write_run(logs / "run", 2, launch="b", close=False, started_at=1_700_090_000.0)
            watched.until(lambda: watched.snapshot.run("run#2"), "second run")
            watched.watch._runs["run"].heard_at = -1e9
            watched.watch.turn()
            assert {run.run_id: run.state for run in watched.snapshot.runs} == {
                "run": SILENT,
                "run#2": RUNNING,
            }
            assert finished == []
            watched.watch._runs["run#2"].heard_at = -1e9
            watched.watch.turn()
            assert finished == ["run#2"]

    def test_a_folder_with_a_number_behind_its_name_is_judged_at_its_end(self, logs: Path) -> None:
        write_run(logs / "run#2", 3)
        with Watched(logs) as watched:
            watched.until(lambda: watched.snapshot.intake.files_at_rest == 2, "end of the run")
            assert watched.view("run#2").report.verdicts

    def test_before_it_was_judged_a_run_says_what_was_counted(self, logs: Path) -> None:
        write_run(logs / "run", 3)
        with Watched(logs, judge=Idle(logs)) as watched:
            watched.watch.turn()
            report = watched.view().report
            assert (report.path, report.attempts, report.ranks) == (str(logs / "run"), 3, (0, 1))
            assert report.verdicts == ()
