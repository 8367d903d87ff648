"""Damaged ledgers, and ledgers in gzip, zstd and Parquet."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import duckdb
import pytest

from accumaudit.ledger import recovery
from accumaudit.ledger.reader import LedgerError, read_ledger
from tests.records import Record, build_run, write_run
from tests.tables import file_of, query, rows

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


class TestDamage:
    """Lines of random values and random bytes: nothing raises, and all that is a record is kept."""

    VALUES = (
        *(
            "1e999",
            "-0.0",
            "NaN",
            "0x1",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551616",
        ),
        *(
            "1.5",
            "true",
            "null",
            "[]",
            "{}",
            "[[1]]",
            '""',
            '" 5 "',
            '"NaN"',
            '"-Infinity"',
            '"\\u0000"',
            "[1e400]",
        ),
        *('"2024-01-01"', '[1, "a", null, true, {}]', '{"a": {"b": 1}}'),
        '[{"micro_step": "x", "norm": "NaN", "limit": []}]',
    )

    def damaged(self, dice: random.Random, record: Record) -> bytes:
        fields = {
            name: dice.choice(self.VALUES) if dice.random() < 0.1 else json.dumps(value)
            for name, value in record.items()
        }
        line = bytearray(
            "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}", "utf-8"
        )
        if dice.random() < 0.2:
            place = dice.randrange(len(line))
            line[place : place + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        return bytes(line).replace(b"\n", b"") + b"\n"

    def is_update(self, line: bytes) -> bool:
        """What Python's reader takes for an update that can be joined."""
        try:
            record = json.loads(line)
        except ValueError:
            return False
        if not isinstance(record, dict) or record.get("record") != "update":
            return False
        numbers = [record.get(name) for name in ("rank", "optimizer", "attempt_id")]
        whole = all(type(number) is int and abs(number) <= 2**53 for number in numbers)
        return whole and isinstance(record.get("launch"), str)

    @pytest.mark.parametrize("seed", range(6))
    def test_damage(self, tmp_path: Path, seed: int) -> None:
        dice = random.Random(seed)
        records = build_run(20, 2, marks=[{"kind": "declare", "name": "{}"}])
        lines = [self.damaged(dice, record) for rank in records.values() for record in rank]
        path = tmp_path / "x.jsonl"
        path.write_bytes(b"".join(lines))
        with read_ledger([path]) as ledger:
            tables = ("updates", "duplicates", "superseded")
            kept = sum(len(rows(ledger, f"SELECT place FROM {table}")) for table in tables)
            assert kept >= sum(map(self.is_update, lines))
            assert all(one.line for one in ledger.unreadable)
            for table in ("runs", "marks", "windows", "microbatches"):
                rows(ledger, f"FROM {table}")


class TestFormats:
    """Gzip, zstd and Parquet, recognised by what they hold."""

    QUERY = """
        SELECT attempt_id, rank, total_weight, word
        FROM windows JOIN updates USING (attempt_id, word) ORDER BY ALL
    """

    def test_gzip(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3)
        expected = query(run, "SELECT * EXCLUDE (file) FROM updates ORDER BY ALL")
        for path in list(run.glob("rank-*/*.jsonl")):
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        assert query(run, "SELECT * EXCLUDE (file) FROM updates ORDER BY ALL") == expected

    def test_a_wrong_suffix_is_no_matter(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3)
        path = file_of(run, 1)
        path.write_bytes(gzip.compress(path.read_bytes()))
        assert query(run, "SELECT count(*), bool_and(complete) FROM windows") == [(3, True)]

    def test_gzip_that_ends_early(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"events": f"{random.random()}"} for _ in range(400)], ranks=2)
        path = file_of(run, 1)
        whole = gzip.compress(path.read_bytes())
        path.write_bytes(whole[: len(whole) // 2])
        with read_ledger([run]) as ledger:
            (damaged, *torn) = ledger.unreadable
            assert (damaged.file, damaged.line) == (str(path), None)
            assert damaged.why == "the compressed data end early; the records up to there were read"
            assert len(torn) <= 1
            ((first, second),) = rows(ledger, "SELECT count_if(rank = 0), count_if(rank = 1) FROM updates")
            assert first == 400
            assert 100 < second < 300

    def test_zstd(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3)
        for path in list(run.glob("rank-*/*.jsonl")):
            compress(path)
        assert query(run, "SELECT count(*), bool_and(complete) FROM windows") == [(3, True)]

    def test_zstd_that_ends_early(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 30)
        path = compress(file_of(run, 1))
        path.write_bytes(path.read_bytes()[:-20])
        with read_ledger([run]) as ledger:
            assert rows(ledger, "SELECT count(*) FROM updates WHERE rank = 0") == [(30,)]
            assert [(one.file, one.line) for one in ledger.unreadable] == [(str(path), None)]

    def test_zstd_cut_off_anywhere_is_noticed(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3, ranks=1)
        path = compress(file_of(run))
        whole = path.read_bytes()
        for content in (whole, whole * 2, b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab" + whole, b""):
            path.write_bytes(content)
            assert not recovery.zstd_ends_early(path)
        for end in range(1, len(whole), 7):
            path.write_bytes(whole + whole[:end])
            assert recovery.zstd_ends_early(path), end
        path.write_bytes(whole + b"junk, and much of it")
        assert recovery.zstd_ends_early(path)

    def test_parquet(self, tmp_path: Path) -> None:
        """A ledger that was converted has the same columns, or fewer, in whatever types."""
        run = write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": 0.5}, {"skipped": True}])
        expected = query(run, self.QUERY)
        converted = tmp_path / "converted.parquet"
        convert([file_of(run, 0), file_of(run, 1)], converted)
        with read_ledger([converted]) as ledger:
            assert ledger.runs == [("converted", str(converted))]
            assert rows(ledger, self.QUERY) == expected
            assert rows(ledger, "SELECT line FROM updates ORDER BY line") == [
                (2,),
                (3,),
                (4,),
                (7,),
                (8,),
                (9,),
            ]

    def test_parquet_that_is_no_ledger(self, tmp_path: Path) -> None:
        duckdb.execute(f"COPY (SELECT 1 AS step, 2.0 AS loss) TO '{tmp_path}/x.parquet'").fetchall()
        with pytest.raises(LedgerError, match="no column `record`, so it is no ledger"):
            read_ledger([tmp_path / "x.parquet"])


def compress(path: Path) -> Path:
    """Compress a file with zstd, which DuckDB can and Python cannot."""
    target = path.with_suffix(".jsonl.zst")
    duckdb.execute(
        f"COPY (SELECT content FROM read_text('{path}')) TO '{target}' "
        "(FORMAT csv, COMPRESSION zstd, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\x01')"
    ).fetchall()
    path.unlink()
    return target


def convert(paths: list[Path], target: Path) -> None:
    names = [str(path) for path in paths]
    duckdb.execute(f"COPY (FROM read_json({names}, format = 'newline_delimited')) TO '{target}'").fetchall()
