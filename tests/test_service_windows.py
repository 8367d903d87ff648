"""Which lines of a run are kept to be judged, which ranks are waited with, and what becomes of a finding."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from accumaudit.engine.catalogue import Catalogue, load_rules
from accumaudit.engine.findings import FAILED, PASSED, Example, Finding, RunReport, Verdict
from accumaudit.service.judging.book import AT_A_SLOWER_BEAT, Book
from accumaudit.service.judging.judge import fair
from accumaudit.service.judging.launches import Launch
from accumaudit.service.judging.spool import SourceFile, Spool
from accumaudit.service.judging.windows import Window
from accumaudit.service.lines import Chunk, Line
from tests.findings import report_with
from tests.records import build_run

PATIENCE = 10.0


def window_of(updates: int, ranks: int, *, close: bool = False) -> Window:
    """All lines of a run."""
    window = Window("run", "run")
    for rank, records in build_run(updates, ranks, close=close).items():
        window.take(chunk(rank, records), 0.0)
    return window


def chunk(rank: int, records: Iterable[dict[str, object]], first: int = 1, *, again: bool = False) -> Chunk:
    lines = tuple(Line(number, json.dumps(one).encode()) for number, one in enumerate(records, first))
    return Chunk(run="run", file=f"run/rank-00/{rank:05d}.aaaa.jsonl", lines=lines, again=again)


def only(window: Window) -> Launch:
    (launch,) = window.launches
    return launch


def attempts_of(window: Window) -> list[int]:
    return sorted({json.loads(line.text).get("attempt_id", 0) for line in only(window).lines()})


def test_an_attempt_waits_until_every_rank_has_written_it() -> None:
    records = build_run(3, 2, close=False)
    window = Window("run", "run")
    window.take(chunk(0, records[0]), 0.0)
    window.take(chunk(1, records[1][:2]), 0.0)
    window.advance(1.0, PATIENCE)
    assert attempts_of(window) == [0, 1]
    window.take(chunk(1, records[1][2:], 3), 2.0)
    window.advance(2.0, PATIENCE)
    assert attempts_of(window) == [0, 1, 2, 3]


def test_a_rank_that_never_wrote_is_given_up_and_named() -> None:
    records = build_run(2, 3, close=False)
    window = Window("run", "run")
    for rank in (0, 2):
        window.take(chunk(rank, records[rank]), 0.0)
    window.advance(PATIENCE - 1, PATIENCE)
    assert (attempts_of(window), only(window).late) == ([0], set())
    window.advance(PATIENCE, PATIENCE)
    assert (attempts_of(window), only(window).late) == ([0, 1, 2], {1})


def test_a_world_size_that_nobody_can_have_costs_nothing() -> None:
    records = build_run(2, 1, close=False, world_size=2**50)
    window = Window("run", "run")
    window.take(chunk(0, records[0]), 0.0)
    window.advance(PATIENCE, PATIENCE)
    assert len(only(window).late) < 2_000
    assert attempts_of(window) == [0, 1, 2]


def test_a_closed_launch_waits_for_nobody() -> None:
    records = build_run(3, 2)
    window = Window("run", "run")
    window.take(chunk(0, records[0]), 0.0)
    window.take(chunk(1, [*records[1][:2], records[1][-1]]), 0.0)
    window.advance(0.0, PATIENCE)
    assert attempts_of(window) == [0, 1, 2, 3]


def test_marks_after_the_last_recorded_attempt_are_judged_at_the_end() -> None:
    window = Window("run", "run")
    for rank, records in build_run(6, 2, every=4).items():
        window.take(chunk(rank, records), 0.0)
    window.advance(0.0, PATIENCE)
    assert attempts_of(window) == [0, 1, 5, 6]


def test_the_files_of_ranks_that_were_not_closed_are_read_again_at_the_end() -> None:
    assert window_of(2, 2, close=True).finish()
    assert not window_of(2, 2, close=False).finish()


def test_the_last_judgement_is_not_one_without_some_ranks() -> None:
    records = build_run(3, 3)
    records[1][3:4] = []
    window = Window("run", "run")
    for rank in (0, 2):
        window.take(chunk(rank, records[rank]), 0.0)
    window.take(chunk(1, records[1][:2]), 0.0)
    window.advance(PATIENCE, PATIENCE)
    (track,) = only(window).tracks.values()
    assert [(one.first, one.last, one.ranks) for one in track.missed] == [(2, 3, (1,))]
    window.take(chunk(1, records[1][2:], 3), PATIENCE)
    window.advance(PATIENCE, PATIENCE)
    assert window.finish()
    assert track.missed == []


def test_what_was_judged_gives_way_first_and_two_attempts_stay() -> None:
    window = window_of(10, 2)
    window.advance(0.0, PATIENCE)
    window.shrink(5, 10**9)
    assert only(window).passed_over == 1  # of what was not judged, four times the room
    for track in only(window).tracks.values():
        track.sent = track.through
    window.shrink(8, 10**9)
    assert attempts_of(window) == [0, 8, 9, 10]
    window.shrink(0, 0)
    assert attempts_of(window) == [0, 9, 10]
    assert only(window).passed_over == 1
    assert not window.is_whole("run")


def test_the_first_attempt_that_is_kept_is_what_the_next_is_judged_by() -> None:
    window = window_of(6, 2)
    window.advance(0.0, PATIENCE)
    launch = only(window)
    assert launch.judged_from(0) == 0
    launch.tracks[0].sent = launch.tracks[0].judged = 6
    window.shrink(0, 0)
    assert {attempt for _, attempt in launch.groups} == {5, 6}
    assert launch.judged_from(0) == 6
    launch.tracks[0].judged = 4
    assert launch.judged_from(0) == 5


def test_the_sum_of_what_is_kept_is_what_lies_in_it() -> None:
    window = window_of(6, 3, close=True)
    window.advance(0.0, PATIENCE)
    only(window).tracks[0].sent = 6
    window.shrink(14, 10**9)
    window.take(replace(chunk(1, build_run(6, 3)[1]), begins_anew=True), 0.0)
    launch = only(window)
    lines = [
        *launch.heads.values(),
        *(mark.line for mark in launch.marks.values()),
        *(line for group in launch.groups.values() for line in group.lines),
    ]
    assert (launch.records, launch.size) == (len(lines), sum(len(line.text) for line in lines))


def test_a_window_that_is_read_again_is_the_same() -> None:
    records = build_run(6, 2, marks=[{"kind": "declare", "name": "{}", "attempt_id": 1}], close=False)
    window = Window("run", "run")
    for rank in records:
        window.take(chunk(rank, records[rank]), 0.0)
    window.advance(0.0, PATIENCE)
    track = only(window).tracks[0]
    track.sent = track.judged = 5
    window.shrink(6, 10**9)
    saved, needed = json.loads(json.dumps(window.saved())), window.keep_from()
    other = Window("run", "run")
    other.restore(saved)
    for rank, lines in records.items():
        one = chunk(rank, lines, again=True)
        first = needed[one.file]
        other.take(replace(one, lines=one.lines[:1]), 0.0)
        other.take(replace(one, lines=one.lines[first - 1 :]), 0.0)
    other.advance(0.0, PATIENCE)
    assert sorted(only(other).lines()) == sorted(only(window).lines())
    assert only(other).records == only(window).records
    assert other.keep_from() == needed
    assert other.is_dirty  # attempt 6 was not judged


@pytest.mark.parametrize(
    ("wanted", "room", "share"),
    [([], 10, 0), ([1, 2, 3], 10, 3), ([1, 9, 9], 10, 4), ([20, 20], 10, 5), ([5] * 4, 2, 0)],
)
def test_room_is_shared_so_that_the_small_keep_all(wanted: list[int], room: int, share: int) -> None:
    assert fair(wanted, room) == share


def test_copies_of_a_rank_stay_in_files_of_their_own(tmp_path: Path) -> None:
    window = window_of(1, 2)
    window.take(replace(chunk(0, build_run(1, 2)[0]), file="run/rank-00/backup.jsonl"), 0.0)
    window.advance(0.0, PATIENCE)
    spool = Spool(tmp_path / "spool", tmp_path)
    spool.add("0", only(window).lines(), window.files)
    first, second = sorted((tmp_path / "spool" / "0" / "rank-00").iterdir())
    assert spool.original(str(second), 1) == (str(tmp_path / "run/rank-00/backup.jsonl"), 2)
    assert spool.original(str(first), 3) == (str(tmp_path / "run/rank-00/00001.aaaa.jsonl"), 1)
    assert spool.retold(f"the other is line 1 of {second}") == (
        f"the other is line 2 of {tmp_path / 'run/rank-00/backup.jsonl'}"
    )
    assert spool.original("elsewhere", 7) == ("elsewhere", 7)
    spool.remove()
    assert not spool.folder.exists()
    assert SourceFile("run/rank-00/backup.jsonl", 0) in window.files


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_rules()


def report(catalogue: Catalogue, code: str, attempts: Iterable[int], *, severity: str = "error") -> RunReport:
    """One rule found something in these attempts of the first launch, or nothing."""
    rule, numbers = catalogue[code], list(attempts)
    examples = tuple(
        Example(
            launch=1,
            optimizer=0,
            attempt_id=number,
            optimizer_update_id=number,
            rank=None,
            file="f",
            line=number,
            message=f"attempt {number}",
            observed=0.5,
            expected=1.0,
        )
        for number in numbers[:3]
    )
    finding = Finding(
        count=len(numbers),
        first_update=min(numbers, default=None),
        last_update=max(numbers, default=None),
        ranks=(0,),
        message=f"attempt {min(numbers, default=0)}",
        observed=0.5,
        expected=1.0,
        examples=examples,
    )
    verdict = Verdict(
        code=code,
        name=rule.name,
        severity=severity,
        status=FAILED if numbers else PASSED,
        judged=10,
        reason=None,
        finding=finding if numbers else None,
        summary=rule.summary,
        fix=rule.fix,
    )
    return report_with("run", verdict)


def found(code: str, attempts: Iterable[int]) -> dict[str, list[tuple[int, int, int, int]]]:
    return {code: [(1, 0, number, number) for number in attempts]}


def told(book: Book) -> list[tuple[str, int, int | None, bool]]:
    return [
        (view.code, view.verdict.finding.count, view.verdict.finding.last_update, view.withdrawn)
        for view in book.findings
        if view.verdict.finding is not None
    ]


def test_a_finding_counts_attempts_once_while_the_window_moves(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    code = "ACC101"
    new = book.take_window(report(catalogue, code, [2, 4]), found(code, [2, 4]), {(1, 0): 0}, 1.0)
    assert [view.code for view in new] == [code]
    again = book.take_window(report(catalogue, code, [4, 6]), found(code, [4, 6]), {(1, 0): 3}, 2.0)
    assert (again, told(book)) == ([], [(code, 3, 6, False)])
    book.take_window(report(catalogue, code, []), {}, {(1, 0): 7}, 3.0)
    assert told(book) == [(code, 3, 6, False)]
    (view,) = book.findings
    assert (view.first_seen, view.last_seen) == (1.0, 2.0)
    assert view.verdict.finding is not None
    assert [one.attempt_id for one in view.verdict.finding.examples] == [2, 4, 6]


def test_a_finding_that_falls_is_withdrawn_and_not_told_again(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    code = "ACC101"
    book.take_window(report(catalogue, code, [2]), found(code, [2]), {(1, 0): 0}, 1.0)
    book.take_window(report(catalogue, code, []), {}, {(1, 0): 0}, 2.0)
    assert told(book) == [(code, 1, 2, True)]
    assert [verdict.status for verdict in book.verdicts] == [PASSED]
    new = book.take_window(report(catalogue, code, [5]), found(code, [5]), {(1, 0): 0}, 3.0)
    assert (new, told(book)) == ([], [(code, 1, 5, False)])


def test_the_whole_record_replaces_what_the_windows_said(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    code = "ACC101"
    book.take_window(report(catalogue, code, [2]), found(code, [2]), {(1, 0): 0}, 1.0)
    book.take_window(report(catalogue, code, [9]), found(code, [9]), {(1, 0): 8}, 2.0)
    assert book.take_whole(report(catalogue, code, [9]), found(code, [9]), 3.0) == []
    assert told(book) == [(code, 1, 9, False)]
    assert book.take_whole(report(catalogue, code, []), {}, 4.0) == []
    assert told(book) == [(code, 1, 9, True)]


def test_attempts_that_were_passed_over_are_added_once(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    code = "ACC101"
    book.take_window(report(catalogue, code, [4, 8]), found(code, [4, 8]), {(1, 0): 4}, 1.0)
    book.take_earlier(report(catalogue, code, [1, 4, 8]), found(code, [1, 4, 8]), {(1, 0): 6}, 2.0)
    assert told(book) == [(code, 3, 8, False)]
    book.take_window(report(catalogue, code, [4, 8]), found(code, [4, 8]), {(1, 0): 4}, 3.0)
    assert told(book) == [(code, 3, 8, False)]


def test_rules_of_scope_run_keep_what_was_said_of_the_whole(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    code = "ACC303"
    book.take_window(report(catalogue, code, []), {}, {(1, 0): 3}, 1.0)
    assert [verdict.reason for verdict in book.verdicts] == [AT_A_SLOWER_BEAT]
    new = book.take_run_rules(report(catalogue, code, [1]), found(code, [1]), 2.0)
    assert [view.code for view in new] == [code]
    book.take_window(report(catalogue, code, []), {}, {(1, 0): 3}, 3.0)
    assert [verdict.status for verdict in book.verdicts] == [FAILED]


def test_a_cause_that_lasts_explains_later_attempts_as_well(catalogue: Catalogue) -> None:
    book = Book(catalogue)
    causes = [one for one in catalogue.values() if "ACC603" in one.explains]
    cause, effect = causes[0].code, "ACC603"
    book.take_window(report(catalogue, cause, [2]), found(cause, [2]), {(1, 0): 0}, 1.0)
    new = book.take_window(report(catalogue, effect, [9]), found(effect, [9]), {(1, 0): 8}, 2.0)
    assert new == []
    assert told(book) == [(cause, 1, 2, False)]


def test_a_book_that_was_saved_goes_on(catalogue: Catalogue) -> None:
    book, other = Book(catalogue), Book(catalogue)
    code = "ACC101"
    book.take_window(report(catalogue, code, [2, 4]), found(code, [2, 4]), {(1, 0): 0}, 1.0)
    book.take_window(report(catalogue, code, [4]), found(code, [4]), {(1, 0): 3}, 2.0)
    other.restore(json.loads(json.dumps(book.saved())))
    assert (other.findings, other.verdicts) == (book.findings, book.verdicts)
    new = other.take_window(report(catalogue, code, [4, 6]), found(code, [4, 6]), {(1, 0): 3}, 3.0)
    assert (new, told(other)) == ([], [(code, 3, 6, False)])


def test_a_copy_of_old_lines_makes_no_rank_late() -> None:
    window = window_of(4, 2)
    window.advance(0.0, PATIENCE)
    window.take(replace(chunk(0, build_run(4, 2)[0]), file="run/rank-00/backup.jsonl"), 1.0)
    window.advance(1.0, PATIENCE)
    assert only(window).late == set()


def test_a_restored_window_is_whole_only_when_its_lines_have_been_read_again() -> None:
    window = window_of(3, 1, close=True)
    window.advance(0.0, PATIENCE)
    saved = json.loads(json.dumps(window.saved()))
    other = Window("run", "run")
    other.restore(saved)
    assert not other.finish()
    other.advance(0.0, PATIENCE)
    other.take(chunk(0, build_run(3, 1)[0], again=True), 0.0)
    assert other.finish()
