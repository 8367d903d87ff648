"""Bad input gets a message that says what, where and what to do; a good record is never lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from accumaudit.cli import main
from accumaudit.ledger.schema import SCHEMA_VERSION, UPDATE_FIELDS
from tests.records import to_line, write_run

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

UPDATES = 4


@dataclass(frozen=True)
class Checked:
    status: int
    stderr: str
    report: dict[str, Any]

    @property
    def run(self) -> dict[str, Any]:
        (run,) = self.report["runs"]
        assert isinstance(run, dict)
        return run

    def verdict(self, code: str) -> dict[str, Any]:
        (verdict,) = (one for one in self.run["verdicts"] if one["code"] == code)
        assert isinstance(verdict, dict)
        return verdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", UPDATES)


def check(*paths: Path) -> Checked:
    """Audit as JSON; a traceback, a broken rule or anything else than the three statuses is a failure."""
    result = CliRunner().invoke(main, ["check", "--format", "json", *map(str, paths)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (0, 1, 2)
    report = json.loads(result.stdout) if result.stdout else {}
    assert not report or report["summary"]["broken"] == 0, [
        verdict for one in report["runs"] for verdict in one["verdicts"] if verdict["status"] == "broken"
    ]
    return Checked(result.exit_code, result.stderr, report)


def refused(*paths: Path) -> str:
    """The message where nothing could be read."""
    checked = check(*paths)
    assert (checked.status, checked.report) == (2, {})
    assert checked.stderr.startswith("Error: ")
    assert checked.stderr.count("\n") == 1
    return checked.stderr


def rank_file(run: Path, rank: int = 0) -> Path:
    return run / "rank-00" / f"{rank:05d}.aaaa.jsonl"


def rewrite(file: Path, change: Callable[[dict[str, Any]], None], kind: str = "update") -> None:
    """Change the records of one kind."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        if record["record"] == kind:
            change(record)
    file.write_text("".join(to_line(record) for record in records))


class TestNothingToRead:
    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        text = refused(tmp_path / "nowhere")
        assert f"{tmp_path}/nowhere: no such file or folder; give the folder of a run" in text

    def test_one_of_several_paths_does_not_exist(self, run: Path, tmp_path: Path) -> None:
        assert "nowhere: no such file" in refused(run, tmp_path / "nowhere")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        text = refused(tmp_path)
        assert f"{tmp_path}: no log below this folder" in text
        assert "accumaudit.attach" in text

    def test_an_empty_file(self, tmp_path: Path) -> None:
        file = tmp_path / "empty.jsonl"
        file.touch()
        assert str(file) in refused(file)

    @pytest.mark.parametrize(
        "content",
        [
            b"Dear diary\n",
            b"\x89PNG\r\n\x1a\n\x00\x00\x00",
            b'{"step": 1, "loss": 2.5}\n',
            b"[1, 2]\n",
            b"\x1f\x8bnot gzip",
            b"PAR1",
        ],
    )
    def test_a_file_that_is_no_log(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "other.jsonl"
        file.write_bytes(content)
        text = refused(file)
        assert str(file) in text
        assert ";" in text, "it says what to do"

    def test_a_newer_schema(self, run: Path) -> None:
        for rank in (0, 1):
            rewrite(rank_file(run, rank), lambda record: record.update(schema=SCHEMA_VERSION + 1), "run")
        text = refused(run)
        assert f"version {SCHEMA_VERSION + 1} of the schema" in text
        assert "update accumaudit" in text


class TestDamagedLines:
    def test_a_torn_last_line(self, run: Path) -> None:
        file = rank_file(run)
        whole = file.read_text().splitlines(keepends=True)
        file.write_text("".join(whole[:-1]) + whole[-1][:40])
        checked = check(run)
        assert checked.run["attempts"] == UPDATES
        (line,) = checked.run["unreadable"]
        assert (line["file"], line["line"]) == (str(file), len(whole))
        assert f"warning: {file}:{len(whole)}: " in checked.stderr
        assert "the line was left out" in checked.stderr

    def test_binary_junk_in_the_middle(self, run: Path) -> None:
        file = rank_file(run, 1)
        whole = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([*whole[:2], b"\x00\xff\xfe{]\x1b[2J\n", *whole[2:]]))
        checked = check(run)
        assert checked.status == 0
        assert checked.run["attempts"] == UPDATES
        assert [line["line"] for line in checked.run["unreadable"]] == [3]
        assert "\x1b" not in checked.stderr

    def test_many_bad_lines_are_counted(self, run: Path) -> None:
        with rank_file(run).open("a") as file:
            file.writelines("junk\n" for _ in range(20))
        checked = check(run)
        assert len(checked.run["unreadable"]) == 20
        assert checked.stderr.count("junk") <= 5
        assert "warning: 15 more lines were left out" in checked.stderr

    def test_an_example_names_the_right_line_after_bad_ones(self, run: Path) -> None:
        file = rank_file(run)
        rewrite(file, lambda record: record.update(learning_rate=0.5))
        whole = file.read_text().splitlines(keepends=True)
        file.write_text("".join([whole[0], "junk\n", "\n", *whole[1:]]))
        example = check(run).verdict("ACC603")["finding"]["examples"][0]
        assert example["file"] == str(file)
        line = file.read_text().splitlines()[example["line"] - 1]
        assert json.loads(line)["attempt_id"] == example["attempt_id"]


class TestStrangeRecords:
    def test_lists_of_different_lengths(self, run: Path) -> None:
        rewrite(rank_file(run), lambda record: record.update(loss_weight=[0.5], samples=[]))
        checked = check(run)
        assert checked.run["attempts"] == UPDATES
        assert checked.verdict("ACC104")["status"] == "not_checked"

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_no_float_is_finite(self, run: Path, value: str) -> None:
        floats = {field.name: field.type for field in UPDATE_FIELDS if "DOUBLE" in field.type}

        def spoil(record: dict[str, Any]) -> None:
            for name in floats.keys() & record.keys():
                record[name] = [value] * len(record[name]) if isinstance(record[name], list) else value

        for rank in (0, 1):
            rewrite(rank_file(run, rank), spoil)
        checked = check(run)
        assert checked.run["attempts"] == UPDATES
        assert checked.run["unreadable"] == []
        assert checked.verdict("ACC803")["reason"].startswith("a cause was found by ACC109")
        assert checked.verdict("ACC104")["status"] == "not_checked"

    def test_every_optional_field_is_null(self, run: Path) -> None:
        optional = [field.name for field in UPDATE_FIELDS if not field.required]
        for rank in (0, 1):
            rewrite(rank_file(run, rank), lambda record: record.update(dict.fromkeys(optional)))
        checked = check(run)
        assert checked.run["attempts"] == UPDATES
        assert checked.report["summary"]["failed"] == 0

    def test_every_field_is_of_a_wrong_type(self, run: Path) -> None:
        optional = [field.name for field in UPDATE_FIELDS if not field.required]
        rewrite(rank_file(run), lambda record: record.update({name: {"a": [1, "x"]} for name in optional}))
        assert check(run).run["attempts"] == UPDATES

    def test_ids_that_go_backward(self, run: Path) -> None:
        def turn(record: dict[str, Any]) -> None:
            record["optimizer_update_id"] = 10 - record["optimizer_update_id"]

        for rank in (0, 1):
            rewrite(rank_file(run, rank), turn)
        checked = check(run)
        assert checked.status == 1
        assert checked.run["attempts"] == UPDATES
        assert checked.verdict("ACC801")["status"] == "failed"


class TestStrangeFolders:
    def test_two_runs_in_one_folder(self, run: Path) -> None:
        """A second start from nothing is a run of its own, and neither spoils the other."""
        write_run(run, 3, launch="bbbb", started_at=1_700_100_000.0)
        report = check(run).report
        assert sorted(one["attempts"] for one in report["runs"]) == [3, UPDATES]
        assert len({one["run_id"] for one in report["runs"]}) == 2
        assert report["summary"]["failed"] == 0

    def test_two_runs_of_one_name(self, tmp_path: Path) -> None:
        runs = [write_run(tmp_path / parent / "run", 2) for parent in ("a", "b")]
        report = check(*runs).report
        assert [one["attempts"] for one in report["runs"]] == [2, 2]
        assert len({one["run_id"] for one in report["runs"]}) == 2

    def test_missing_ranks(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", UPDATES, ranks=4)
        rank_file(run, 1).unlink()
        rank_file(run, 3).unlink()
        checked = check(run)
        assert (checked.run["ranks"], checked.run["world_size"]) == ([0, 2], 4)
        assert checked.run["attempts"] == UPDATES
        assert checked.verdict("ACC104")["status"] == "not_checked"
        text = CliRunner().invoke(main, ["check", str(run)]).stdout
        assert "2 ranks of 4 (no record of rank 1, 3)" in text

    def test_a_run_without_an_update(self, tmp_path: Path) -> None:
        checked = check(write_run(tmp_path / "run", 0))
        assert checked.run["attempts"] == 0
        assert {verdict["status"] for verdict in checked.run["verdicts"]} <= {"passed", "not_checked"}

    def test_a_name_with_wildcards(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run[1]*?'\"", UPDATES)
        write_run(tmp_path / "run1", UPDATES)
        assert check(run).run["attempts"] == UPDATES

    def test_the_same_run_given_twice(self, run: Path) -> None:
        checked = check(run, run / "rank-00", rank_file(run))
        assert checked.run["attempts"] == UPDATES
