"""What the service counts from the lines of runs is what the tables of a `check` say of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.service.folders import in_order
from accumaudit.service.judging.windows import Window
from accumaudit.service.lines import Chunk, Line
from accumaudit.service.runs import Run, Runs
from accumaudit.service.snapshot import BROKEN_OFF, FINISHED, RUNNING, SILENT, RunView, Snapshot
from accumaudit.service.whole import snapshot_of
from accumaudit.testing.records import write_run

Updates = list[dict[str, Any]]
LATER: dict[str, Any] = {"started_at": 1_700_090_000.0}
RESUMED: dict[str, Any] = {
    "optimizer_state_step_at_attach": 3,
    "scheduler_step_at_attach": 3,
    "resumed_from_update": 3,
}


def chunks(folder: Path, *, again: bool = False) -> list[Chunk]:
    """All files below a folder, each as one chunk."""
    found = []
    for file in sorted(folder.rglob("*.jsonl")):
        lines = (Line(number, text) for number, text in enumerate(file.read_bytes().splitlines(), 1))
        run = file.parent.parent.relative_to(folder).as_posix()
        name = file.relative_to(folder).as_posix()
        found.append(Chunk(run=run, file=name, lines=tuple(lines), again=again))
    return found


def counted(folder: Path, limit: int = 100) -> Runs:
    runs = Runs("logs", limit)
    for chunk in in_order(chunks(folder)):
        list(runs.take(chunk, 0.0))
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of many kinds."""
    folder = tmp_path_factory.mktemp("logs")
    skips: Updates = [{}, {"skipped": True}, {"grad_norm_after_clip": "NaN"}, {"skipped": True}, {}]
    write_run(folder / "skips", skips, ranks=3)
    write_run(folder / "sparse", 12, every=4)
    write_run(folder / "open", 5, close=False)
    write_run(folder / "resumed", 3, launch="a", close=False)
    write_run(folder / "resumed", 4, launch="b", first_update=4, **LATER, **RESUMED)
    write_run(folder / "anew", 3, launch="a")
    write_run(folder / "anew", 2, launch="b", **LATER)
    write_run(folder / "attached-first", 5, launch="z", close=False)
    write_run(folder / "attached-first", 4, launch="b", first_update=6, **LATER)
    write_run(folder / "same-token", 3, launch="a", close=False)
    write_run(folder / "same-token", 4, launch="a", first_update=4, **LATER, **RESUMED)
    return folder


@pytest.fixture(scope="module")
def checked(folder: Path) -> Snapshot:
    """What `check` knows of them."""
    with read_ledger([folder]) as ledger:
        return snapshot_of(ledger, audit(ledger, load_rules(), select=["ACC801"]), 0.0)


NAMES = ("skips", "sparse", "open", "resumed", "anew", "anew#2", "attached-first", "same-token")


def facts(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "attempts": one.attempts,
            "updates": one.updates,
            "skipped": sum(one.skipped.values()),
            "overflow": one.skipped["overflow"],
            "microbatches": one.microbatches,
            "valid_tokens": pytest.approx(one.valid_tokens),
            "nonfinite": one.nonfinite_grad_norms,
        }
        for one in run.optimizer_views()
    ]


def facts_checked(run: RunView) -> list[dict[str, Any]]:
    return [
        {
            "attempts": run.report.attempts,
            "updates": run.report.updates,
            "skipped": run.report.skipped,
            "overflow": one.skipped["overflow"],
            "microbatches": one.microbatches,
            "valid_tokens": one.valid_tokens,
            "nonfinite": one.nonfinite_grad_norms,
        }
        for one in run.optimizers
    ]


class TestCounters:
    def test_runs_have_the_names_that_check_gives_them(self, folder: Path, checked: Snapshot) -> None:
        assert sorted(counted(folder)) == sorted(run.run_id for run in checked.runs) == sorted(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_they_count_what_check_counts(self, name: str, folder: Path, checked: Snapshot) -> None:
        run, other = counted(folder)[name], checked.run(name)
        assert other is not None
        assert facts(run) == facts_checked(other)
        assert run.launches == other.launches
        assert other.judged_through == max(view.attempt_id for view in other.ranks)
        assert [view.rank for view in run.rank_views()] == [view.rank for view in other.ranks]
        assert [view.attempt_id for view in run.rank_views()] == [view.attempt_id for view in other.ranks]
        assert [view.loss for view in run.rank_views()] == pytest.approx([view.loss for view in other.ranks])

    def test_what_was_saved_goes_on_and_counts_nothing_twice(self, folder: Path) -> None:
        runs = counted(folder)
        saved = json.loads(json.dumps({name: runs.saved(name) for name in runs}))
        others = Runs("logs", 100)
        others.restore(saved, 0.0)
        for chunk in chunks(folder, again=True):
            assert list(others.take(chunk, 1.0)) == []
        assert {name: facts(run) for name, run in others.items()} == {
            name: facts(run) for name, run in runs.items()
        }
        assert others["skips"].rank_views() == runs["skips"].rank_views()

    def test_a_line_that_is_no_record_is_counted(self, tmp_path: Path) -> None:
        write_run(tmp_path / "run", 2, ranks=1)
        runs = counted(tmp_path)
        garbage = (b"\xff\xfe", b"[" * 100_000, b'{"record": "update"}', b"1", b'{"record": []}')
        lines = tuple(Line(number, text) for number, text in enumerate(garbage, 10))
        taken = list(runs.take(Chunk(run="run", file="x", lines=lines), 0.0))
        assert [record for _, record in taken] == [None] * len(garbage)
        assert runs["run"].malformed == len(garbage)

    def test_runs_beyond_the_limit_are_left_out_and_counted(self, folder: Path) -> None:
        runs = counted(folder, limit=3)
        assert (len(runs), runs.left_out) == (3, 5)


class TestState:
    def test_it_follows_the_close_marks_of_all_ranks(self, folder: Path) -> None:
        runs = counted(folder)
        for run in runs.values():
            run.settle(1.0)
        assert runs["skips"].state == FINISHED
        assert runs["open"].state == RUNNING
        assert runs["open"].settle(10_000.0)
        assert runs["open"].state == SILENT

    def test_a_rank_that_broke_off_makes_the_run_one_that_did(self, tmp_path: Path) -> None:
        write_run(tmp_path / "run", 2, ranks=2, close=False)
        runs = counted(tmp_path)
        for rank, finished in ((0, True), (1, False)):
            mark = {"record": "mark", "kind": "close", "launch": "aaaa", "rank": rank, "finished": finished}
            line = Line(9, json.dumps(mark).encode())
            list(runs.take(Chunk(run="run", file="x", lines=(line,)), 0.0))
            runs["run"].settle(1.0)
            assert runs["run"].state == (RUNNING if rank == 0 else BROKEN_OFF)


def fed(runs: Runs, *records: dict[str, Any], folder: str = "run") -> None:
    """Give records as lines of one file."""
    lines = tuple(Line(number, json.dumps(record).encode()) for number, record in enumerate(records, 1))
    list(runs.take(Chunk(run=folder, file="x", lines=lines), 0.0))


def begins(token: str, rank: int = 0, **fields: Any) -> dict[str, Any]:
    return {"record": "run", "launch": token, "rank": rank, **fields}


def updates(token: str, attempt: int, rank: int = 0, optimizer: int = 0, **fields: Any) -> dict[str, Any]:
    whose = {"launch": token, "rank": rank, "optimizer": optimizer, "attempt_id": attempt}
    return {"record": "update", **whose, "optimizer_update_id": attempt, **fields}


class TestBounds:
    """What hostile records may cost."""

    def test_launches_without_end_cost_no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("folders", "counters"):
            monkeypatch.setattr(f"accumaudit.service.{module}.LAUNCHES", 10)
        runs = Runs("logs", 100)
        for number in range(50):
            resumed = begins(f"{number}", resumed_from_update=1)
            fed(runs, resumed, updates(f"{number}", 1, microbatches=1))
        known = runs._folders["run"]
        assert len(known.order) == len(known.launches) == len(known.current) == 10
        assert len(runs["run"].optimizers[0].launches) == 10
        assert (runs["run"].launches, runs["run"].optimizers[0].attempts) == (50, 50)
        assert len(runs.saved("run")["tokens"]) == 10

    def test_ranks_without_end_cost_no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("runs", "folders", "counters"):
            monkeypatch.setattr(f"accumaudit.service.{module}.RANKS", 10)
        runs = Runs("logs", 100)
        for rank in range(10**15, 10**15 + 50):
            fed(runs, begins("a", rank), updates("a", 1, rank, microbatches=1))
            fed(runs, {"record": "mark", "kind": "close", "launch": "a", "rank": rank, "finished": True})
        run, known = runs["run"], runs._folders["run"]
        kept = (known.current, known.order[0].ranks, run.ranks.closed, run.ranks.views, run.ranks.token_ranks)
        assert [len(one) for one in kept] == [10] * len(kept)
        assert run.optimizers[0].microbatches == 50
        again = Runs("logs", 100)
        again.restore({"run": runs.saved("run")}, 0.0)
        lines = [Line(1, json.dumps(updates("a", 1, rank)).encode()) for rank in range(50)]
        list(again.take(Chunk(run="run", file="x", lines=tuple(lines), again=True), 0.0))
        assert len(again["run"].ranks.views) == 10

    def test_optimizers_and_names_are_bounded(self) -> None:
        runs = Runs("logs", 100)
        described = [{"index": number, "class": "x" * 10_000} for number in range(1_000)]
        fed(runs, begins("a", optimizers=described, wrapper="y" * 10_000))
        assert len(runs["run"].optimizers) == 64
        assert {len(one.name) for one in runs["run"].optimizers.values()} == {200}
        assert len(runs["run"].wrapper or "") == 200

    def test_a_folder_that_begins_anew_again_and_again_has_no_more_runs_than_may_be(self) -> None:
        runs = Runs("logs", 5)
        for number in range(20):
            fed(runs, begins(f"{number}", started_at=1e5 * number), updates(f"{number}", 1))
        assert list(runs) == ["run", "run#2", "run#3", "run#4", "run#5"]
        assert runs["run#5"].launches == 16


class TestWindow:
    """The same for what waits to be judged."""

    def test_launches_without_end_cost_no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("accumaudit.service.judging.windows.LAUNCHES", 10)
        window = Window("run", "run")
        for number in range(50):
            give(window, begins(f"{number}", started_at=1e3 * number), updates(f"{number}", 1))
        assert len(window.launches) == len(window._latest) == 10
        assert window.incomplete == {"run"}

    def test_ranks_without_end_cost_no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("accumaudit.service.judging.launches.RANKS", 10)
        monkeypatch.setattr("accumaudit.service.judging.launches.MARKS", 10)
        window = Window("run", "run")
        mark = {"record": "mark", "kind": "close", "launch": "a"}
        give(window, *(mark | {"rank": rank} for rank in range(10**15, 10**15 + 50)))
        give(window, *(updates("a", 1, rank) for rank in range(50)))
        (launch,) = window.launches
        assert (len(launch.closed), len(launch.tracks[0].last), window.records) == (10, 10, 20)
        assert launch.dropped


def give(window: Window, *records: dict[str, Any]) -> None:
    lines = tuple(Line(number, json.dumps(record).encode()) for number, record in enumerate(records, 1))
    window.take(Chunk(run="run", file="x", lines=lines), 0.0)


class TestResume:
    """Whether a launch resumes a run: its run line cannot tell where hooks are attached before a load."""

    @pytest.mark.parametrize(
        ("line", "name"),
        [
            (updates("b", 1), "run#2"),
            (updates("b", 1, optimizer_update_id=2), "run"),
            (updates("b", 1, optimizer_update_id=0, optimizer_step_skipped=True), "run#2"),
            ({"record": "mark", "kind": "close", "launch": "b", "rank": 0}, "run"),
            (
                {
                    "record": "mark",
                    "kind": "declare",
                    "launch": "b",
                    "rank": 0,
                    "name": '{"resumed_from_update": 1}',
                },
                "run",
            ),
            (begins("c", started_at=2e5), "run"),
        ],
    )
    def test_what_follows_the_run_line_tells(self, line: dict[str, Any], name: str) -> None:
        runs = Runs("logs", 100)
        fed(runs, begins("a", wrapper="old"), updates("a", 1), begins("b", started_at=1e5, wrapper="ddp"))
        assert (runs["run"].launches, runs["run"].wrapper) == (1, "old")
        fed(runs, line, updates("b", 2))
        assert list(runs) == ["run", "run#2"][: 1 + (name != "run")]
        assert (runs[name].launches, runs[name].wrapper) == (2 if name == "run" else 1, "ddp")

    def test_what_waits_for_it_costs_no_more_memory_than_may_be(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accumaudit.service.runs.HELD", 3_000)
        runs = Runs("logs", 100)
        fed(runs, begins("a"), updates("a", 1), begins("b", started_at=1e5))
        mark = {"record": "mark", "kind": "eval", "launch": "b", "rank": 0}
        fed(runs, *(mark for _ in range(1_000)))
        assert (runs["run"].launches, 0 < runs._held < 3_000) == (1, True)
        fed(runs, *(begins("b", rank, started_at=1e5, padding="x" * 100) for rank in range(1, 50)))
        assert (runs["run"].launches, runs._held) == (2, 0)
        fed(runs, begins("c", started_at=2e5))
        runs.forget("run")
        assert runs._held == 0

    def test_a_restart_before_it_is_told_changes_nothing(self) -> None:
        runs = Runs("logs", 100)
        fed(runs, begins("a"), updates("a", 1), begins("b", started_at=1e5))
        again = Runs("logs", 100)
        again.restore({"run": json.loads(json.dumps(runs.saved("run")))}, 0.0)
        line = Line(1, json.dumps(begins("b", started_at=1e5, world_size=4)).encode())
        list(again.take(Chunk(run="run", file="x", lines=(line,), again=True), 0.0))
        fed(again, updates("b", 1))
        assert [(run.launches, run.ranks.world_size) for run in again.values()] == [(1, None), (1, 4)]


def test_files_come_as_their_launches_began_and_each_file_as_it_is_written() -> None:
    def chunk(file: str, *lines: dict[str, Any], first: int = 1) -> Chunk:
        numbered = (Line(number, json.dumps(line).encode()) for number, line in enumerate(lines, first))
        return Chunk(run="run", file=file, lines=tuple(numbered), again=first == 1)

    later, more = chunk("a", begins("x", started_at=9.0)), chunk("a", updates("x", 1), first=2)
    earlier, known = chunk("b", begins("y", started_at=3.0)), chunk("c", updates("z", 7), first=8)
    assert in_order([later, more, earlier, known]) == [known, earlier, later, more]
    assert in_order([replace(more, run="q"), earlier]) == [replace(more, run="q"), earlier]


class TestRestart:
    def test_the_last_of_more_than_nine_runs_in_a_folder_goes_on(self) -> None:
        runs = Runs("logs", 100)
        for number in range(12):
            fed(runs, begins(f"{number}", started_at=1e5 * number), updates(f"{number}", 1))
        saved = {name: json.loads(json.dumps(runs.saved(name))) for name in sorted(runs)}
        again = Runs("logs", 100)
        again.restore(saved, 0.0)
        fed(again, updates("lost", 7))
        assert again["run#12"].launches == 2

    def test_a_run_that_was_silent_stays_so_until_it_is_heard(self) -> None:
        runs = Runs("logs", 100)
        fed(runs, begins("a"), updates("a", 1, window_seconds=1e300))
        assert not runs["run"].settle(24 * 3600.0)
        assert runs["run"].settle(2 * 24 * 3600.0)
        again = Runs("logs", 100)
        again.restore({"run": runs.saved("run")}, 5.0)
        assert not again["run"].settle(6.0)
        assert again["run"].state == SILENT
        fed(again, updates("a", 2))
        assert again["run"].settle(6.0)
        assert again["run"].state == RUNNING
