"""`accumaudit.Ledger`: tables and findings in Python."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
import pyarrow
import pytest

import accumaudit
from accumaudit import Ledger, LedgerError
from accumaudit.engine.catalogue import SelectionError
from accumaudit.ledger.schema import FIELDS
from accumaudit.testing import write_run
from tests.rulefiles import rows, write_rule
from tests.test_cli import start

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three updates on two ranks, the last of them short and divided by the full count."""
    return write_run(tmp_path / "first", [{}, {}, {"microbatches": 2, "total_weight": 0.5}])


@pytest.fixture
def ledger(run: Path) -> Iterator[Ledger]:
    with Ledger.open(run) as opened:
        yield opened


class TestTables:
    def test_a_column_is_a_list(self, ledger: Ledger) -> None:
        assert ledger.windows["microbatches"] == [4, 4, 2]
        assert ledger.windows["total_weight"] == pytest.approx([1.0, 1.0, 0.5])

    def test_a_row_is_a_dict_with_none_for_what_is_unknown(self, ledger: Ledger) -> None:
        first, *_ = ledger.updates
        assert (first["attempt_id"], first["rank"], first["valid_tokens"]) == (
            1,
            0,
            [100.0, 110.0, 120.0, 130.0],
        )
        assert first["reported_loss"] is None

    def test_every_field_of_the_record_is_a_column(self, ledger: Ledger) -> None:
        for kind, table in (("run", ledger.runs), ("update", ledger.updates), ("mark", ledger.marks)):
            assert {field.name for field in FIELDS[kind]} - {"launch"} <= set(table.columns)

    def test_rows_are_in_their_order(self, ledger: Ledger) -> None:
        keys = [(row["attempt_id"], row["rank"], row["micro_step"]) for row in ledger.microbatches]
        assert keys == sorted(keys)
        assert len(keys) == len(ledger.microbatches) == 2 * (4 + 4 + 2)

    def test_tables_can_be_read_in_turn(self, ledger: Ledger) -> None:
        pairs = [(a["rank"], b["rank"]) for a in ledger.runs for b in ledger.runs]
        assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1)]

    def test_more_rows_than_are_read_at_once(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "run", 2500, 1)) as ledger:
            assert [row["attempt_id"] for row in ledger.updates] == list(range(1, 2501))

    def test_arrow(self, ledger: Ledger) -> None:
        table = ledger.windows.arrow()
        assert isinstance(table, pyarrow.Table)
        assert table.column_names == ledger.windows.columns
        assert table["total_weight"].to_pylist() == ledger.windows["total_weight"]

    def test_pandas(self, ledger: Ledger) -> None:
        frame = ledger.updates.pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame["learning_rate"].tolist() == ledger.updates["learning_rate"]
        assert frame["reported_loss"].isna().all()

    def test_an_empty_table(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "run", 0)) as ledger:
            assert (len(ledger.windows), bool(ledger.windows), list(ledger.windows)) == (0, False, [])
            assert len(ledger.windows.pandas()) == ledger.windows.arrow().num_rows == 0

    def test_a_column_that_is_not_there(self, ledger: Ledger) -> None:
        with pytest.raises(KeyError, match="no column is called 'total_weigth', did you mean `total_weight`"):
            ledger.windows["total_weigth"]

    @pytest.mark.parametrize(("module", "call"), [("pandas", "pandas"), ("pyarrow", "arrow")])
    def test_what_is_not_installed(
        self, ledger: Ledger, module: str, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ModuleNotFoundError) as error:
            getattr(ledger.windows, call)()
        assert str(error.value) == (
            f"{call}() needs {module}, which is not installed: pip install {module}; "
            "iterating over the table needs nothing more"
        )
        assert error.value.name == module

    def test_how_they_look(self, ledger: Ledger) -> None:
        assert repr(ledger.sql("SELECT 1 AS a, 2 AS b")) == "<Table of 1 row: a, b>"
        assert repr(ledger.marks).startswith("<Table of 2 rows: run_id, launch, ")


class TestFindings:
    def test_a_row_for_each_attempt_at_fault(self, ledger: Ledger) -> None:
        (row,) = ledger.findings
        assert row == {
            "run_id": "first",
            "launch": 1,
            "optimizer": 0,
            "attempt_id": 3,
            "rank": None,
            "optimizer_update_id": 3,
            "code": "ACC101",
            "name": "fixed-divisor-tail",
            "severity": "error",
            "message": "a short window of 2 of 4 micro-steps weighs 0.500 of an update: "
            "its tokens count 0.500 of what they should",
            "observed": pytest.approx(0.5),
            "expected": pytest.approx(1.0),
        }

    def test_none_in_a_right_run(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "right", 3)) as ledger:
            assert not ledger.findings

    def test_they_can_be_joined_with_the_tables(self, ledger: Ledger) -> None:
        query = "SELECT w.microbatches FROM Findings JOIN windows w USING (run_id, optimizer, attempt_id)"
        assert ledger.sql(query)["microbatches"] == [2]

    def test_check_narrows_and_adds_rules(self, ledger: Ledger, tmp_path: Path) -> None:
        write_rule(tmp_path / "rules", "ABC001", rows("microbatches < $least"), params={"least": 1})
        report = ledger.check(select=["ABC"], rules=[tmp_path / "rules"], params={"ABC001.least": 3})
        assert [(one.code, one.status) for one in report.runs[0].verdicts] == [("ABC001", "failed")]
        assert ledger.findings["code"] == ["ACC101"]  # those of the bundled rules, as before

    def test_check_refuses_an_unknown_rule(self, ledger: Ledger) -> None:
        with pytest.raises(SelectionError, match="no rule is called `fixed-divisor-tale`, did you mean"):
            ledger.check(ignore=["fixed-divisor-tale"])


class TestSql:
    def test_a_query_is_a_table(self, ledger: Ledger) -> None:
        table = ledger.sql("SELECT rank, count(*) AS attempts FROM updates GROUP BY rank ORDER BY rank DESC;")
        assert table.columns == ["rank", "attempts"]
        assert list(table) == [{"rank": 1, "attempts": 3}, {"rank": 0, "attempts": 3}]
        assert table.arrow().num_rows == len(table.pandas()) == len(table) == 2

    def test_the_columns_of_a_table_can_be_asked_for(self, ledger: Ledger) -> None:
        assert "total_weight" in ledger.sql("DESCRIBE windows")["column_name"]

    @pytest.mark.parametrize(
        ("query", "why"),
        [
            ("SELEC 1", "Parser Error"),
            ("SELECT nothing FROM windows", 'column "nothing" not found'),
            ("SELECT 1; SELECT 2", "one query can be asked at a time; this is 2"),
            ("", "one query can be asked at a time; this is 0"),
            ("DROP TABLE windows", "Parser Error"),
            ("SELECT * FROM read_csv('accumaudit.csv')", "disabled by configuration"),
        ],
    )
    def test_a_query_that_cannot_be_answered(self, ledger: Ledger, query: str, why: str) -> None:
        with pytest.raises(ValueError, match=re.escape(why)):
            ledger.sql(query)
        assert len(ledger.windows) == 3


class TestOpening:
    def test_several_paths(self, run: Path, tmp_path: Path) -> None:
        second = write_run(tmp_path / "second", 1)
        with Ledger.open(str(run), second) as ledger:
            assert sorted(set(ledger.windows["run_id"])) == ["first", "second"]
            assert repr(ledger) == "<Ledger of first, second>"

    def test_lines_that_were_left_out(self, run: Path) -> None:
        file = next(run.rglob("00001.*"))
        with file.open("a", encoding="utf-8") as lines:
            lines.write("torn\n")
        with Ledger.open(run) as ledger:
            assert [(one.file, one.line) for one in ledger.unreadable] == [(str(file), 6)]

    def test_what_cannot_be_opened(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match="nowhere"):
            Ledger.open(tmp_path / "nowhere")
        with pytest.raises(
            LedgerError, match=r"no path was given; give the folder that accumaudit\.attach wrote"
        ):
            Ledger.open()

    def test_closed_is_closed(self, run: Path) -> None:
        ledger = Ledger.open(run)
        windows = ledger.windows
        ledger.close()
        ledger.close()
        for ask in (
            lambda: len(windows),
            lambda: ledger.findings,
            ledger.check,
            lambda: ledger.sql("SELECT 1"),
        ):
            with pytest.raises(LedgerError, match=r"this ledger \(.*first\) is closed; open it again"):
                ask()
        assert repr(ledger) == "<Ledger of first (closed)>"


def test_it_is_imported_when_it_is_asked_for(run: Path) -> None:
    code = (
        "import sys, accumaudit\n"
        "early = {'torch', 'duckdb', 'pandas', 'pyarrow', 'accumaudit.opened', 'accumaudit.testing'}\n"
        "assert not early & set(sys.modules), early & set(sys.modules)\n"
        f"assert len(accumaudit.Ledger.open({str(run)!r}).windows) == 3\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = start("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "accumaudit.opened")
    with pytest.raises(ModuleNotFoundError) as error:
        _ = accumaudit.Ledger
    assert str(error.value) == "reading a ledger needs duckdb, which is not installed: pip install duckdb"


def test_what_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="module 'accumaudit' has no attribute 'ledgers'"):
        _ = accumaudit.ledgers


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
def test_the_examples_of_the_page_run(
    code: str, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first", [{}, {}, {"microbatches": 2, "total_weight": 0.5}])
    Path("example.py").write_text(code, encoding="utf-8")
    runpy.run_path("example.py")
