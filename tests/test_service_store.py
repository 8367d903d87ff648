"""The state of the service is written whole or not at all, belongs to one service, and is kept."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from accumaudit.service.store import Store, StoreError, state_file
from tests.following_service import follow
from tests.test_writer import file_limit

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "one.sqlite"


def loaded(path: Path) -> dict[str, dict[str, Any]]:
    with Store(path) as store:
        return store.load()


def change(path: Path, sql: str) -> None:
    """Do with the file what another program might."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(sql)


def test_what_is_saved_is_there_for_the_next(path: Path) -> None:
    """Values by kind and key; what is not named stays, and None lets go."""
    with Store(path) as store:
        assert store.load() == {}
        store.save({"runs": {"a": {"n": 1}, "<b>\n": [None, 2.5, "x"]}, "places": {"a": 1}})
        store.save({"runs": {"a": {"n": 2}}, "places": {"a": None, "never there": None}})
    assert loaded(path) == {"runs": {"a": {"n": 2}, "<b>\n": [None, 2.5, "x"]}}
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_service_is_refused(path: Path) -> None:
    with Store(path), pytest.raises(StoreError, match="another service holds this state; end it, or give"):
        Store(path)
    Store(path).close()


def test_another_programs_file_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    change(path, "CREATE TABLE theirs (n)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's file; name another with --state"):
        Store(path)
    assert path.read_bytes() == before


def test_the_state_of_another_version_is_refused(path: Path) -> None:
    Store(path).close()
    change(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"its format is 99, not 1.*move the file away to begin anew"):
        Store(path)


@pytest.mark.parametrize("damage", ["text", "page", "value"])
def test_a_damaged_file_is_refused_and_left_alone(path: Path, damage: str) -> None:
    """The message says what to do, and what that costs."""
    with Store(path) as store:
        store.save({"runs": {str(number): "x" * 100 for number in range(500)}})
    if damage == "text":
        path.write_text("no database\n" * 1000)
    elif damage == "page":
        data = bytearray(path.read_bytes())
        data[5000:9000] = bytes(4000)
        path.write_bytes(data)
    else:
        change(path, "UPDATE kept SET value = '{' WHERE key = '7'")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"damaged .*; move the file away to begin anew"):
        loaded(path)
    assert path.read_bytes() == before


def test_a_full_disk_keeps_what_was_saved_before(path: Path) -> None:
    """Nothing of a saving that fails is kept; the same is saved once there is room."""
    more: dict[str, dict[str, Any]] = {
        "runs": {str(number): "x" * 1000 for number in range(100)},
        "places": {"a": None},
    }
    with Store(path) as store:
        store.save({"places": {"a": 1}})
        for _ in range(2):
            with (
                file_limit(path.stat().st_size),
                pytest.raises(StoreError, match=r"cannot be written.*tried again"),
            ):
                store.save(more)
        assert store.load() == {"places": {"a": 1}}
        store.save(more)
    assert loaded(path) == {"runs": more["runs"]}


def test_a_disk_that_is_full_from_the_beginning_is_said_so(path: Path) -> None:
    with (
        file_limit(0),
        pytest.raises(StoreError, match=r"cannot be written .*; name another file with --state"),
    ):
        Store(path)
    assert loaded(path) == {}


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "state.sqlite", tmp_path):
        with pytest.raises(StoreError, match=r"cannot be written \(.*\); name another file with --state"):
            Store(path)


def test_a_state_that_was_deleted_is_not_written_into_nowhere(path: Path) -> None:
    with Store(path) as store:
        path.unlink()
        for _ in range(2):
            with pytest.raises(StoreError, match="deleted or replaced; start the service anew"):
                store.save({"runs": {"a": 1}})
    assert loaded(path) == {}


def test_each_folder_has_a_state_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below XDG_STATE_HOME or the home folder; by whatever way the folder is named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    one = state_file(tmp_path / "logs")
    assert one.parent == tmp_path / "state" / "accumaudit"
    assert state_file(tmp_path / "link") == one
    assert state_file(tmp_path / "other") != one
    for value in ("relative", ""):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_file(tmp_path).parent == Path.home() / ".local" / "state" / "accumaudit"


@contextmanager
def service(folder: Path, state: Path) -> Iterator[IO[str]]:
    """What a process says that follows the folder; it is killed in the midst of it."""
    command = [sys.executable, "-m", "tests.following_service", str(folder), str(state)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


@pytest.mark.slow  # three processes
def test_a_service_that_is_killed_loses_nothing_and_counts_nothing_twice(tmp_path: Path, path: Path) -> None:
    """In the midst of reading, while lines are torn as they are wherever writing takes time."""
    folder = tmp_path / "logs"
    names = [f"a/rank-00/{rank:05d}.aaaa.jsonl" for rank in range(3)]
    (folder / names[0]).parent.mkdir(parents=True)
    numbers = itertools.count(1)
    expected = {name: write(folder / name, [next(numbers)]) for name in names}
    counted = 0
    for _ in range(3):
        with service(folder, path) as said:
            for _ in range(40):
                for name in names:
                    count, total = write(folder / name, [next(numbers) for _ in range(3)])
                    expected[name] = [expected[name][0] + count, expected[name][1] + total]
                assert said.readline() == "saved\n"
        before, counted = counted, sum(count for count, _ in saved(path).values())
        assert before < counted <= sum(count for count, _ in expected.values())
    assert follow(folder, path, forever=False) == expected


def saved(path: Path) -> dict[str, list[int]]:
    with Store(path) as store:
        counts: dict[str, list[int]] = store.load()["counts"]
        return counts


def write(path: Path, numbers: list[int]) -> list[int]:
    """Append a line for each number, in two writes; give how many they are, and their sum."""
    data = b"".join(b"%d\n" % number for number in numbers)
    with path.open("ab", buffering=0) as file:
        file.write(data[:-2])
        file.write(data[-2:])
    return [len(numbers), sum(numbers)]
