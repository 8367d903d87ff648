"""How texts are read many lines at once, and how their records are stored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from accumaudit import importers
from accumaudit.importers.reading import fields, grep
from accumaudit.importers.reading.log import BLOCK, Log
from accumaudit.importers.records import Records
from accumaudit.ledger import columns
from accumaudit.ledger.reader import read_ledger
from tests.imported import DATA
from tests.tables import Rows, rows

FOLDERS = [DATA / name for name in ("deepspeed", "fairseq", "logbook", "megatron", "torchtitan")]


def written(folder: Path, data: bytes) -> Log:
    path = folder / "train.log"
    path.write_bytes(data)
    return Log(path)


def lines_of(log: Log) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    return [
        (number, line.rstrip("\r\n"))
        for numbers, lines in grep.line_arrays(log)
        for number, line in zip(numbers.to_pylist(), lines.to_pylist(), strict=True)
        if line.strip()
    ]


def interval(*steps: int) -> Any:
    """Of the records of these steps."""
    tables: list[pa.Table] = []
    records = Records(tables.append)
    for line, step in enumerate(steps, 1):
        records.update(line, step)
    records.finish()
    (run,) = (row for table in tables for row in table.to_pylist() if row["record"] == "run")
    return run.get("recorded_every")


class TestLines:
    def test_carriage_returns_part_lines_of_one_number(self, tmp_path: Path) -> None:
        log = written(tmp_path, b"a\r\nb\rc\rd\n\ne")
        assert lines_of(log) == [(1, "a"), (2, "b"), (2, "c"), (2, "d"), (4, "e")]

    def test_terminal_codes_nul_and_bad_text_are_passed_over(self, tmp_path: Path) -> None:
        log = written(tmp_path, b"\x1b[31mst\x00ep\x1b[0m 1\xff\n")
        assert lines_of(log) == [(1, "step 1\ufffd")]

    def test_blocks_keep_the_numbers_going(self, tmp_path: Path) -> None:
        filler = b"nothing\n" * (BLOCK // 8)
        assert lines_of(written(tmp_path, filler + b"step 1\n"))[-1] == (BLOCK // 8 + 1, "step 1")

    def test_what_stands_between_records_comes_in_its_place(self, tmp_path: Path) -> None:
        log = written(tmp_path, b"r 1\nr 2\nt 3\nr 4\nx\nt 6\n")
        found = [
            (one.line, one.text) if isinstance(one, grep.Told) else one["seq"].to_pylist()
            for one in grep.walk(log, "^r", "^t", lambda numbers, _: {"seq": numbers})
        ]
        assert found == [[1, 2], (3, "t 3"), [4], (6, "t 6")]


class TestFields:
    def test_numbers_in_every_spelling(self) -> None:
        texts = ["1.5", " -2 ", '"3"', "1e3", "NaN", "-Infinity", "1,234", "", "x", None]
        found = fields.numbers_of(pa.array(texts, pa.string())).to_pylist()
        assert found[:4] == [1.5, -2.0, 3.0, 1000.0]
        assert math.isnan(found[4])
        assert found[5:] == [-math.inf, 1234.0, None, None, None]

    def test_counts_are_whole_and_within_53_bits(self) -> None:
        numbers = pa.array([3.0, math.nan, math.inf, 2.0**60, None], pa.float64())
        assert fields.counts_of(numbers).to_pylist() == [3, None, None, None, None]

    def test_times(self) -> None:
        texts = ["[2024-05-01 08:00:10,250] x", "2024-05-01 08:00:10 y", "2024-15-01 08:00:10", "none"]
        assert fields.times_in(pa.array(texts)).to_pylist() == [1714550410.25, 1714550410.0, None, None]

    def test_a_piece_without_its_end_is_no_number(self) -> None:
        found = fields.Fields(pa.array(["x | a: 1 | b: 2 |\n", "y | b: 3 | a: 4\n"]), "|")
        assert found.numbers(" a:").to_pylist() == [1.0, None]
        assert found.numbers(" b:").to_pylist() == [2.0, 3.0]


class TestIntervals:
    @pytest.mark.parametrize(
        ("steps", "every"),
        [
            ((10, 20, 30), 10),
            ((1, 10, 20, 30), 10),
            ((1, 10), 10),
            ((1, 11, 21), 10),
            ((1, 2), None),
            ((500,), 500),
        ],
    )
    def test_of_records(self, steps: tuple[int, ...], every: int | None) -> None:
        assert interval(*steps) == every


class TestRecognition:
    def test_the_engine_that_begins_a_little_later_may_be_the_one_to_read(self, tmp_path: Path) -> None:
        early = b"step=0, skipped=0, lr=[0.1], mom=[]\n" + b"loading the model\n" * (BLOCK // 18)
        late = (DATA / "megatron" / "iterations.log").read_bytes()
        format_ = importers.recognise(written(tmp_path, early + late)).format
        assert format_ is not None
        assert format_.name == "megatron"


class TestStored:
    def tables(self) -> dict[str, Rows]:
        with read_ledger(FOLDERS) as ledger:
            return {
                name: sorted(rows(ledger, f"SELECT * EXCLUDE (place) FROM {name}"), key=repr)
                for name in ("runs", "marks", "updates")
            }

    @pytest.mark.slow
    def test_columns_that_a_log_does_not_fill_are_null_as_if_they_were_stored(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        narrow = self.tables()
        monkeypatch.setattr(columns, "filled", lambda _: None)
        assert narrow == self.tables()
        assert len(narrow["updates"]) > 40
