"""Ledger files are found and followed while they are written: each whole line is given once."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from accumaudit.ledger.sources import find_runs
from accumaudit.service import cursor, following
from accumaudit.service.cursor import GIVEN_UP
from accumaudit.service.following import Limits
from accumaudit.testing.records import write_run
from tests.followed import NAME, Watched, append, file_of, given_in, read_by, three_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return three_lines(tmp_path / "logs")


@pytest.fixture
def watched(path: Path) -> Watched:
    return read_by(path.parents[2])


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

    def test_file_systems_may_have_no_inodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files are told apart by their names then."""
        look = following._status
        for rank in range(3):
            append(file_of(tmp_path, rank), b"line\n")

        def status(path: str) -> os.stat_result:
            fields = list(look(path))
            return os.stat_result([*fields[:1], 0, *fields[2:]])

        monkeypatch.setattr(following, "_status", status)
        watched = Watched(tmp_path)
        assert len(watched.lines()) == 3
        append(file_of(tmp_path, 1), b"next\n")
        assert watched.lines() == [("rank-00/00001.aaaa.jsonl", 2, b"next")]

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
        counts = (400, 300, 200, 40)
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
