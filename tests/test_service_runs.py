"""What the service counts from the lines of runs is what the tables of a `check` say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
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
    for chunk in chunks(folder):
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
    write_run(folder / "same-token", 3, launch="a", close=False)
    write_run(folder / "same-token", 4, launch="a", first_update=4, **LATER, **RESUMED)
    return folder


@pytest.fixture(scope="module")
def checked(folder: Path) -> Snapshot:
    """What `check` knows of them."""
    with read_ledger([folder]) as ledger:
        return snapshot_of(ledger, audit(ledger, load_rules(), select=["ACC801"]), 0.0)


NAMES = ("skips", "sparse", "open", "resumed", "anew", "anew#2", "same-token")


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
        assert (len(runs), runs.left_out) == (3, 4)


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
