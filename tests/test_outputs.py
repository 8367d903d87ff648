"""The report in the formats of other programs, read by readers of others where there are any."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner, Result
from junitparser import Error as CaseError
from junitparser import Failure, JUnitXml, Skipped

import accumaudit
from accumaudit import outputs
from accumaudit.cli import main
from accumaudit.engine import check_paths
from accumaudit.engine.findings import AuditReport, Ignored, RunReport, Verdict
from accumaudit.outputs import github, markdown, sarif
from accumaudit.outputs.results import Options, Place, relative
from tests.records import write_run
from tests.rulefiles import rows, write_rule

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

HOSTILE = "a|b,c:d%<img src=x>`@team`\n::error::gone\x1b[31m"
"""The name of a run whose folder somebody else named."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs in `runs` and rules in `rules`."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("first", HOSTILE):
        write_run(folder / "runs" / name, 4)
    rules = folder / "rules"
    write_rule(rules, "ABC001", rows("attempt_id >= 2"), name="an-error")
    write_rule(rules, "ABC002", rows("attempt_id = 3"), name="a-warning", severity="warning")
    write_rule(rules, "ABC003", rows("attempt_id = 3"), name="a-note", severity="note")
    write_rule(rules, "ABC004", rows("false"), name="a-healthy-one")
    write_rule(rules, "ABC005", rows("true", where="false"), name="an-empty-scope")
    broken = rows("CAST(error('no, such: row') AS BOOLEAN)")
    write_rule(folder / "broken", "ABC009", broken, name="a-broken-one")
    return folder


@pytest.fixture(autouse=True)
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where the paths are short, and outside any workflow."""
    monkeypatch.chdir(root)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def audited(root: Path, *rules: str) -> AuditReport:
    """The report on the runs of a folder, which is the current one."""
    return check_paths(["runs"], rules=[root / "rules", *(root / name for name in rules)], select=["ABC"])


@pytest.fixture(scope="module")
def report(root: Path) -> AuditReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return audited(root)


@pytest.fixture(scope="module")
def broken_report(root: Path) -> AuditReport:
    """The same, and a rule that breaks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return audited(root, "broken")


@pytest.fixture
def copied(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder that a test may change; it is the current one."""
    monkeypatch.chdir(shutil.copytree(root, tmp_path / "copy"))
    return tmp_path / "copy"


def with_verdicts(report: AuditReport, change: Callable[[Verdict], Verdict]) -> AuditReport:
    """The report with each verdict changed."""

    def changed(run: RunReport) -> RunReport:
        return dataclasses.replace(run, verdicts=tuple(map(change, run.verdicts)))

    return dataclasses.replace(report, runs=tuple(map(changed, report.runs)))


def ignoring(report: AuditReport) -> AuditReport:
    """The report where the errors were ignored."""

    def ignored(verdict: Verdict) -> Verdict:
        if verdict.code != "ABC001" or verdict.finding is None:
            return verdict
        one = Ignored(
            reason="known | since June", source="pyproject.toml", severity="error", finding=verdict.finding
        )
        return dataclasses.replace(
            verdict,
            status="not_checked",
            reason="ignored: known | since June",
            finding=None,
            ignored=(one,),
        )

    return with_verdicts(report, ignored)


def rendered(report: AuditReport, format_: str, **options: Any) -> str:
    return outputs.rendered(report, format_, Options(**options))


@pytest.mark.parametrize("format_", outputs.FORMATS)
def test_nothing_that_a_terminal_obeys_comes_out(broken_report: AuditReport, format_: str) -> None:
    text = rendered(ignoring(broken_report), format_)
    assert not re.search(r"[^\n\x20-\x7e]", text.replace("\\u001b", ""))
    assert "\x1b" not in text


class TestSarif:
    def run(self, report: AuditReport, **options: Any) -> dict[str, Any]:
        log = json.loads(rendered(report, "sarif", **options))
        assert log["version"] == "2.1.0"
        (run,) = log["runs"]
        assert isinstance(run, dict)
        return run

    def test_a_result_for_each_rule_and_run_the_worst_first(self, report: AuditReport) -> None:
        results = self.run(report)["results"]
        assert [one["ruleId"] for one in results] == [*["ABC001"] * 2, *["ABC002"] * 2, *["ABC003"] * 2]
        assert [one["level"] for one in results] == [*["error"] * 2, *["warning"] * 2, *["note"] * 2]
        assert results[0]["properties"] | {"run": "first"} == {
            "run": "first",
            "firstUpdate": 2,
            "lastUpdate": 4,
            "count": 3,
            "ranks": "0-1",
            "observed": 0.5,
            "expected": 1.0,
        }

    def test_every_result_has_a_relative_place_and_leads_to_its_rule(self, report: AuditReport) -> None:
        """One result without a place makes GitHub refuse the whole file."""
        run = self.run(report)
        for one in run["results"]:
            assert run["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
            assert one["message"]["text"]
            for place in (*one["locations"], *one["relatedLocations"]):
                uri = place["physicalLocation"]["artifactLocation"]["uri"]
                assert uri
                assert not uri.startswith("/")
                assert urlsplit(uri).scheme == ""
                assert unquote(uri).startswith("runs/")
                assert place["physicalLocation"]["region"]["startLine"] >= 1

    def test_fingerprints_tell_findings_apart_and_no_line_changes_them(
        self, report: AuditReport, copied: Path
    ) -> None:
        def prints(run: dict[str, Any]) -> set[str]:
            return {one["partialFingerprints"]["accumauditFinding/v1"] for one in run["results"]}

        before = self.run(report)
        assert len(prints(before)) == len(before["results"])
        for file in copied.rglob("*.jsonl"):
            file.write_text("\n\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
        again = self.run(audited(copied))
        lines = [
            [one["locations"][0]["physicalLocation"]["region"]["startLine"] for one in run["results"]]
            for run in (before, again)
        ]
        assert lines[0] != lines[1]
        assert prints(before) == prints(again)

    def test_what_is_ignored_is_suppressed_with_its_reason(self, report: AuditReport) -> None:
        results = self.run(ignoring(report))["results"]
        told = {one["ruleId"]: one.get("suppressions") for one in results}
        suppression = {"kind": "external", "justification": "known | since June (pyproject.toml)"}
        assert told == {"ABC001": [suppression], "ABC002": None, "ABC003": None}

    def test_a_broken_rule_is_a_notification_and_no_success(self, broken_report: AuditReport) -> None:
        (invocation,) = self.run(broken_report)["invocations"]
        assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
        (told,) = invocation["toolExecutionNotifications"]
        assert told["level"] == "error"
        assert re.match(r"ABC009 is broken: .*no, such: row", told["message"]["text"])

    def test_a_line_that_cannot_be_read_is_a_notification(self, copied: Path) -> None:
        file = next((copied / "runs" / "first").rglob("*.jsonl"))
        file.write_text(file.read_text(encoding="utf-8") + "torn\n", encoding="utf-8")
        (invocation,) = self.run(check_paths(["runs/first"]))["invocations"]
        (told,) = invocation["toolExecutionNotifications"]
        assert invocation["executionSuccessful"]
        assert told["level"] == "warning"
        assert told["locations"][0]["physicalLocation"]["region"]["startLine"] > 1

    @pytest.mark.parametrize(("fail_on", "status"), [("error", 1), ("note", 1), ("never", 0)])
    def test_the_exit_code_follows_fail_on(self, report: AuditReport, fail_on: str, status: int) -> None:
        assert self.run(report, fail_on=fail_on)["invocations"][0]["exitCode"] == status

    def test_the_results_stay_below_the_limit(
        self, report: AuditReport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sarif, "MOST", 4)
        run = self.run(report)
        assert [one["level"] for one in run["results"]] == ["error", "error", "warning", "warning"]
        (told,) = run["invocations"][0]["toolExecutionNotifications"]
        assert told["message"]["text"] == "2 further findings are left out"

    def test_a_validator_of_others_finds_no_error(self, broken_report: AuditReport, tmp_path: Path) -> None:
        """The SARIF multitool, with the rules of the standard and those of GitHub."""
        tool = os.environ.get("ACCUMAUDIT_SARIF_MULTITOOL")
        if not tool:
            pytest.skip("ACCUMAUDIT_SARIF_MULTITOOL does not name the SARIF multitool")
        text = rendered(ignoring(broken_report), "sarif", anchor=Place("train.py", 12))
        for name, log in (("ours.sarif", text), ("bad.sarif", without_places(text))):
            (tmp_path / name).write_text(log, encoding="utf-8")
        assert validated(tool, tmp_path / "ours.sarif") == set()
        assert validated(tool, tmp_path / "bad.sarif")


def without_places(log: str) -> str:
    """The control: the results have no place."""
    document = json.loads(log)
    for one in document["runs"][0]["results"]:
        del one["locations"]
    return json.dumps(document)


def validated(tool: str, log: Path) -> set[str]:
    """The rules of the validator that the log breaks, at the level of errors."""
    command = [tool, "validate", str(log), "--rule-kind", "Sarif;Ghas", "--output", f"{log}.result"]
    environment = os.environ | {"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    subprocess.run([*command, "--log", "ForceOverwrite"], env=environment, check=False, capture_output=True)
    result = json.loads(Path(f"{log}.result").read_text(encoding="utf-8-sig"))
    found = result["runs"][0].get("results", [])
    return {one["ruleId"] for one in found if one.get("level") == "error"}


class TestGithub:
    def test_a_command_is_one_whole_line_with_its_properties_escaped(self, report: AuditReport) -> None:
        lines = rendered(report, "github").splitlines()
        commands = [line for line in lines if line.startswith("::")]
        assert len(commands) == 6
        assert lines[-1].startswith("Found 4 faults and 2 notes in 2 runs")
        shape = r"::(error|warning|notice) file=([^:,]+),line=\d+,title=([^:,]+)::(.+)"
        found = [re.fullmatch(shape, line) for line in commands]
        assert [one and one[1] for one in found] == [*["error"] * 2, *["warning"] * 2, *["notice"] * 2]
        assert {one[3] for one in found if one} == {"ABC001 an-error", "ABC002 a-warning", "ABC003 a-note"}
        assert any("a|b%2Cc%3Ad%25" in one[2] for one in found if one)
        assert any("run a|b,c:d%25<img" in one[4] for one in found if one)

    def test_no_more_are_written_than_are_shown(
        self, report: AuditReport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(github, "SHOWN", 1)
        lines = rendered(report, "github").splitlines()
        assert sum(line.startswith("::") for line in lines) == 3
        assert "1 further error in the summary of this step" in lines

    def test_a_broken_rule_is_an_error(self, broken_report: AuditReport) -> None:
        first = rendered(broken_report, "github").splitlines()[0]
        assert first.startswith("::error title=ABC009 is broken::")

    def test_the_summary_of_the_step_is_added_to(self, report: AuditReport, tmp_path: Path) -> None:
        file = tmp_path / "summary.md"
        file.write_text("# before\n", encoding="utf-8")
        github.append_summary(report, Options(), file)
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# before\n\n## accumaudit\n")
        assert "| error | ABC001 an-error | first |" in text

    def test_the_summary_stays_below_its_limit(
        self, report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(github, "SUMMARY_BYTES", 2_000)
        github.append_summary(report, Options(), tmp_path / "summary.md")
        text = (tmp_path / "summary.md").read_text(encoding="utf-8")
        assert 0 < len(text) <= 2_000
        assert "further findings are not shown." in text


class TestGitlab:
    def test_an_array_of_issues(self, report: AuditReport) -> None:
        issues = json.loads(rendered(report, "gitlab"))
        assert [one["severity"] for one in issues] == [*["critical"] * 2, *["major"] * 2, *["info"] * 2]
        for one in issues:
            assert set(one) == {"description", "check_name", "fingerprint", "severity", "location"}
            assert not one["location"]["path"].startswith(("/", "./"))
            assert one["location"]["lines"]["begin"] >= 1
        assert len({one["fingerprint"] for one in issues}) == len(issues)

    def test_what_is_ignored_is_no_issue(self, report: AuditReport) -> None:
        issues = json.loads(rendered(ignoring(report), "gitlab"))
        assert {one["check_name"] for one in issues} == {"ABC002 a-warning", "ABC003 a-note"}

    def test_a_broken_rule_is_an_issue(self, broken_report: AuditReport) -> None:
        (issue,) = (
            one for one in json.loads(rendered(broken_report, "gitlab")) if one["severity"] == "blocker"
        )
        assert issue["check_name"] == "ABC009 is broken"


class TestJUnit:
    def cases(self, report: AuditReport, **options: Any) -> dict[tuple[str, str], Any]:
        suites = JUnitXml.fromstring(rendered(report, "junit", **options).encode())
        return {(suite.name, case.name): case for suite in suites for case in suite}

    def test_a_suite_for_each_run_and_a_case_for_each_rule(self, report: AuditReport) -> None:
        suites = JUnitXml.fromstring(rendered(report, "junit").encode())
        assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (10, 2, 0, 2)
        assert [suite.tests for suite in suites] == [5, 5]
        results = {case.name: [type(one) for one in case.result] for suite in suites for case in suite}
        assert results == {
            "ABC001 an-error": [Failure],
            "ABC002 a-warning": [],
            "ABC003 a-note": [],
            "ABC004 a-healthy-one": [],
            "ABC005 an-empty-scope": [Skipped],
        }

    def test_what_fails_a_case_follows_fail_on(self, report: AuditReport) -> None:
        failed = {
            fail_on: sum(bool(case.result) for case in self.cases(report, fail_on=fail_on).values())
            for fail_on in ("never", "error", "warning", "note")
        }
        skipped = 2
        assert failed == {"never": skipped, "error": 2 + skipped, "warning": 4 + skipped, "note": 6 + skipped}

    def test_a_finding_below_it_is_told_all_the_same(self, report: AuditReport) -> None:
        case = self.cases(report)["first", "ABC002 a-warning"]
        assert case.system_out.startswith("warning: Something is wrong. In run first, update 3, both ranks:")

    def test_what_is_ignored_is_skipped_with_its_reason(self, report: AuditReport) -> None:
        case = self.cases(ignoring(report))["first", "ABC001 an-error"]
        assert [one.message for one in case.result] == ["ignored: known | since June"]
        assert "known | since June (pyproject.toml)" in case.system_out

    def test_a_broken_rule_is_an_error(self, broken_report: AuditReport) -> None:
        case = self.cases(broken_report)["first", "ABC009 a-broken-one"]
        assert [type(one) for one in case.result] == [CaseError]


class TestMarkdown:
    def test_a_row_for_each_finding_and_nothing_that_a_name_could_mark(self, report: AuditReport) -> None:
        text = rendered(report, "markdown")
        table = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(table) == 2 + 6
        assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in table)
        assert "<img" not in text
        assert "@team" not in text
        assert "&lt;img src=x&gt;\\`@&#8203;team\\`" in text

    def test_a_number_of_an_issue_stays_a_number(self) -> None:
        assert markdown.escaped("sweep #12, o/r#7, a # b") == "sweep #&#8203;12, o/r#&#8203;7, a # b"

    def test_what_is_ignored_has_a_table_of_its_own(self, report: AuditReport) -> None:
        text = rendered(ignoring(report), "markdown")
        row = "| ABC001 an-error | run first, updates 2 to 4, both ranks |"
        assert f"{row} known \\| since June (pyproject.toml) |" in text

    def test_a_cut_leaves_the_least_findings_out(
        self, report: AuditReport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(markdown, "ROWS", 2)
        text = rendered(report, "markdown")
        assert "ABC001" in text
        assert "ABC003" not in text
        assert "4 further findings are not shown." in text


class TestText:
    def test_what_is_ignored_is_told_with_its_reason(self, report: AuditReport) -> None:
        text = " ".join(rendered(ignoring(report), "text").split())
        told = "ignored error ABC001 an-error in updates 2 to 4: known | since June (pyproject.toml)"
        assert told in text


class TestJsonLines:
    def test_a_line_for_each_object(self, report: AuditReport) -> None:
        lines = [json.loads(line) for line in rendered(report, "jsonl").splitlines()]
        assert [line["record"] for line in lines] == [*["run", *["verdict"] * 5] * 2, "summary"]
        verdicts = [line for line in lines if line["record"] == "verdict"]
        whole = json.loads(rendered(report, "json"))
        assert [
            {key: value for key, value in line.items() if key not in ("record", "run_id")}
            for line in verdicts
        ] == [verdict for run in whole["runs"] for verdict in run["verdicts"]]


class TestPlaces:
    @pytest.mark.parametrize(
        ("file", "told"),
        [
            ("runs/a.jsonl", "runs/a.jsonl"),
            ("./runs//a.jsonl", "runs/a.jsonl"),
            ("/data/runs/a.jsonl", "data/runs/a.jsonl"),
            ("../other/a.jsonl", "other/a.jsonl"),
            ("s3://bucket/runs/a.jsonl", "bucket/runs/a.jsonl"),
            ("C:/runs/a.jsonl", "runs/a.jsonl"),
            ("lr:0.1/rank-00/a.jsonl", "lr:0.1/rank-00/a.jsonl"),
            ("/", "log"),
        ],
    )
    def test_a_place_is_a_relative_path(self, file: str, told: str) -> None:
        assert relative(file) == told

    def test_a_path_below_this_folder_is_told_from_here(self, root: Path) -> None:
        assert relative(str(root / "runs" / "a.jsonl")) == "runs/a.jsonl"

    def test_a_finding_that_no_record_shows_is_at_the_run(self, report: AuditReport) -> None:
        def without_record(verdict: Verdict) -> Verdict:
            if verdict.finding is None:
                return verdict
            examples = [dataclasses.replace(one, file=None, line=None) for one in verdict.finding.examples]
            finding = dataclasses.replace(verdict.finding, examples=tuple(examples))
            return dataclasses.replace(verdict, finding=finding)

        issues = json.loads(rendered(with_verdicts(report, without_record), "gitlab"))
        assert {one["location"]["lines"]["begin"] for one in issues} == {1}
        assert "runs/first" in {one["location"]["path"] for one in issues}


def check(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)], prog_name="accumaudit")


class TestTheCommand:
    def test_every_format_is_written_with_the_same_exit_status(self) -> None:
        for format_ in outputs.FORMATS:
            result = check("runs/first", "--rules", "rules", "--select", "ABC", "--format", format_)
            assert result.exit_code == 1, format_
            assert "attempt 2 is wrong" in result.stdout

    def test_findings_may_be_shown_at_the_training_script(self) -> None:
        given = ("--rules", "rules", "--select", "ABC001", "--anchor", "train.py:12")
        assert "file=train.py,line=12," in check("runs/first", *given, "--format", "github").stdout
        log = json.loads(check("runs/first", *given, "--format", "sarif").stdout)
        (result,) = log["runs"][0]["results"]
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 12}}
        related = result["relatedLocations"][0]["physicalLocation"]
        assert related["artifactLocation"]["uri"].startswith("runs/first/")

    def test_an_anchor_without_a_line_is_an_error(self) -> None:
        result = check("runs/first", "--anchor", "train.py")
        assert result.exit_code == 2
        assert "`train.py` names no line; write FILE:LINE, as in train.py:120" in result.stderr

    def test_github_has_its_summary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
        check("runs/first", "--rules", "rules", "--select", "ABC001", "--format", "github")
        assert "## accumaudit" in (tmp_path / "summary.md").read_text(encoding="utf-8")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
    @pytest.mark.parametrize("format_", ["text", "json"])
    def test_a_report_that_cannot_be_printed_is_an_error(self, format_: str) -> None:
        command = [sys.executable, "-m", "accumaudit", "check", "runs/first", "--format", format_]
        environment = os.environ | {"PYTHONPATH": str(Path(accumaudit.__file__).parents[1])}
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                command, env=environment, stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert result.returncode == 2
        assert b"Error: standard output: the report cannot be written: " in result.stderr

    @pytest.mark.parametrize("format_", outputs.FORMATS)
    def test_control_characters_of_a_rule_come_out_escaped(self, tmp_path: Path, format_: str) -> None:
        write_rule(tmp_path, "ABC007", rows("attempt_id = 2"), name="a-loud-one", summary="a bell \x07 rings")
        result = check("runs/first", "--rules", tmp_path, "--select", "ABC007", "--format", format_)
        assert result.exit_code == 1
        assert "\x07" not in result.stdout
        if format_ == "junit":
            JUnitXml.fromstring(result.stdout.encode())

    def test_a_summary_that_cannot_be_written_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
        result = check("runs/first", "--format", "github")
        assert result.exit_code == 2
        assert "the summary of the step cannot be written" in result.stderr
