"""Ledger files are followed while they are written: each whole line is given once, whatever happens."""

from __future__ import annotations

import itertools
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accumaudit.ledger.sources import find_runs
from accumaudit.ledger.writer import LedgerWriter
from accumaudit.service import cursor, following
from accumaudit.service.cursor import GIVEN_UP
from accumaudit.service.following import Follower, Limits
from accumaudit.service.lines import Chunk
from accumaudit.testing.records import build_run, to_line, write_run

Given = tuple[str, int, bytes]
"""File, number and text of a line."""


class Watched:
    """A folder that is followed by a clock of the test's own."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        self.limits = Limits(**limits)
        self.now = 0.0
        self.store: dict[str, Any] = {}
        self.follower = self._start()

    def _start(self) -> Follower:
        return Follower(self.folder, self.store, self.limits, lambda: self.now)

    def chunks(self, seconds: float = 5.0) -> list[Chunk]:
        """What one turn gives after some seconds."""
        self.now += seconds
        return self.follower.turn()

    def lines(self, seconds: float = 5.0) -> list[Given]:
        """The new lines of one turn."""
        return given_in(self.chunks(seconds))

    def all_lines(self) -> list[Given]:
        """The new lines of as many turns as they take."""
        found = self.lines()
        while not self.follower.caught_up:
            found += self.lines()
        return found

    def save(self) -> None:
        for file, place in self.follower.changes().items():
            if place is None:
                del self.store[file]
            else:
                self.store[file] = place
        self.follower.saved()

    def restart(self) -> None:
        """Another process of the service goes on from what was saved."""
        self.follower = self._start()


def given_in(chunks: list[Chunk], *, again: bool = False) -> list[Given]:
    """The lines of chunks, either the new ones or those that are given again."""
    return [(c.file, line.number, line.text) for c in chunks if c.again == again for line in c.lines]


def file_of(folder: Path, rank: int = 0) -> Path:
    return folder / "rank-00" / f"{rank:05d}.aaaa.jsonl"


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of three lines, of run `a` below the folder that is watched."""
    path = file_of(tmp_path / "logs" / "a")
    append(path, b"one\ntwo\nthree\n")
    return path


@pytest.fixture
def watched(path: Path) -> Watched:
    """That folder; the lines have been read."""
    watched = Watched(path.parents[2])
    assert [text for _, _, text in watched.lines()] == [b"one", b"two", b"three"]
    return watched


NAME = "a/rank-00/00000.aaaa.jsonl"


class TestFinding:
    def test_the_runs_are_those_that_check_finds(self, tmp_path: Path) -> None:
        """Hidden folders, what lies too deep, and what lies in a run's folder are passed over by both."""
        folders = [
            "one",
            "two/deep",
            "deep/1/2/3",
            "deep/1/2/3/too-deep",
            ".hidden",
            "one/checkpoints",
            "two/.x",
        ]
        for folder in folders:
            write_run(tmp_path / folder, updates=1, ranks=2)
        (tmp_path / "empty" / "rank-00").mkdir(parents=True)
        (tmp_path / "one" / "notes.txt").write_text("no log\n")
        (tmp_path / "linked").symlink_to(tmp_path / "one", target_is_directory=True)
        (tmp_path / "circle").symlink_to(tmp_path, target_is_directory=True)
        runs, _ = find_runs([tmp_path])
        expected = {
            (Path(run.path).relative_to(tmp_path).as_posix(), file.path) for run in runs for file in run.files
        }
        chunks = Watched(tmp_path).chunks()
        assert {(chunk.run, tmp_path / chunk.file) for chunk in chunks} == expected
        assert {run for run, _ in expected} == {"one", "two/deep", "deep/1/2/3"}

    def test_a_run_may_be_the_folder_itself_and_a_folder_may_be_a_rank(self, tmp_path: Path) -> None:
        write_run(tmp_path, updates=1, ranks=1)
        (chunk,) = Watched(tmp_path).chunks()
        assert (chunk.run, chunk.file) == (".", "rank-00/00000.aaaa.jsonl")
        (chunk,) = Watched(tmp_path / "rank-00").chunks()
        assert (chunk.run, chunk.file) == (".", "00000.aaaa.jsonl")

    def test_a_file_that_comes_later_is_found(self, watched: Watched, path: Path) -> None:
        append(file_of(path.parents[2] / "b", rank=7), b"later\n")
        assert watched.lines() == [("b/rank-00/00007.aaaa.jsonl", 1, b"later")]

    def test_a_link_to_a_file_that_is_followed_gives_nothing_twice(
        self, watched: Watched, path: Path
    ) -> None:
        path.with_name("hard.jsonl").hardlink_to(path)
        path.with_name("soft.jsonl").symlink_to(path)
        append(path, b"four\n")
        assert watched.lines() == [(NAME, 4, b"four")]
        assert watched.lines() == []

    def test_names_that_are_no_text_are_passed_over(self, watched: Watched, path: Path) -> None:
        append(path.with_name("no-text-\udcff.jsonl"), b"lost\n")
        append(path.with_name("new\nline <b>.jsonl"), b"read\n")
        assert watched.lines() == [("a/rank-00/new\nline <b>.jsonl", 1, b"read")]

    def test_files_beyond_the_limit_are_left_out_and_counted(self, tmp_path: Path) -> None:
        for rank in range(5):
            append(file_of(tmp_path / "a", rank), b"line\n")
        watched = Watched(tmp_path, files=3)
        assert len(watched.lines()) == 3
        assert watched.follower.files_left_out == 2
        assert watched.follower.trouble == "2 files beyond 3 are left out"


class TestLines:
    def test_a_torn_line_waits_for_its_end(self, watched: Watched, path: Path) -> None:
        for part in (b"fo", b"u", b"r"):
            append(path, part)
            assert watched.lines() == []
            assert watched.follower.caught_up
        append(path, b"\nfive\nsi")
        assert watched.lines() == [(NAME, 4, b"four"), (NAME, 5, b"five")]

    def test_blank_lines_are_counted_and_not_given(self, watched: Watched, path: Path) -> None:
        append(path, b"\n  \t\r\n\x0b\nseven\n")
        assert watched.lines() == [(NAME, 7, b"seven")]

    def test_garbage_is_given_as_it_is(self, watched: Watched, path: Path) -> None:
        garbage = [b"\x00" * 5000, b"\xff\xfe\x80", b'{"record":', b"[" * 3000, bytes(range(11, 256))]
        append(path, b"\n".join(garbage) + b"\n")
        assert watched.lines() == [(NAME, number, text) for number, text in enumerate(garbage, 4)]

    def test_a_line_that_is_too_long_costs_that_line(
        self, watched: Watched, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is given up as soon as it is too long, once, also where the service starts anew in its midst."""
        monkeypatch.setattr(cursor, "LONGEST", 1000)
        watched.limits = Limits(file_bytes=300)
        watched.restart()
        append(path, b"four\n" + b"x" * 2000)
        assert watched.all_lines()[3:] == [(NAME, 4, b"four"), (NAME, 5, GIVEN_UP)]
        watched.save()
        append(path, b"x" * 2000)
        watched.restart()
        assert watched.all_lines() == []
        append(path, b"x\nsix\n")
        assert watched.all_lines() == [(NAME, 6, b"six")]
        append(path, b"y" * 1001 + b"\n" + b"z" * 1000 + b"\n")
        assert watched.all_lines() == [(NAME, 7, GIVEN_UP), (NAME, 8, b"z" * 1000)]

    def test_a_line_without_an_end_takes_no_memory(self, watched: Watched, path: Path) -> None:
        os.truncate(path, 64 << 20)
        tracemalloc.start()
        try:
            assert watched.all_lines() == [(NAME, 4, GIVEN_UP)]
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        append(path, b"\nfive\n")
        assert watched.lines() == [(NAME, 5, b"five")]

    def test_no_turn_gives_more_than_its_share(self, tmp_path: Path) -> None:
        """A large file does not keep the others waiting, and all of them are read in the end."""
        counts = (400, 3, 4, 40)
        for rank, count in enumerate(counts):
            append(file_of(tmp_path / "a", rank), b"nine byte\n" * count)
        watched = Watched(tmp_path, file_bytes=100, turn_bytes=250)
        turns: list[list[str]] = []
        while not watched.follower.caught_up:
            turns.append([file for file, _, _ in watched.lines()])
        names = [f"a/rank-00/{rank:05d}.aaaa.jsonl" for rank in range(4)]
        assert max(map(len, turns)) == 25
        assert max(files.count(name) for files in turns for name in names) == 10
        assert [sum(files.count(name) for files in turns) for name in names] == list(counts)
        assert all(names[rank] in turns[0] + turns[1] for rank in range(4))
        assert watched.follower.behind_bytes == 0
        assert watched.follower.bytes == 10 * sum(counts)

    def test_short_lines_are_bounded_in_number(self, tmp_path: Path) -> None:
        append(file_of(tmp_path), b"{}\n" * 20_000)
        watched = Watched(tmp_path)
        assert [len(watched.lines()) for _ in range(4)] == [8192, 8192, 20_000 - 2 * 8192, 0]


class TestRestarts:
    def test_what_was_read_is_not_new_again(self, watched: Watched, path: Path) -> None:
        watched.save()
        append(path, b"four\n")
        watched.restart()
        chunks = watched.chunks()
        assert given_in(chunks) == [(NAME, 4, b"four")]
        assert given_in(chunks, again=True) == [(NAME, 1, b"one"), (NAME, 2, b"two"), (NAME, 3, b"three")]
        assert watched.follower.bytes == len(b"four\n")

    def test_what_was_not_saved_is_new_again(self, watched: Watched, path: Path) -> None:
        watched.save()
        append(path, b"four\n")
        assert watched.lines() == [(NAME, 4, b"four")]
        watched.restart()
        assert watched.lines() == [(NAME, 4, b"four")]

    def test_lines_that_are_needed_come_again_with_those_that_begin_launches(self, tmp_path: Path) -> None:
        """Two launches append to one file; before the needed lines, only their run lines come."""
        records = [*build_run(updates=30, ranks=1)[0], *build_run(updates=30, ranks=1)[0]]
        texts = [to_line(record).strip().encode() for record in records]
        watched = Watched(tmp_path)
        for text in texts:
            append(file_of(tmp_path), text + b"\n")
            watched.lines()
        watched.follower.keep_from("rank-00/00000.aaaa.jsonl", 50)
        watched.follower.keep_from("rank-00/00000.aaaa.jsonl", 20)
        watched.save()
        watched.restart()
        again = given_in(watched.chunks(), again=True)
        assert [number for _, number, _ in again] == [1, 33, *range(50, 65)]
        assert [text for _, number, text in again] == [texts[number - 1] for _, number, _ in again]

    def test_the_last_line_comes_again_where_none_is_needed(self, watched: Watched) -> None:
        watched.follower.keep_from(NAME, 99)
        watched.save()
        watched.restart()
        assert given_in(watched.chunks(), again=True) == [(NAME, 1, b"one"), (NAME, 3, b"three")]

    def test_many_needed_lines_come_in_turns_and_before_the_new_ones(self, tmp_path: Path) -> None:
        append(file_of(tmp_path), b"old\n" * 500)
        watched = Watched(tmp_path, file_bytes=100)
        watched.all_lines()
        watched.save()
        append(file_of(tmp_path), b"new\n" * 10)
        watched.restart()
        order = []
        while not watched.follower.caught_up:
            order += [(chunk.again, line.number) for chunk in watched.chunks() for line in chunk.lines]
        assert order == [(True, number) for number in range(1, 501)] + [(False, n) for n in range(501, 511)]

    def test_only_what_has_changed_is_to_be_saved(self, watched: Watched, path: Path) -> None:
        append(file_of(path.parents[2] / "b"), b"line\n")
        watched.lines()
        assert set(watched.follower.changes()) == {NAME, "b/rank-00/00000.aaaa.jsonl"}
        watched.save()
        assert watched.follower.changes() == {}
        append(path, b"four\n")
        watched.lines()
        assert set(watched.follower.changes()) == {NAME}
        assert set(watched.follower.changes()) == {NAME}  # saving may fail, and is tried again

    def test_a_place_that_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no place in a file"):
            Follower(tmp_path, {NAME: {"offset": 1}})

    @settings(max_examples=60, deadline=None)
    @given(
        steps=st.lists(
            st.one_of(
                st.binary(max_size=12),
                st.sampled_from([b"\n", b"a\nb\n", b"{}", b"x" * 40, "turn", "save", "restart", "keep"]),
            ),
            max_size=25,
        ),
        most=st.integers(1, 50),
    )
    def test_every_line_is_counted_once_however_it_is_written(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str], most: int
    ) -> None:
        """What was given up to the last saving, and since then by the last process, are the file's lines."""
        folder = tmp_path_factory.mktemp("logs")
        watched = Watched(folder, file_bytes=most)
        path, name = file_of(folder), "rank-00/00000.aaaa.jsonl"
        append(path, b"")
        counted: list[Given] = []
        saved = 0
        for step in [*steps, "save", "restart"]:
            if isinstance(step, bytes):
                append(path, step)
            elif step == "turn":
                counted += watched.lines()
            elif step == "save":
                watched.save()
                saved = len(counted)
            elif step == "keep":
                watched.follower.keep_from(name, counted[-1][1] if counted else 1)
            else:
                watched.restart()
                counted = counted[:saved]
        counted += watched.all_lines()
        texts = path.read_bytes().split(b"\n")[:-1]
        assert counted == [(name, number, text) for number, text in enumerate(texts, 1) if text.strip()]


class TestFaults:
    def test_a_file_that_was_cut_is_read_from_its_beginning(self, watched: Watched, path: Path) -> None:
        path.write_bytes(b"anew\n")
        (chunk,) = watched.chunks()
        assert chunk.begins_anew
        assert given_in([chunk]) == [(NAME, 1, b"anew")]
        append(path, b"next\n")
        (chunk,) = watched.chunks()
        assert not chunk.begins_anew

    def test_a_file_that_was_emptied_says_so_at_once(self, watched: Watched, path: Path) -> None:
        path.write_bytes(b"")
        (chunk,) = watched.chunks()
        assert (chunk.begins_anew, chunk.lines) == (True, ())

    def test_a_file_that_was_cut_and_has_grown_since_is_noticed(self, watched: Watched, path: Path) -> None:
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(b"another first line\nand a second\n")
        (chunk,) = watched.chunks()
        assert chunk.begins_anew
        assert [line.text for line in chunk.lines] == [b"another first line", b"and a second"]

    def test_a_file_that_was_cut_while_the_service_was_away_is_noticed(
        self, watched: Watched, path: Path
    ) -> None:
        watched.save()
        watched.restart()
        path.write_bytes(b"o\n")
        (chunk,) = watched.chunks()
        assert (chunk.begins_anew, chunk.again) == (True, False)

    def test_a_file_that_was_written_over_in_place_is_noticed(self, watched: Watched, path: Path) -> None:
        """Its size and its name are the same."""
        size = path.stat().st_size
        path.write_bytes(b"eno\nowt\neerht\n")
        assert path.stat().st_size == size
        (chunk,) = watched.chunks(30)
        assert chunk.begins_anew
        assert [line.text for line in chunk.lines] == [b"eno", b"owt", b"eerht"]

    def test_a_torn_line_may_be_cut_off_and_written_anew(self, watched: Watched, path: Path) -> None:
        append(path, b"four is torn")
        assert watched.lines() == []
        os.truncate(path, path.stat().st_size - 8)
        assert watched.lines() == []
        append(path, b" is whole\n")
        assert watched.lines() == [(NAME, 4, b"four is whole")]

    def test_a_file_that_was_replaced_is_read_from_its_beginning(self, watched: Watched, path: Path) -> None:
        """Even where what lies just before the place is the same."""
        other = path.with_suffix(".new")
        other.write_bytes(b"eno\ntwo\nthree\nfour\n" + b"x" * 100)
        other.replace(path)
        (chunk,) = watched.chunks()
        assert chunk.begins_anew
        assert [line.number for line in chunk.lines] == [1, 2, 3, 4]

    def test_a_ledger_that_was_deleted_while_it_is_written_begins_anew(self, tmp_path: Path) -> None:
        writer = LedgerWriter(file_of(tmp_path), {"record": "run", "launch": "aaaa", "rank": 0})
        writer.submit(lambda: {"record": "update", "time": 1.5}, urgent=True)
        watched = Watched(tmp_path)
        lines: list[Given] = []
        while len(lines) < 2:
            lines += watched.lines()
        writer.path.unlink()
        writer.submit(lambda: {"record": "update", "time": 2.5})
        writer.close()
        chunks = watched.chunks()
        assert [chunk.begins_anew for chunk in chunks] == [True]
        assert [text for _, _, text in given_in(chunks)] == writer.path.read_bytes().splitlines()

    def test_a_copy_with_more_in_it_goes_on_where_the_file_ended(self, watched: Watched, path: Path) -> None:
        """Programs that synchronise folders replace a file by a longer one."""
        for restarted in (False, True):
            copy = path.with_suffix(".copy")
            copy.write_bytes(path.read_bytes() + b"more\n")
            copy.replace(path)
            if restarted:
                watched.save()
                watched.restart()
            assert [text for _, _, text in watched.lines()] == [b"more"]

    def test_a_file_that_was_renamed_is_followed_and_its_successor_too(
        self, watched: Watched, path: Path
    ) -> None:
        append(path, b"four\n")
        path.rename(path.with_name("00000.aaaa.jsonl.1"))
        append(path, b"first of another\n")
        lines = watched.lines() + watched.lines()
        assert sorted(lines) == [(NAME, 1, b"first of another"), (NAME + ".1", 4, b"four")]
        append(path.with_name("00000.aaaa.jsonl.1"), b"five\n")
        path.rename(path.with_name("00000.aaaa.1.jsonl"))
        lines = watched.lines() + watched.lines()
        assert lines == [(NAME + ".1", 5, b"five")]
        watched.save()
        watched.restart()
        assert watched.lines() == []

    def test_a_file_that_was_renamed_while_the_service_was_away_is_not_read_twice(
        self, watched: Watched, path: Path
    ) -> None:
        watched.save()
        watched.restart()
        path.rename(path.with_name("00000.aaaa.1.jsonl"))
        append(path, b"first of another\n")
        assert watched.lines() + watched.lines() == [(NAME, 1, b"first of another")]

    def test_a_folder_may_go_and_come_back(self, watched: Watched, tmp_path: Path) -> None:
        """Nothing is read twice, and what was written meanwhile is read then."""
        logs, away = tmp_path / "logs", tmp_path / "away"
        logs.rename(away)
        for _ in range(3):
            assert watched.lines() == []
        assert (
            watched.follower.trouble
            == f"{logs}: cannot be read (No such file or directory); it is tried again"
        )
        assert watched.follower.behind_bytes == 0
        watched.save()
        watched.restart()
        assert watched.lines() == []
        append(file_of(away / "a"), b"four\n")
        away.rename(logs)
        chunks = watched.chunks() + watched.chunks()
        assert given_in(chunks) == [(NAME, 4, b"four")]
        assert not any(chunk.begins_anew for chunk in chunks)
        assert watched.follower.trouble is None

    @settings(max_examples=100, deadline=None)
    @given(
        steps=st.lists(
            st.sampled_from(["write", "tear", "turn", "cut", "copy", "replace", "rename", "go", "restart"]),
            max_size=20,
        )
    )
    def test_faults_in_any_order_give_no_line_twice(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
    ) -> None:
        """And in the end every line has been given that is still there."""
        logs = tmp_path_factory.mktemp("home") / "logs"
        watched = Watched(logs, file_bytes=30)
        path, numbers, seen = file_of(logs), itertools.count(), []
        append(path, b"")
        for step in [*steps, "turn"]:
            if step == "write":
                append(path, b"%d writes\n%d more\n" % (next(numbers), next(numbers)))
            elif step == "tear":
                append(path, b"%d is torn" % next(numbers))
            elif step == "turn":
                seen += watched.all_lines()
            elif step == "cut":
                path.write_bytes(b"%d is first\n" % next(numbers))
            elif step in ("copy", "replace"):
                other = path.with_suffix(".other")
                other.write_bytes(path.read_bytes() if step == "copy" else b"%d replaces\n" % next(numbers))
                other.replace(path)
                seen += watched.lines()
            elif step == "rename":
                path.rename(path.with_name(f"{next(numbers)}.jsonl"))
                append(path, b"")
            elif step == "go":
                logs.rename(logs.with_name("away"))
                seen += watched.lines()
                logs.with_name("away").rename(logs)
            else:
                watched.save()
                watched.restart()
        seen += watched.all_lines() + watched.all_lines()
        texts = [text for _, _, text in seen]
        assert len(set(texts)) == len(texts)
        there = [line for one in path.parent.iterdir() for line in one.read_bytes().split(b"\n")[:-1]]
        assert set(there) <= set(texts)

    def test_a_folder_may_be_there_only_later(self, tmp_path: Path) -> None:
        watched = Watched(tmp_path / "logs")
        assert watched.lines() == []
        assert not watched.follower.caught_up
        write_run(tmp_path / "logs" / "a", updates=1, ranks=1)
        assert len(watched.lines()) == 3

    def test_a_file_that_is_gone_for_long_is_forgotten(self, watched: Watched, path: Path) -> None:
        watched.save()
        path.unlink()
        watched.lines()
        watched.lines(following.FORGET + 100)
        assert watched.follower.changes() == {NAME: None}
        watched.save()
        assert watched.store == {}

    def test_a_file_that_cannot_be_read_is_counted_and_tried_again(
        self, watched: Watched, path: Path
    ) -> None:
        """A pipe in its place does not stop the service; the others are read."""
        path.rename(path.with_name(".kept"))
        os.mkfifo(path)
        append(file_of(path.parents[2] / "b"), b"line\n")
        assert len(watched.lines()) == 1
        assert watched.follower.read_errors == 1
        assert watched.follower.caught_up
        assert (
            watched.follower.trouble == f"a file cannot be read ({NAME}: no regular file); it is tried again"
        )
        path.with_name(".kept").replace(path)
        append(path, b"four\n")
        assert watched.lines(60) == [(NAME, 4, b"four")]
        assert watched.follower.trouble is None

    def test_a_folder_that_cannot_be_read_is_counted_once(
        self, watched: Watched, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And another time if it could be read in between."""
        scandir, closed = os.scandir, str(path.parents[2] / "closed")
        (path.parents[2] / "closed").mkdir()

        def refusing(folder: str) -> Any:
            if folder == closed:
                raise PermissionError(13, "Permission denied")
            return scandir(folder)

        for expected in (1, 2):
            with monkeypatch.context() as patched:
                patched.setattr(os, "scandir", refusing)
                for _ in range(3):
                    append(path, b"line\n")
                    assert len(watched.lines()) == 1
            assert watched.follower.read_errors == expected
            watched.lines()

    def test_an_error_in_the_midst_of_reading_loses_nothing(
        self, watched: Watched, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path.write_bytes(b"anew\nand more\n")
        pread, failures = os.pread, itertools.count()
        chunks: list[Chunk] = []
        failure = 0
        while not chunks:
            failure = next(failures)
            left = iter(range(failure))

            def broken(fd: int, length: int, offset: int, left: Iterator[int] = left) -> bytes:
                if next(left, None) is None:
                    raise OSError(5, "Input/output error")
                return pread(fd, length, offset)

            with monkeypatch.context() as patched:
                patched.setattr(os, "pread", broken)
                chunks = watched.chunks(60)
        assert failure > 2
        assert [(chunk.begins_anew, len(chunk.lines)) for chunk in chunks] == [(True, 2)]
        assert watched.follower.read_errors == failure

    def test_clocks_that_jump_change_nothing(
        self, watched: Watched, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither those of files nor that of the machine."""
        for number, seconds in enumerate((4e9, 0.0, -1e6, 1.7e9), 4):
            monkeypatch.setattr(time, "time", lambda seconds=seconds: seconds)
            append(path, b"line\n")
            os.utime(path, (seconds, seconds))
            assert watched.lines() == [(NAME, number, b"line")]
        os.utime(path, (0, 0))
        assert watched.lines() == []


class TestBeats:
    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The files that are looked at."""
        seen: list[str] = []
        look = following._status

        def status(path: str) -> os.stat_result:
            seen.append(path)
            return look(path)

        monkeypatch.setattr(following, "_status", status)
        return seen

    def test_silent_files_are_looked_at_less_and_less_often(
        self, watched: Watched, path: Path, looks: list[str]
    ) -> None:
        per_minute = []
        for _ in range(3):
            looks.clear()
            for _ in range(60):
                watched.lines(1.0)
            per_minute.append(len(looks))
        assert 6 <= per_minute[2] <= 13
        assert per_minute[0] > per_minute[2]
        append(path, b"four\n")
        assert [line for _ in range(11) for line in watched.lines(1.0)] == [(NAME, 4, b"four")]
        looks.clear()
        for number in range(20):
            append(path, b"line\n")
            assert len(watched.lines(1.0)) == 1, number
        assert len(looks) == 20

    def test_the_looks_at_many_files_are_spread_over_time(self, tmp_path: Path, looks: list[str]) -> None:
        for rank in range(100):
            append(file_of(tmp_path / "a", rank), b"line\n")
        watched = Watched(tmp_path)
        for _ in range(100):
            watched.lines(1.0)
        counts = []
        for _ in range(20):
            looks.clear()
            watched.lines(1.0)
            counts.append(len(looks))
        assert max(counts) < 40

    def test_files_at_rest_are_looked_at_seldom_and_wake(
        self, watched: Watched, path: Path, looks: list[str]
    ) -> None:
        watched.follower.rest("a")
        assert (watched.follower.files_followed, watched.follower.files_at_rest) == (0, 1)
        watched.save()
        watched.restart()
        assert len(given_in(watched.chunks(), again=True)) == 3
        looks.clear()
        for _ in range(300):
            assert watched.lines(1.0) == []
        assert 9 <= len(looks) <= 21
        assert watched.follower.files_at_rest == 1
        append(path, b"four\n")
        assert [line for _ in range(31) for line in watched.lines(1.0)] == [(NAME, 4, b"four")]
        assert (watched.follower.files_followed, watched.follower.files_at_rest) == (1, 0)

    def test_a_run_that_was_removed_is_read_from_its_beginning_once_it_is_written_again(
        self, watched: Watched, path: Path
    ) -> None:
        append(path, b"torn")
        watched.lines()
        watched.follower.remove("a")
        watched.save()
        watched.restart()
        assert watched.chunks(60) == []
        assert watched.chunks(60) == []
        append(path, b"\n")
        (chunk,) = watched.chunks(60)
        assert [line.text for line in chunk.lines] == [b"one", b"two", b"three", b"torn"]
        assert watched.follower.files_at_rest == 0
