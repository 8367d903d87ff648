"""Files are cut, replaced, renamed and gone, the service is started anew: no line is lost or given twice."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accumaudit.ledger.writer import LedgerWriter
from accumaudit.service import following
from accumaudit.service.following import Follower
from accumaudit.service.lines import Chunk
from accumaudit.testing.records import build_run, to_line, write_run
from tests.followed import NAME, Given, Watched, append, file_of, given_in, read_by, three_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return three_lines(tmp_path / "logs")


@pytest.fixture
def watched(path: Path) -> Watched:
    return read_by(path.parents[2])


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

    def test_a_file_that_was_emptied_says_so_at_once_and_once(self, watched: Watched, path: Path) -> None:
        watched.save()
        path.write_bytes(b"")
        (chunk,) = watched.chunks()
        assert (chunk.begins_anew, chunk.lines) == (True, ())
        watched.save()
        watched.restart()
        assert watched.chunks() == []

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
        append(path, b" it\nfive is torn")
        assert watched.lines() == [(NAME, 4, b"four it")]

    def test_a_file_that_was_replaced_is_read_from_its_beginning(self, watched: Watched, path: Path) -> None:
        """Even where what lies just before the place is the same."""
        end = b"the same end of two files" * 4 + b"\n"
        append(path, end)
        assert watched.lines() == [(NAME, 4, end[:-1])]
        other = path.with_suffix(".new")
        other.write_bytes(b"eno\ntwo\nthree\n" + end + b"five\nsix is torn")
        other.replace(path)
        (chunk,) = watched.chunks()
        assert chunk.begins_anew
        assert [line.number for line in chunk.lines] == [1, 2, 3, 4, 5]

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
        path.with_name("00000.aaaa.jsonl.1").rename(path.with_name("00000.aaaa.jsonl.2"))
        lines = watched.lines() + watched.lines()
        assert lines == [(NAME + ".2", 5, b"five")]
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

    @settings(max_examples=60, deadline=None)
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
                seen += watched.lines(60)  # a file is known by its inode or its name, not without both
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
