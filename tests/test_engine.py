"""The rule files' checks, the catalogue, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from accumaudit.engine.catalogue import Catalogue, SelectionError, load_rules
from accumaudit.engine.findings import AuditReport, Verdict
from accumaudit.engine.judge import audit
from accumaudit.engine.rule import RuleError, read_rule
from accumaudit.ledger.reader import read_ledger
from tests.records import write_run
from tests.rulefiles import rows, rule_text, write_rule


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rules"


def read_folder(folder: Path) -> Catalogue:
    with duckdb.connect() as parser:
        return Catalogue(read_rule(file, parser) for file in sorted(folder.rglob("*.sql")))


def judge(
    folder: Path, run: Path, *, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()
) -> AuditReport:
    ledger = read_ledger([run])
    try:
        return audit(ledger, read_folder(folder), select=select, ignore=ignore)
    finally:
        ledger.connection.close()


def verdicts(report: AuditReport) -> dict[str, Verdict]:
    (run,) = report.runs
    return {verdict.code: verdict for verdict in run.verdicts}


class TestRuleFile:
    def test_a_sound_file(self, folder: Path, parser: duckdb.DuckDBPyConnection) -> None:
        sql = rows("microbatches > $limit")
        file = write_rule(folder / "family", "ABC123", sql, params={"limit": 4}, explains=["ACC104"])
        rule = read_rule(file, parser)
        assert (rule.code, rule.name, rule.family) == ("ABC123", "fault-abc123", "family")
        assert rule.params == {"limit": 4.0}
        assert rule.explains == ("ACC104",)
        assert rule.sql == file.read_text()

    @pytest.mark.parametrize(
        ("header", "line", "text"),
        [
            ({"severty": "error"}, 14, "unknown key `severty`, did you mean `severity`?"),
            ({"severity": "fatal"}, 4, "`severity` is error or warning or note, not `fatal`"),
            ({"scope": "window"}, 6, "`scope` is transaction or pair or run, not `window`"),
            ({"why": None}, 1, "the header lacks `why`"),
            ({"fix": " "}, 12, "`fix` is a text that is not empty"),
            ({"summary": 3}, 9, "`summary` is a text that is not empty"),
            ({"needs": ["micro_batches"]}, 8, "no field `micro_batches`, did you mean `microbatches`?"),
            ({"needs": ["loss or losss"]}, 8, "no field `losss`, did you mean `loss`?"),
            ({"needs": "microbatches"}, 8, "`needs` is a list of texts"),
            ({"explains": ["tail"]}, 14, "`explains` names other rules' codes, not `tail`"),
            ({"explains": ["ABC123"]}, 14, "`explains` names other rules' codes, not `ABC123`"),
            ({"params": {"limit": '"4"'}}, 15, "the parameter `limit` is a number, not '4'"),
            ({"params": {"limit": 4}}, 15, "the parameter `limit` is declared and not used ($limit)"),
            ({"example": "rank-*/x"}, 11, "`*/` cannot stand inside the header: it ends it"),
            ({"example": "/* x"}, 11, "`/*` cannot stand inside the header"),
        ],
    )
    def test_a_fault_in_the_header_has_a_line(
        self,
        folder: Path,
        parser: duckdb.DuckDBPyConnection,
        header: dict[str, Any],
        line: int,
        text: str,
    ) -> None:
        file = write_rule(folder, "ABC123", rows(), **header)
        with pytest.raises(RuleError) as caught:
            read_rule(file, parser)
        assert text in caught.value.text
        assert (caught.value.file, caught.value.line) == (file, line)
        assert str(caught.value).startswith(f"{file}:{line}: ")

    @pytest.mark.parametrize(
        ("sql", "line", "text"),
        [
            ("SELECT 1; SELECT 2", 14, "exactly one SELECT; this file holds SELECT, SELECT"),
            ("COPY (SELECT 1) TO 'x.csv'", 14, "exactly one SELECT; this file holds COPY"),
            ("", 14, "this file holds nothing"),
            ("SELECT 1\nFROM windows WHERE WHERE", 16, "syntax error"),
            ("SELECT 1\nWHERE 2 > $limit", 16, "the parameter $limit is used and not declared"),
        ],
    )
    def test_a_fault_in_the_query_has_a_line(
        self, folder: Path, parser: duckdb.DuckDBPyConnection, sql: str, line: int, text: str
    ) -> None:
        file = write_rule(folder, "ABC123", sql)
        with pytest.raises(RuleError) as caught:
            read_rule(file, parser)
        assert text in caught.value.text
        assert caught.value.line == line

    def test_toml_errors_carry_the_line_of_the_file(
        self, folder: Path, parser: duckdb.DuckDBPyConnection
    ) -> None:
        file = write_rule(folder, "ABC123", rows())
        file.write_text("\n\n" + file.read_text().replace('since = "0.1.0"', "since = 0.1.0"))
        with pytest.raises(RuleError, match="the header is not TOML") as caught:
            read_rule(file, parser)
        assert caught.value.line == 7

    @pytest.mark.parametrize("text", ["SELECT 1", "SELECT 1 /* late */", "/* never closed", ""])
    def test_without_a_header(self, folder: Path, parser: duckdb.DuckDBPyConnection, text: str) -> None:
        file = write_rule(folder, "ABC123", rows())
        file.write_text(text)
        with pytest.raises(RuleError, match="a rule begins with its header"):
            read_rule(file, parser)

    def test_a_file_that_is_no_text(self, folder: Path, parser: duckdb.DuckDBPyConnection) -> None:
        file = write_rule(folder, "ABC123", rows())
        file.write_bytes(b"/* \xff */")
        with pytest.raises(RuleError, match="a rule is a UTF-8 text file"):
            read_rule(file, parser)

    @pytest.mark.parametrize(
        ("code", "name", "text"),
        [
            ("acc1", "a-fault", "`acc1` is no code"),
            ("ABC123", "A_Fault", "`A_Fault` is no name"),
            ("ABC123", "check-tail", "`check-tail` says what to do; name the fault, without `check-`"),
            ("ABC123", "no-tail", "without `no-`"),
            ("ABC123", "use-tail", "without `use-`"),
            ("ABC123", "avoid-tail", "without `avoid-`"),
            ("ABC123", "do-not-step", "without `do-not-`"),
            ("ABC123", "prefer-means", "without `prefer-`"),
            ("ABC123", "other-fault", "is called ABC123_other_fault.sql, not ABC123_a_fault.sql"),
        ],
    )
    def test_the_names(
        self, folder: Path, parser: duckdb.DuckDBPyConnection, code: str, name: str, text: str
    ) -> None:
        file = write_rule(folder, "ABC123", rows(), name="a-fault")
        file.write_text(rule_text(code, name, rows()))
        with pytest.raises(RuleError) as caught:
            read_rule(file, parser)
        assert text in caught.value.text


class TestCatalogue:
    def test_a_code_belongs_to_one_file(self, folder: Path) -> None:
        first = write_rule(folder / "a", "ABC123", rows())
        second = write_rule(folder / "b", "ABC123", rows(), name="another")
        with pytest.raises(RuleError) as caught:
            read_folder(folder)
        assert caught.value.file == second
        assert caught.value.text == f"the code ABC123 belongs to {first} already"

    def test_a_name_belongs_to_one_file(self, folder: Path) -> None:
        write_rule(folder, "ABC123", rows(), name="a-fault")
        write_rule(folder, "ABC124", rows(), name="a-fault")
        with pytest.raises(RuleError, match="the name a-fault belongs to"):
            read_folder(folder)

    def test_a_circle_of_explanations_would_hide_both(self, folder: Path) -> None:
        write_rule(folder, "ABC001", rows(), explains=["ABC002"])
        write_rule(folder, "ABC002", rows(), explains=["ABC001"])
        with pytest.raises(RuleError, match="`explains` goes in a circle"):
            read_folder(folder)

    def test_selection(self, folder: Path) -> None:
        for code, name in (("ABC101", "one"), ("ABC102", "two"), ("ABC201", "three")):
            write_rule(folder, code, rows(), name=name)
        catalogue = read_folder(folder)

        def codes(*words: str) -> list[str]:
            return [rule.code for rule in catalogue.matching(words)]

        assert codes("ABC1") == ["ABC101", "ABC102"]
        assert codes("three", "abc101") == ["ABC101", "ABC201"]
        with pytest.raises(SelectionError, match="no rule is called `thre`, did you mean `three`"):
            codes("thre")
        with pytest.raises(SelectionError, match="no rule is called `ABC109`, did you mean `ABC10"):
            codes("ABC109")

    def test_thresholds(self, folder: Path) -> None:
        write_rule(folder, "ABC101", rows("microbatches > $limit"), params={"limit": 4})
        catalogue = read_folder(folder).with_params({"ABC101.limit": 5})
        assert catalogue["ABC101"].params == {"limit": 5.0}
        with pytest.raises(SelectionError, match=r"has no parameter `limt`; it has ABC101\.limit"):
            catalogue.with_params({"ABC101.limt": 5})

    def test_a_folder_without_rules(self, folder: Path) -> None:
        folder.mkdir()
        with pytest.raises(RuleError, match="no rule"):
            load_rules(folder)


@pytest.fixture(scope="module")
def bundled() -> Catalogue:
    return load_rules()


class TestBundledRules:
    def test_a_healthy_run_breaks_no_rule(self, bundled: Catalogue, tmp_path: Path) -> None:
        ledger = read_ledger([write_run(tmp_path / "run", 6)])
        report = audit(ledger, bundled)
        ledger.connection.close()
        assert report.summary()["broken"] == 0
        assert report.summary()["failed"] == 0


class TestVerdicts:
    def test_each_of_the_four(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id >= 2"))
        write_rule(folder, "ABC002", rows())
        write_rule(folder, "ABC003", rows(where="false"))
        write_rule(folder, "ABC004", rows("nonsense"))
        found = verdicts(judge(folder, write_run(tmp_path / "run", 3)))
        assert {code: verdict.status for code, verdict in found.items()} == {
            "ABC001": "failed",
            "ABC002": "passed",
            "ABC003": "not_checked",
            "ABC004": "broken",
        }
        assert found["ABC001"].judged == found["ABC002"].judged == 3
        assert found["ABC003"].reason == "nothing was in scope"

    def test_a_finding_gathers_the_rows(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id >= 2", rank="rank", where="rank > 0"))
        run = write_run(tmp_path / "run", 6, ranks=3)
        finding = verdicts(judge(folder, run))["ABC001"].finding
        assert finding is not None
        assert (finding.count, finding.first_update, finding.last_update) == (5, 2, 6)
        assert finding.ranks == (1, 2)
        assert finding.message == "attempt 2 is wrong"
        assert (finding.observed, finding.expected) == (0.5, 1.0)
        assert [example.attempt_id for example in finding.examples] == [2, 3, 4]
        first = finding.examples[0]
        assert first.rank == 1
        assert first.file is not None
        assert first.line is not None
        line = Path(first.file).read_text().splitlines()[first.line - 1]
        assert '"attempt_id": 2' in line
        assert '"rank": 1' in line

    def test_the_place_counts_blank_lines_too(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 2"))
        run = write_run(tmp_path / "run", 3, ranks=1)
        (file,) = run.glob("rank-00/*.jsonl")
        file.write_text(file.read_text().replace("\n", "\n\n"))
        finding = verdicts(judge(folder, run))["ABC001"].finding
        assert finding is not None
        line = file.read_text().splitlines()[(finding.examples[0].line or 0) - 1]
        assert '"attempt_id": 2' in line

    def test_a_fault_about_all_ranks_names_all(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 2"))
        finding = verdicts(judge(folder, write_run(tmp_path / "run", 3, ranks=3)))["ABC001"].finding
        assert finding is not None
        assert finding.ranks == (0, 1, 2)
        assert finding.examples[0].rank is None
        assert str(finding.examples[0].file).endswith("00000.aaaa.jsonl")

    def test_a_null_fault_is_not_a_pass(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("CAST(NULL AS BOOLEAN)"), needs=["learning_rate"])
        run = write_run(tmp_path / "run", [{}, {"learning_rate": None}, {}])
        verdict = verdicts(judge(folder, run))["ABC001"]
        assert (verdict.status, verdict.judged) == ("not_checked", 0)
        assert verdict.reason == "`learning_rate` is null in 2 of 6 records"

    def test_a_null_without_a_field_to_name(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("CAST(NULL AS BOOLEAN)"))
        verdict = verdicts(judge(folder, write_run(tmp_path / "run", 3)))["ABC001"]
        assert verdict.reason == "3 rows were in scope, and the record decides none of them"

    def test_a_single_row_is_told_as_one(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("CAST(NULL AS BOOLEAN)"))
        verdict = verdicts(judge(folder, write_run(tmp_path / "run", 1)))["ABC001"]
        assert verdict.reason == "one row was in scope, and the record does not decide it"

    def test_one_of_several_fields_will_do(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows(where="false"), needs=["planned_updates or microbatches"])
        write_rule(folder, "ABC002", rows(where="false"), needs=["planned_updates or lost_records"])
        found = verdicts(judge(folder, write_run(tmp_path / "run", 3)))
        assert found["ABC001"].reason == "nothing was in scope"
        assert found["ABC002"].reason == "`planned_updates` or `lost_records` was never declared or reported"

    def test_a_field_that_is_never_there_is_the_first_reason(self, folder: Path, tmp_path: Path) -> None:
        needs = ["planned_updates", "lost_records", "microbatches"]
        write_rule(folder, "ABC001", rows(where="false"), needs=needs)
        run = write_run(tmp_path / "run", 3, planned_updates=None)
        assert verdicts(judge(folder, run))["ABC001"].reason == (
            "`planned_updates` was never declared or reported and `lost_records` was never recorded"
        )

    def test_a_rule_runs_once_over_all_runs(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 3"))
        write_run(tmp_path / "runs" / "one", 2)
        write_run(tmp_path / "runs" / "two", 3)
        report = judge(folder, tmp_path / "runs")
        assert [(run.run_id, run.verdicts[0].status) for run in report.runs] == [
            ("one", "passed"),
            ("two", "failed"),
        ]

    def test_skipped_attempts_are_no_updates(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows())
        (run,) = judge(folder, write_run(tmp_path / "run", [{}, {"skipped": True}, {}])).runs
        assert (run.updates, run.attempts, run.skipped) == (2, 3, 1)
        assert (run.ranks, run.world_size, run.runtime) == ((0, 1), 2, "torch")


class TestSeverity:
    def test_a_row_may_lower_it(self, folder: Path, tmp_path: Path) -> None:
        lower = ", CASE WHEN attempt_id < 3 THEN 'note' ELSE 'warning' END AS severity"
        write_rule(folder, "ABC001", rows("true", more=lower))
        verdict = verdicts(judge(folder, write_run(tmp_path / "run", 4)))["ABC001"]
        assert verdict.severity == "warning"
        assert verdict.finding is not None
        assert verdict.finding.message == "attempt 3 is wrong"
        assert (verdict.finding.count, verdict.finding.first_update) == (4, 1)

    def test_a_row_without_one_has_the_rules(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("true", more=", CAST(NULL AS VARCHAR) AS severity"))
        assert verdicts(judge(folder, write_run(tmp_path / "run", 2)))["ABC001"].severity == "error"

    @pytest.mark.parametrize("severity", ["error", "fatal"])
    def test_a_row_that_raises_it_breaks_the_rule(self, folder: Path, tmp_path: Path, severity: str) -> None:
        write_rule(folder, "ABC001", rows("true", more=f", '{severity}' AS severity"), severity="warning")
        verdict = verdicts(judge(folder, write_run(tmp_path / "run", 2)))["ABC001"]
        assert verdict.status == "broken"
        assert verdict.reason is not None
        assert verdict.reason.endswith(
            f"a row's severity is '{severity}'; under a rule of severity warning it is warning or note"
        )


class TestBrokenRules:
    @pytest.mark.parametrize(
        ("sql", "text"),
        [
            (rows("nonsense"), 'ABC001_fault_abc001.sql:15: Binder Error: Referenced column "nonsense"'),
            (rows("CAST('x' AS BOOLEAN)"), "Conversion Error: Could not convert"),
            (rows("1"), "the column `fault` is INTEGER, not BOOLEAN"),
            (rows(more=", 1 AS servity"), "unknown column `servity`"),
            (rows().replace("AS message", "AS mesage"), "no column `message`, did you mean `mesage`?"),
            (
                rows().replace("SELECT run_id", "SELECT 'x' AS run_id"),
                "returns the run_id 'x', which no run has",
            ),
            ("SELECT * FROM read_csv('/etc/passwd')", "Permission Error"),
        ],
    )
    def test_the_reason_says_how(self, folder: Path, tmp_path: Path, sql: str, text: str) -> None:
        write_rule(folder, "ABC001", sql)
        write_rule(folder, "ABC002", rows())
        found = verdicts(judge(folder, write_run(tmp_path / "run", 2)))
        assert found["ABC001"].status == "broken"
        assert text in str(found["ABC001"].reason)
        assert found["ABC002"].status == "passed"


class TestExplanations:
    def test_the_same_attempt_is_not_reported_twice(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 2"), explains=["ABC002"])
        write_rule(folder, "ABC002", rows("attempt_id IN (2, 4)"))
        finding = verdicts(judge(folder, write_run(tmp_path / "run", 5)))["ABC002"].finding
        assert finding is not None
        assert [example.attempt_id for example in finding.examples] == [4]

    def test_a_rule_whose_faults_are_all_explained_never_passes(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 2"), explains=["ABC002"])
        write_rule(folder, "ABC002", rows("attempt_id = 2"))
        verdict = verdicts(judge(folder, write_run(tmp_path / "run", 5)))["ABC002"]
        assert verdict.status == "not_checked"
        assert verdict.reason == "a cause was found by ABC001; 4 other rows are clean"

    def test_it_goes_on_over_several_rules(self, folder: Path, tmp_path: Path) -> None:
        """Neither the order of the codes nor that the middle one is explained itself matters."""
        write_rule(folder, "ABC003", rows("true"), explains=["ABC001"])
        write_rule(folder, "ABC001", rows("true"), explains=["ABC002"])
        write_rule(folder, "ABC002", rows("true"))
        found = verdicts(judge(folder, write_run(tmp_path / "run", 2)))
        assert found["ABC003"].status == "failed"
        assert found["ABC001"].reason == found["ABC002"].reason == "a cause was found by ABC003"

    @pytest.mark.parametrize(("cause", "effect"), [("run", "transaction"), ("transaction", "run")])
    def test_a_rule_over_the_run_reaches_all_of_it(
        self, folder: Path, tmp_path: Path, cause: str, effect: str
    ) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 2"), explains=["ABC002"], scope=cause)
        write_rule(folder, "ABC002", rows("attempt_id = 4"), scope=effect)
        found = verdicts(judge(folder, write_run(tmp_path / "run", 5)))
        assert found["ABC002"].status == "not_checked"

    def test_it_stays_within_the_run(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("run_id = 'one'"), explains=["ABC002"], scope="run")
        write_rule(folder, "ABC002", rows("true"))
        for name in ("one", "two"):
            write_run(tmp_path / "runs" / name, 2)
        one, two = judge(folder, tmp_path / "runs").runs
        assert [verdict.status for verdict in one.verdicts] == ["failed", "not_checked"]
        assert [verdict.status for verdict in two.verdicts] == ["passed", "failed"]

    def test_a_lasting_disagreement_is_explained_from_its_cause_on(
        self, folder: Path, tmp_path: Path
    ) -> None:
        write_rule(folder, "ABC001", rows("attempt_id = 3"), explains=["ACC605"])
        write_rule(folder, "ACC605", rows("attempt_id IN (2, 4, 5)"))
        finding = verdicts(judge(folder, write_run(tmp_path / "run", 5)))["ACC605"].finding
        assert finding is not None
        assert (finding.first_update, finding.last_update) == (2, 2)

    def test_an_ignored_fault_does_not_come_back_under_another_name(
        self, folder: Path, tmp_path: Path
    ) -> None:
        write_rule(folder, "ABC001", rows("true"), explains=["ABC002"])
        write_rule(folder, "ABC002", rows("true"))
        run = write_run(tmp_path / "run", 2)
        ignored = verdicts(judge(folder, run, ignore=("ABC001",)))
        assert {code: verdict.status for code, verdict in ignored.items()} == {"ABC002": "not_checked"}
        selected = verdicts(judge(folder, run, select=("ABC002",)))
        assert selected["ABC002"].status == "failed"

    def test_a_broken_rule_explains_nothing(self, folder: Path, tmp_path: Path) -> None:
        write_rule(folder, "ABC001", rows("nonsense"), explains=["ABC002"])
        write_rule(folder, "ABC002", rows("true"))
        found = verdicts(judge(folder, write_run(tmp_path / "run", 2)))
        assert found["ABC002"].status == "failed"
