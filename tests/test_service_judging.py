"""Runs are judged while they are written; what is said in the end is what `check` says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from accumaudit.engine import check_paths
from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, PASSED
from accumaudit.engine.ignoring import Ignore
from accumaudit.service.judging.judge import Asked, Judge, Judgement
from tests.judged import AT_ONCE, PATIENCE, chunk_of, files_of, judged, portions, same
from tests.records import START, write_run
from tests.rulefiles import write_rule

pytestmark = pytest.mark.slow  # the rules run in processes of their own, about a second each time

TAIL = {"microbatches": 2, "total_weight": 0.5}

Followed = dict[str, tuple[list[Judgement], list[Judgement]]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def judge(root: Path) -> Iterator[Judge]:
    """One for all tests that need no other limits; each has a folder of its own below the root."""
    judge = Judge(root, limits=AT_ONCE)
    yield judge
    judge.close()


@pytest.fixture
def folder(root: Path, request: pytest.FixtureRequest) -> Path:
    name: str = request.node.name
    return root / name.removeprefix("test_")


def codes(said: list[Judgement]) -> list[str]:
    return [finding.code for one in said for finding in one.new]


@pytest.fixture(scope="module")
def followed(root: Path, judge: Judge) -> Followed:
    """What is said of several runs at two times, by their folders; all are judged together."""
    files = {name: files_of(write_run(root / name, **run)) for name, run in FIRST.items()}
    garble(files["garbled"][0])
    cuts = {"faulty": (0, 2), "right": (0, 3)}
    chunks = [chunk_of(root, file, *cuts.get(name, (0, None))) for name in files for file in files[name]]
    first = judged(judge, chunks)
    for name, run in LATER.items():
        write_run(root / name, **run)
    files["cut"][0].unlink()
    write_run(root / "cut", 2, ranks=1, close=False)
    chunks = [chunk_of(root, file, cuts[name][1]) for name in cuts for file in files[name]]
    chunks += [
        chunk_of(root, file) for name in LATER for file in files_of(root / name) if "bbbb" in file.name
    ]
    then = judged(judge, [*chunks, replace(chunk_of(root, files["cut"][0]), begins_anew=True)])
    judge.finish("right")
    then += judged(judge)
    return {name: (of(name, first), of(name, then)) for name in FIRST}


FIRST: Final[dict[str, dict[str, Any]]] = {
    "faulty": {"updates": [{}, TAIL, {}], "close": False},
    "right": {"updates": [{}, {"skipped": True}, {}, {}, {}, {}]},
    "trained twice": {"updates": [TAIL, {}, {}]},
    "resumed": {"updates": 3, "close": False},
    "garbled": {"updates": [{}, TAIL], "ranks": 1},
    "cut": {"updates": [{}, TAIL, {}], "ranks": 1, "close": False},
}
LATER: Final[dict[str, dict[str, Any]]] = {
    "trained twice": {"updates": [{}, TAIL], "launch": "bbbb", "started_at": START + 50_000},
    "resumed": {
        "updates": [{}, TAIL],
        "launch": "bbbb",
        "first_update": 4,
        "started_at": START + 50_000,
        "resumed_from_update": 3,
    },
}


def garble(file: Path) -> None:
    """Put lines between the others that are no records."""
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], b"\xff\xfe{", b"", lines[1], b'{"record": "upd', *lines[2:]]))


def of(folder: str, said: list[Judgement]) -> list[Judgement]:
    return [one for one in said if one.folder == folder]


def test_a_fault_is_told_with_the_line_at_which_it_stands(root: Path, followed: Followed) -> None:
    first, then = followed["faulty"]
    assert (codes(first), codes(then)) == ([], ["ACC101"])
    finding = then[0].new[0].verdict.finding
    assert finding is not None
    assert (finding.first_update, finding.examples[0].line) == (2, 3)
    assert finding.examples[0].file == str(root / "faulty" / "rank-00" / "00000.aaaa.jsonl")


def test_attempts_are_told_once_each_in_their_order(followed: Followed) -> None:
    said = [*followed["right"][0], *followed["right"][1]]
    points = [point for one in said for point in one.points]
    assert [point.attempt_id for point in points] == [1, 2, 3, 4, 5, 6]
    assert [point.applied for point in points] == [True, False, True, True, True, True]
    assert [one.judged_through for one in said][-1] == 6


def test_the_end_of_a_run_is_its_check(root: Path, followed: Followed) -> None:
    (checked,) = check_paths([root / "right"]).runs
    final = followed["right"][1][-1]
    assert (final.final, final.whole, same(checked, final.report)) == (True, True, [])


def test_a_second_training_in_the_same_folder_is_another_run(root: Path, followed: Followed) -> None:
    first, second = followed["trained twice"]
    names = [run.run_id for run in check_paths([root / "trained twice"]).runs]
    assert names == ["trained twice", "trained twice#2"]
    assert [one.run for one in first] == names[:1]
    assert [one.run for one in second if one.points] == names[1:]
    assert [point.launch for one in second for point in one.points] == [1, 1]
    assert codes(second) == ["ACC101"]


def test_a_resumed_launch_goes_on_in_the_same_run(followed: Followed) -> None:
    _, said = followed["resumed"]
    (finding,) = (view.verdict.finding for one in said for view in one.new)
    assert {one.run for one in said} == {"resumed"}
    assert finding is not None
    assert (finding.first_update, finding.examples[0].launch) == (5, 2)
    assert [(point.launch, point.update_id) for one in said for point in one.points] == [(2, 4), (2, 5)]


def test_lines_that_are_no_records_are_told_with_their_places(root: Path, followed: Followed) -> None:
    (said,), _ = followed["garbled"]
    (checked,) = check_paths([root / "garbled"]).runs
    assert said.report.unreadable == checked.unreadable
    assert [one.line for one in checked.unreadable] == [2, 5]
    assert [view.verdict.finding for view in said.new] == [
        verdict.finding for verdict in checked.with_status(FAILED)
    ]


def test_what_was_cut_out_of_a_file_is_forgotten(followed: Followed) -> None:
    first, then = followed["cut"]
    assert codes(first) == ["ACC101"]
    assert [(view.code, view.withdrawn) for view in then[-1].findings] == [("ACC101", True)]


def test_a_run_that_outgrows_its_window_is_judged_on_without_telling_anything_again(
    root: Path, folder: Path
) -> None:
    write_run(folder, [TAIL if attempt % 3 == 2 else {} for attempt in range(24)], close=False)
    judge = Judge(root, limits=replace(AT_ONCE, records=12, slow_beat=60.0))
    try:
        said = [one for chunks in portions(root, folder, 3) for one in judged(judge, chunks)]
        (checked,) = check_paths([folder]).runs
        assert not said[-1].whole
        assert codes(said) == ["ACC101"]
        told = {view.code: view.verdict.finding for view in said[-1].findings}
        expected = {one.code: one.finding for one in checked.with_status(FAILED)}
        assert told["ACC101"] is not None
        assert expected["ACC101"] is not None
        assert (told["ACC101"].count, told["ACC101"].first_update, told["ACC101"].last_update) == (8, 3, 24)
        assert replace(told["ACC101"], ranks=()) == replace(expected["ACC101"], ranks=())
        assert [point.attempt_id for one in said for point in one.points] == [*range(1, 25)]
        assert said[-1].report.attempts == 24
        judge.finish(folder.name)
        final = judged(judge)[-1]
        assert (final.final, codes([final]), same(checked, final.report)) == (True, [], [])
    finally:
        judge.close()


def test_a_rank_that_lags_is_waited_with_and_then_left_behind(root: Path, folder: Path) -> None:
    write_run(folder, [{}, TAIL, {}, {}], ranks=3, close=False)
    clock = [0.0]
    judge = Judge(root, limits=AT_ONCE, clock=lambda: clock[0])
    quick, late = files_of(folder)[:2], files_of(folder)[2]
    try:
        waiting = judged(judge, [chunk_of(root, late, 0, 2), *(chunk_of(root, file, 0, 4) for file in quick)])
        assert (waiting[-1].judged_through, waiting[-1].late_ranks) == (1, ())
        clock[0] += AT_ONCE.patience + 1
        without = judged(judge)
        assert (without[-1].judged_through, without[-1].late_ranks) == (3, (2,))
        assert without[-1].report.remarks == ("attempts 2 to 3 were judged without rank 2",)
        assert [point.total_weight for point in without[-1].points] == [None, None]
        at_once = judged(judge, [chunk_of(root, file, 4, 5) for file in quick])
        assert at_once[-1].judged_through == 4
        again = judged(judge, [chunk_of(root, late, 2, 5)])
        assert (codes(again), again[-1].late_ranks, again[-1].report.remarks) == (["ACC101"], (), ())
        assert [point for one in again for point in one.points] == []
    finally:
        judge.close()


def test_another_process_goes_on_where_the_first_was_killed(root: Path, folder: Path) -> None:
    write_run(folder, [{}, TAIL, {}, {}, TAIL, {}, TAIL, {}], close=False)
    limits = replace(AT_ONCE, records=8, slow_beat=60.0)
    files = files_of(folder)
    first = Judge(root, limits=limits)
    try:
        before = judged(first, [chunk_of(root, file, 0, 4) for file in files])
        before += judged(first, [chunk_of(root, file, 4, 6) for file in files])
        saved = json.loads(json.dumps(first.saved([folder.name])))
        needed = first.keep_from()
        judged(first, [chunk_of(root, file, 6, 7) for file in files])  # what it says of these is lost
    finally:
        first.close()
    second = Judge(root, limits=limits)
    try:
        second.restore(saved)
        (known,) = second.turn(0.0)
        assert (known.new, known.points, known.findings) == ((), (), before[-1].findings)
        for file in files:
            second.take(chunk_of(root, file, 0, 1, again=True))
            place = file.relative_to(root).as_posix()
            second.take(chunk_of(root, file, needed[place] - 1, 6, again=True))
        assert judged(second) == []
        after = judged(second, [chunk_of(root, file, 6, 9) for file in files])
        assert [point.attempt_id for one in (*before, *after) for point in one.points] == [*range(1, 9)]
        assert codes(after) == []
        (told,) = (view.verdict.finding for view in after[-1].findings if view.code == "ACC101")
        assert told is not None
        assert (told.count, told.first_update, told.last_update) == (3, 2, 7)
    finally:
        second.close()


def test_one_ledger_that_cannot_be_judged_does_not_take_the_others_with_it(
    judge: Judge, root: Path, folder: Path
) -> None:
    write_run(folder / "good", [TAIL, {}], close=False)
    write_run(folder / "newer", 2, schema=99)
    failures = judge.failures
    said = judged(judge, [chunk_of(root, file) for file in files_of(folder)])
    name = f"{folder.name}/newer"
    assert {one.run for one in said} == {f"{folder.name}/good"}
    assert (codes(said), judge.failures) == (["ACC101"], failures + 3)
    assert "written in version 99 of the schema" in judge.troubles[name]
    judge.forget(name)
    assert name not in judge.troubles


def test_a_process_that_dies_is_started_again(judge: Judge, root: Path, folder: Path) -> None:
    write_run(folder, [TAIL, {}], close=False)
    failures = judge.failures
    for file in files_of(folder):
        judge.take(chunk_of(root, file))
    judge.turn(0.0)
    os.kill(judge.pids[0], signal.SIGKILL)
    assert codes(judged(judge)) == ["ACC101"]
    assert (judge.failures, judge.troubles) == (failures + 1, {})


def test_a_judgement_that_takes_too_long_is_ended_and_told(root: Path, folder: Path) -> None:
    write_run(folder, 2)
    judge = Judge(root, limits=replace(AT_ONCE, deadline=0.0))
    try:
        assert judged(judge, [chunk_of(root, file) for file in files_of(folder)]) == []
        text = f"{folder.name}: not judged (judging took too long and was ended)"
        assert (judge.failures, judge.troubles, judge.pids) == (2, {folder.name: text}, [])
    finally:
        judge.close()


def test_a_broken_rule_is_told_as_broken_and_thresholds_and_ignores_hold(
    root: Path, folder: Path, tmp_path: Path
) -> None:
    write_rule(tmp_path, "XX001", "SELECT 1 / nothing AS x FROM windows")
    write_run(folder / "a", [TAIL, {}])
    write_run(folder / "b", [TAIL, {}])
    asked = Asked(
        rules=(tmp_path,),
        select=("XX", "ACC101"),
        ignores=(Ignore(rule="ACC101", reason="known", run=f"{folder.name}/a"),),
    )
    judge = Judge(root, asked, AT_ONCE)
    try:
        judged_runs = {one.run: one for one in judged(judge, [chunk_of(root, f) for f in files_of(folder)])}
    finally:
        judge.close()
    statuses = {
        run.rpartition("/")[2]: {verdict.code: verdict.status for verdict in one.report.verdicts}
        for run, one in judged_runs.items()
    }
    assert statuses == {
        "a": {"ACC101": NOT_CHECKED, "XX001": BROKEN},
        "b": {"ACC101": FAILED, "XX001": BROKEN},
    }


def test_a_large_backlog_is_judged_from_the_files_and_then_the_newest(root: Path, folder: Path) -> None:
    write_run(folder, [TAIL if attempt == 5 else {} for attempt in range(60)], ranks=1, close=False)
    judge = Judge(root, limits=replace(AT_ONCE, records=4))
    try:
        said = judged(judge, [chunk_of(root, file) for file in files_of(folder)])
    finally:
        judge.close()
    assert codes(said) == ["ACC101"]
    assert [point.attempt_id for one in said for point in one.points] == [*range(1, 61)]
    assert said[-1].report.remarks == ()


def test_rules_of_scope_run_see_one_rank_alone_where_the_record_is_large(root: Path, folder: Path) -> None:
    write_run(folder, [{"loss": [7.0] * 4, "reported_loss": 0.0}] * 40, close=False)
    judge = Judge(root, limits=replace(AT_ONCE, records=12, thin=1000 * 40, slow_beat=60.0))
    try:
        said = [one for chunks in portions(root, folder, 2) for one in judged(judge, chunks)]
    finally:
        judge.close()
    statuses = {verdict.code: verdict for verdict in said[-1].report.verdicts}
    assert statuses["ACC303"].status == PASSED
    assert statuses["ACC905"].status == NOT_CHECKED


KILLED = """
import sys, time
from pathlib import Path
from accumaudit.service.judging.judge import Judge
from tests.judged import chunk_of, files_of

root = Path(sys.argv[1])
judge = Judge(root)
for file in files_of(root):
    judge.take(chunk_of(root, file))
judge.turn(0.0)
print(judge.pids[0], flush=True)
time.sleep(60)
"""


def test_nothing_is_left_behind_when_the_service_is_killed(tmp_path: Path) -> None:
    write_run(tmp_path / "logs" / "run", 2)
    (tmp_path / "tmp").mkdir()
    service = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "logs")],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with service:
        assert service.stdout is not None
        child = int(service.stdout.readline())
        service.kill()
    end = time.monotonic() + PATIENCE
    while (Path(f"/proc/{child}").exists() or any((tmp_path / "tmp").iterdir())) and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


WRITING = """
import os, queue, sys, threading
from pathlib import Path
from accumaudit.service.judging.child import _read

spool = Path(sys.argv[1])

def write():
    number = 0
    while True:
        (spool / str(number)).mkdir(parents=True, exist_ok=True)
        number += 1

threading.Thread(target=write, daemon=True).start()
_read(queue.SimpleQueue(), spool)
"""


def test_nothing_is_left_behind_when_the_service_is_killed_while_the_process_writes(tmp_path: Path) -> None:
    for number in range(3):
        spool = tmp_path / f"spool-{number}"
        spool.mkdir()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            [sys.executable, "-c", WRITING, str(spool)],
            stdin=subprocess.DEVNULL,
            env=environment,
            timeout=PATIENCE,
        )
        assert not spool.exists()


def test_nothing_is_left_behind_after_close(
    root: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(folder, 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    judge = Judge(root, limits=AT_ONCE)
    for file in files_of(folder):
        judge.take(chunk_of(root, file))
    judge.turn(0.0)
    (pid,) = judge.pids
    judge.close()
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_whose_files_are_gone_at_its_end_keeps_what_was_said(root: Path, folder: Path) -> None:
    write_run(folder, [TAIL, *[{}] * 12], ranks=1)
    judge = Judge(root, limits=replace(AT_ONCE, records=4, slow_beat=60.0))
    try:
        judged(judge, [chunk_of(root, file) for file in files_of(folder)])
        shutil.rmtree(folder)
        judge.finish(folder.name)
        (final,) = judged(judge)
    finally:
        judge.close()
    assert final.final
    assert [view.code for view in final.findings] == ["ACC101"]
    assert final.report.remarks[-1].startswith("the whole record was not judged at its end: ")
    assert "no such file or folder" in final.report.remarks[-1]
