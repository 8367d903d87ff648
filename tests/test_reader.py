"""What the reader makes of paths, files and lines: it loses no good record and raises LedgerError alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accumaudit.ledger import loading, recovery
from accumaudit.ledger.reader import Ledger, LedgerError, read_ledger
from accumaudit.ledger.schema import FIELDS, SCHEMA_VERSION
from accumaudit.ledger.sources import Source
from tests.records import Record, build_run, to_line, write_records, write_run
from tests.tables import file_of, line_of, query, rows


class TestPaths:
    def test_a_folder_that_holds_rank_folders_is_one_run(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "gpt", 2, ranks=3)
        with read_ledger([run]) as ledger:
            assert ledger.runs == [("gpt", str(run))]
            assert ledger.unreadable == []
            assert rows(ledger, "SELECT count(*) FROM updates") == [(6,)]
            assert rows(ledger, "SELECT DISTINCT path, format FROM runs") == [(str(run), "ledger")]

    def test_ranks_above_a_thousand_lie_in_other_folders(self, tmp_path: Path) -> None:
        records = build_run(1, 1)[0]
        write_records(
            tmp_path / "run", {rank: [r | {"rank": rank} for r in records] for rank in (0, 1, 1000)}
        )
        assert query(tmp_path / "run", "SELECT rank FROM updates ORDER BY rank") == [(0,), (1,), (1000,)]

    def test_a_folder_of_runs_gives_each(self, tmp_path: Path) -> None:
        for name in ("b", "a", "deep/er/c"):
            write_run(tmp_path / name, 1)
        (tmp_path / "notes.txt").write_text("nothing")
        (tmp_path / ".hidden").mkdir()
        with read_ledger([tmp_path]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == ["a", "b", "c"]

    def test_runs_of_one_name_are_told_apart_by_their_parents(self, tmp_path: Path) -> None:
        for name in ("x/run", "y/run", "other"):
            write_run(tmp_path / name, 1)
        with read_ledger([tmp_path / "x/run", tmp_path / "y/run", tmp_path / "other"]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == ["x/run", "y/run", "other"]

    def test_one_rank_s_file_is_its_run_with_that_rank_alone(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2)
        with read_ledger([file_of(run, 1)]) as ledger:
            assert ledger.runs == [("run", str(run))]
            assert rows(
                ledger, "SELECT DISTINCT rank, complete FROM updates JOIN windows USING (attempt_id)"
            ) == [(1, False)]

    def test_the_files_of_one_run_given_one_by_one_are_one_run(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2)
        with read_ledger([file_of(run, 0), file_of(run, 1)]) as ledger:
            assert ledger.runs == [("run", str(run))]
            assert rows(ledger, "SELECT DISTINCT complete FROM windows") == [(True,)]

    def test_a_file_elsewhere_is_a_run_by_itself(self, tmp_path: Path) -> None:
        together = tmp_path / "both.ranks.jsonl"
        together.write_text("".join(to_line(r) for records in build_run(2).values() for r in records))
        with read_ledger([together]) as ledger:
            assert ledger.runs == [("both.ranks", str(together))]
            assert rows(ledger, "SELECT count(*), bool_and(complete) FROM windows") == [(2, True)]

    def test_a_path_given_twice_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = write_run(tmp_path / "run", 2)
        monkeypatch.chdir(run)
        with read_ledger([Path(), run, run / "rank-00", Path("rank-00") / file_of(run).name]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == ["run"]
            assert rows(ledger, "SELECT count(*) FROM updates") == [(4,)]

    @pytest.mark.parametrize(
        "name", ["a[1]*?", "lr=0.1", "with 'quotes' \"; DROP TABLE x; --", "{a,b}", "ключ", "a\\*b"]
    )
    def test_odd_names_are_names_and_nothing_else(self, tmp_path: Path, name: str) -> None:
        write_run(tmp_path / "a1xy", 5)  # what a[1]*? would match as a pattern
        run = write_run(tmp_path / name, 2, launch="tok'en")
        with read_ledger([run]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == [name]
            assert rows(ledger, "SELECT DISTINCT run_id, launch_token FROM updates") == [(name, "tok'en")]
            assert rows(ledger, "SELECT count(*) FROM windows") == [(2,)]

    def test_a_link_to_a_run_is_the_run(self, tmp_path: Path) -> None:
        write_run(tmp_path / "real", 1)
        (tmp_path / "loop").symlink_to(tmp_path)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with read_ledger([tmp_path / "link", tmp_path]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == ["real"]

    def test_many_files_are_read_as_few(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their lines are brought together first: places, order and what cannot be read stay the same."""
        run = write_run(tmp_path / "run", 3, ranks=loading.GATHERED[0])
        lines = file_of(run, 3).read_bytes().splitlines(keepends=True)
        file_of(run, 3).write_bytes(b"".join([*lines[:2], b"junk\n", *lines[2:-1], lines[-1][:20]]))
        columns = "file, line, place, rank, attempt_id, total_weight"
        sql = f"SELECT {columns} FROM updates JOIN windows USING (attempt_id) ORDER BY place"
        found = []
        for limit in (loading.GATHERED[1], 0):
            monkeypatch.setattr(loading, "GATHERED", (loading.GATHERED[0], limit))
            with read_ledger([run]) as ledger:
                bad = [(one.file, one.line) for one in ledger.unreadable]
                found.append((rows(ledger, sql), rows(ledger, "FROM marks ORDER BY place"), bad))
        assert found[0] == found[1]
        assert len(found[0][0]) == 3 * loading.GATHERED[0]
        assert found[0][2] == [(str(file_of(run, 3)), 3), (str(file_of(run, 3)), 6)]

    def test_the_size_of_each_file_is_asked_for_a_few_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many files there are."""
        asked: list[Source] = []
        size = loading._size

        def counted(source: Source) -> int:
            asked.append(source)
            return size(source)

        monkeypatch.setattr(loading, "_size", counted)
        write_run(tmp_path / "run", 1, ranks=40)
        read_ledger([tmp_path]).close()
        assert len(asked) <= 10 * 40


class TestRefusals:
    """What cannot be audited: the text says what was seen, where, and what to do."""

    def refusal(self, *paths: Path) -> str:
        with pytest.raises(LedgerError) as error:
            read_ledger(list(paths))
        return str(error.value)

    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        assert self.refusal(tmp_path / "nowhere") == (
            f"{tmp_path / 'nowhere'}: no such file or folder; give the folder of a run, or of several"
        )

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "rank-00").mkdir()
        assert self.refusal(tmp_path).startswith(
            f"{tmp_path}: no log below this folder; a run holds rank-00/*.jsonl"
        )

    def test_neither_file_nor_folder(self) -> None:
        assert (
            self.refusal(Path(os.devnull))
            == f"{os.devnull}: neither a file nor a folder; give the folder of a run"
        )

    def test_a_name_that_no_file_can_have(self, tmp_path: Path) -> None:
        assert "not a usable path" in self.refusal(tmp_path / "latin\udce9")

    def test_a_file_that_has_no_record_yet(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").touch()
        assert self.refusal(tmp_path / "x.jsonl") == (
            f"{tmp_path / 'x.jsonl'}: no record of a ledger (it is empty so far); "
            "give what accumaudit.attach wrote"
        )

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"{name: 1.2}\n", "not JSON (Expecting property name enclosed in double quotes, column 2)"),
            (b'{"name": 1.2}\n', "no field `record`, so it is no line of a ledger"),
            (b"\n\n  [1, 2]\n", "not a JSON object: [1, 2]"),
            (b"\xff\xfe{\x00}\x00\n", "not text in UTF-8"),
            (bytes(range(256)) * 40, "not JSON (Expecting value, column 1)"),
            (b'{"record": "metric"}\n', 'unknown kind of record: "metric"'),
            (b"PAR1 is how a table would begin", "no record of a ledger"),
            (b"\x1f\x8b is how gzip would begin", "no record of a ledger"),
            (b"\x28\xb5\x2f\xfd is how zstd would begin", "no record of a ledger"),
        ],
    )
    def test_a_file_named_as_a_ledger_that_is_none(self, tmp_path: Path, content: bytes, why: str) -> None:
        path = tmp_path / "train.jsonl"
        path.write_bytes(content)
        assert why in self.refusal(path)

    def test_one_such_path_among_others(self, tmp_path: Path) -> None:
        (tmp_path / "train.log").write_text("step 1\n")
        run = write_run(tmp_path / "run", 1)
        assert str(tmp_path / "train.log") in self.refusal(run, tmp_path / "train.log")

    def test_a_newer_schema(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, schema=SCHEMA_VERSION + 1)
        assert self.refusal(run) == (
            f"{file_of(run)}: written in version {SCHEMA_VERSION + 1} of the schema, "
            f"of which this accumaudit reads {SCHEMA_VERSION} and older; update accumaudit"
        )


class TestLines:
    """A bad line costs that line and is reported with its place; the good ones stay."""

    def read(self, tmp_path: Path, edit: Callable[[list[bytes]], list[bytes]]) -> Ledger:
        run = write_run(tmp_path / "run", 4, ranks=1)
        path = file_of(run)
        path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
        return read_ledger([run])

    def kept(self, ledger: Ledger) -> list[int]:
        return [attempt for (attempt,) in rows(ledger, "SELECT attempt_id FROM updates ORDER BY attempt_id")]

    def places(self, ledger: Ledger) -> list[tuple[int | None, str]]:
        return [(one.line, one.why) for one in ledger.unreadable]

    def test_a_torn_last_line(self, tmp_path: Path) -> None:
        with self.read(tmp_path, lambda lines: [*lines[:4], lines[4][:100]]) as ledger:
            assert self.kept(ledger) == [1, 2, 3]
            assert self.places(ledger) == [(5, "torn: the file ends inside this record")]

    def test_a_last_line_without_its_end_is_whole(self, tmp_path: Path) -> None:
        with self.read(tmp_path, lambda lines: [*lines[:4], lines[4].rstrip()]) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            assert ledger.unreadable == []

    @pytest.mark.parametrize(
        ("junk", "why"),
        [
            (b"\x00\x01\x02\xff\xfe\n", "not text in UTF-8"),
            (b"\x00" * 1000 + b"\n", "not JSON (Expecting value, column 1)"),
            (b'{"record": "upd\n', "not JSON (Invalid control character at, column 16)"),
            (b'{"record": "update"}\n', "a record `update` without the field `launch`"),
            (b'{"a": 1}{"b": 2}\n', "more than one JSON value in the line"),
            (b'{"record": 7}\n', "unknown kind of record: 7"),
            (b'{"record": ["run"]}\n', 'unknown kind of record: ["run"]'),
            (b'"' + b"x" * 100 + b'"\n', 'not a JSON object: "' + "x" * 39 + "..."),
            (b"null\n", "not a JSON object: null"),
            (b'{"record": "mark", "name": "\\udce9"}\n', "an escape in it is half a character"),
            (b'{"record": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n", "nested too deeply"),
            (b'{"record": "mark", "rank": ' + b"1" * 6000 + b"}\n", "not JSON (Exceeds the limit"),
        ],
    )
    def test_junk_in_the_middle(self, tmp_path: Path, junk: bytes, why: str) -> None:
        with self.read(tmp_path, lambda lines: [*lines[:3], b"\n", junk, *lines[3:]]) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            ((line, reason),) = self.places(ledger)
            assert line == 5
            assert reason.startswith(why)
            assert ledger.unreadable[0].run_id == "run"
            assert ledger.unreadable[0].file == str(file_of(tmp_path / "run"))

    def test_blank_lines_cr_lf_and_a_byte_order_mark_are_no_matter(self, tmp_path: Path) -> None:
        def edit(lines: list[bytes]) -> list[bytes]:
            windows = [line.replace(b"\n", b"\r\n") for line in lines]
            return [b"\xef\xbb\xbf", windows[0], b"\r\n", b" \t \n", b"\x0b\x0c\n", *windows[1:], b"\n\n"]

        with self.read(tmp_path, edit) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            assert ledger.unreadable == []
            file = str(file_of(tmp_path / "run"))
            places = rows(ledger, "SELECT file, line FROM updates ORDER BY attempt_id")
            assert places == [(file, line) for line in (2, 3, 4, 5)]
            assert ledger.locate(file, (3, 1, 2, 99)) == {1: 1, 2: 5, 3: 6, 99: 99}
            assert ledger.locate("elsewhere", [3]) == {3: 3}

    @pytest.mark.parametrize("field", ["rank", "optimizer", "attempt_id"])
    def test_an_update_without_what_joins_it_is_none(self, tmp_path: Path, field: str) -> None:
        missing, wrong = line_of(**{field: ...}), line_of(**{field: {"a": 1}})
        with self.read(tmp_path, lambda lines: [*lines, missing.encode(), wrong.encode()]) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            assert self.places(ledger) == [
                (7, f"a record `update` without the field `{field}`"),
                (8, f'the field `{field}` is {{"a": 1}}, not a BIGINT'),
            ]

    def test_any_other_field_of_a_wrong_type_is_unknown(self, tmp_path: Path) -> None:
        wrong: Record = {f.name: {"wrong": [1]} for f in FIELDS["update"] if not f.required}
        run = write_records(tmp_path / "run", {0: [*build_run(0, 1)[0], build_run(1, 1)[0][1] | wrong]})
        with read_ledger([run]) as ledger:
            assert ledger.unreadable == []
            cursor = ledger.connection.execute("SELECT * FROM updates")
            names = [column[0] for column in cursor.description]
            found = dict(zip(names, cursor.fetchall()[0], strict=True))
            text = {f.name for f in FIELDS["update"] if f.type == "VARCHAR"}
            assert not any(found.pop("window_sums").values())
            assert {name for name in wrong if found.get(name) is not None} <= text

    def test_numbers_that_are_not_finite_are_unknown_and_flagged(self, tmp_path: Path) -> None:
        floats = [f.name for f in FIELDS["update"] if f.type == "DOUBLE"]
        lists = [f.name for f in FIELDS["update"] if f.type == "DOUBLE[]"]
        for value in (float("nan"), float("inf"), float("-inf")):
            bad: Record = dict.fromkeys(floats, value) | {name: [1.0, value, 3.0, 4.0] for name in lists}
            run = write_run(tmp_path / str(value), [{}, bad], ranks=1)
            selected = ", ".join(f"{name}, {name}_nonfinite" for name in floats + lists)
            (found,) = query(run, f"SELECT {selected} FROM updates WHERE attempt_id = 2")
            assert found == (None, True) * len(floats) + ([1.0, None, 3.0, 4.0], True) * len(lists)

    def test_finite_numbers_are_not_flagged_and_unknown_ones_neither(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"learning_rate": None, "loss": None, "loss_scale": [1e308] * 4}])
        sql = """
            SELECT DISTINCT learning_rate_nonfinite, loss_nonfinite, loss_scale_nonfinite, loss_scale[4],
                            time_nonfinite, valid_tokens_nonfinite FROM updates
        """
        assert query(run, sql) == [(None, None, False, 1e308, False, False)]

    @pytest.mark.parametrize(
        "fields",
        [
            {"valid_tokens": [1.0, 2.0, 3.0]},
            {"loss_weight": [0.5]},
            {"weight_uniform": []},
            {"data_digest": ["a"] * 5},
            {"microbatches": 3},
            {"microbatches": -1},
        ],
    )
    def test_lists_of_different_lengths_are_unknown_and_reported(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        run = write_run(tmp_path / "run", 3, ranks=1)
        with file_of(run).open("a") as file:
            file.write(line_of(attempt_id=4, **fields))
        with read_ledger([run]) as ledger:
            ((line, why),) = self.places(ledger)
            assert line == 6
            assert why.startswith("lists of different lengths are taken as unknown: microbatches is ")
            assert self.kept(ledger) == [1, 2, 3, 4]
            sql = "SELECT valid_tokens, loss, data_digest, lists_agree FROM updates WHERE attempt_id = 4"
            assert rows(ledger, sql) == [(None, None, None, False)]
            assert rows(ledger, "SELECT total_weight, weight_cause FROM windows WHERE attempt_id = 4") == [
                (None, None)
            ]

    def test_at_most_a_hundred_bad_lines_of_a_file_are_listed(self, tmp_path: Path) -> None:
        with self.read(tmp_path, lambda lines: [*lines, b"junk\n" * 250]) as ledger:
            assert len(ledger.unreadable) == 101
            assert self.places(ledger)[0] == (7, "not JSON (Expecting value, column 1)")
            assert self.places(ledger)[-1] == (None, "150 more lines are no records")

    def test_a_line_of_20_megabytes(self, tmp_path: Path) -> None:
        with self.read(
            tmp_path, lambda lines: [*lines, line_of(attempt_id=5, extra="x" * 20_000_000).encode()]
        ) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4, 5]

    def test_a_line_above_the_first_limit(self, tmp_path: Path) -> None:
        with self.read(tmp_path, lambda lines: [b"x" * 40_000_000 + b"\n", *lines]) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            assert self.places(ledger) == [(1, "not JSON (Expecting value, column 1)")]

    def test_a_line_above_all_limits_costs_itself_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loading, "LINE_LIMITS", (2**20, 2**21))
        monkeypatch.setattr(recovery, "CHUNK", 2**18)
        with self.read(tmp_path, lambda lines: [*lines[:2], b"x" * 40_000_000 + b"\n", *lines[2:]]) as ledger:
            assert self.kept(ledger) == [1, 2, 3, 4]
            assert (3, "not JSON (Expecting value, column 1)") in self.places(ledger)
            assert rows(ledger, "SELECT line FROM updates ORDER BY line") == [(2,), (4,), (5,), (6,)]
