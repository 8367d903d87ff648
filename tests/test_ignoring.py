"""What is ignored, and why: by settings, by a baseline, and what it leaves of a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.cli.config import find_settings
from accumaudit.engine import check_paths
from accumaudit.engine.findings import Verdict
from accumaudit.engine.ignoring import Ignore, IgnoreError, read_baseline
from tests.records import write_run
from tests.rulefiles import rows, write_rule

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

OLD = "the loop was mended since"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a-run", 6)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule with faults in updates 2, 3 and 5, one that follows from it, and one without any."""
    folder = tmp_path / "rules"
    write_rule(folder, "ABC001", rows("attempt_id IN (2, 3, 5)"), name="the-cause", explains=["ABC002"])
    write_rule(folder, "ABC002", rows("attempt_id IN (2, 3)"), name="the-effect")
    write_rule(folder, "ABC003", rows(), name="another")
    return folder


def verdicts(run: Path, rules: Path, *ignore: str | Ignore) -> dict[str, Verdict]:
    (report,) = check_paths([run], rules=[rules], select=["ABC"], ignore=ignore).runs
    return {verdict.code: verdict for verdict in report.verdicts}


def unused(run: Path, rules: Path, *ignore: str | Ignore) -> tuple[str, ...]:
    return check_paths([run], rules=[rules], select=["ABC"], ignore=ignore).unused


class TestIgnore:
    def test_some_updates(self, run: Path, rules: Path) -> None:
        ignore = Ignore(rule="the-cause", updates="1-3", reason=OLD, source="a.toml")
        verdict = verdicts(run, rules, ignore)["ABC001"]
        assert (verdict.status, verdict.judged) == ("failed", 6)
        assert verdict.finding is not None
        assert (verdict.finding.count, verdict.finding.first_update) == (1, 5)
        assert [example.attempt_id for example in verdict.finding.examples] == [5]
        (ignored,) = verdict.ignored
        assert (ignored.reason, ignored.source, ignored.severity) == (OLD, "a.toml", "error")
        assert (ignored.finding.count, ignored.finding.first_update, ignored.finding.last_update) == (2, 2, 3)
        assert [example.attempt_id for example in ignored.finding.examples] == [2, 3]
        assert ignored.finding.ranks == (0, 1)

    @pytest.mark.parametrize(
        ("updates", "left"), [("", ()), ("2", (3, 5)), ("3-", (2,)), ("2 - 3", (5,)), ("6-9", (2, 3, 5))]
    )
    def test_the_ways_to_name_updates(
        self, run: Path, rules: Path, updates: str, left: tuple[int, ...]
    ) -> None:
        verdict = verdicts(run, rules, Ignore(rule="ABC001", updates=updates, reason=OLD))["ABC001"]
        examples = verdict.finding.examples if verdict.finding else ()
        assert tuple(example.attempt_id for example in examples) == left

    def test_a_rule_whose_findings_are_all_ignored_never_passes(self, run: Path, rules: Path) -> None:
        verdict = verdicts(run, rules, Ignore(rule="ABC001", reason=OLD))["ABC001"]
        assert (verdict.status, verdict.finding) == ("not_checked", None)
        assert verdict.reason == f"ignored: {OLD}"
        assert [one.finding.count for one in verdict.ignored] == [3]

    def test_the_ignored_stay_causes_of_others(self, run: Path, rules: Path) -> None:
        effect = verdicts(run, rules, Ignore(rule="ABC001", reason=OLD))["ABC002"]
        assert effect.status == "not_checked"
        assert effect.reason == "a cause was found by ABC001 (ignored); 4 other rows are clean"

    def test_a_cause_that_is_ignored_in_part_is_still_reported(self, run: Path, rules: Path) -> None:
        effect = verdicts(run, rules, Ignore(rule="ABC001", updates="2-3", reason=OLD))["ABC002"]
        assert effect.reason == "a cause was found by ABC001; 4 other rows are clean"

    def test_several_reasons_are_told_apart(self, run: Path, rules: Path) -> None:
        first = Ignore(rule="ABC001", updates="2", reason="a bad shard")
        second = Ignore(rule="ABC", reason=OLD)
        verdict = verdicts(run, rules, first, second)["ABC001"]
        assert verdict.reason == f"ignored: a bad shard; {OLD}"
        assert [(one.reason, one.finding.count) for one in verdict.ignored] == [("a bad shard", 1), (OLD, 2)]

    def test_runs_are_named_by_a_pattern(self, rules: Path, tmp_path: Path) -> None:
        for name in ("pretrain-1", "pretrain-2", "finetune"):
            write_run(tmp_path / "runs" / name, 6)
        ignore = Ignore(rule="ABC001", run="pretrain-*", reason=OLD)
        report = check_paths([tmp_path / "runs"], rules=[rules], select=["ABC001"], ignore=[ignore])
        found = {run.run_id: run.verdicts[0].status for run in report.runs}
        assert found == {"finetune": "failed", "pretrain-1": "not_checked", "pretrain-2": "not_checked"}
        assert report.worst() == "error"

    def test_brackets_in_a_name_are_letters(self, rules: Path, tmp_path: Path) -> None:
        run = write_run(tmp_path / "sweep[lr=1]", 6)
        ignore = Ignore(rule="ABC001", run="sweep[lr=?]", reason=OLD)
        assert verdicts(run, rules, ignore)["ABC001"].status == "not_checked"
        assert verdicts(run, rules, Ignore(rule="ABC001", run="[s]weep*", reason=OLD))["ABC001"].finding

    def test_rows_without_an_update_are_in_no_range(self, run: Path, tmp_path: Path) -> None:
        folder = tmp_path / "run-rules"
        sql = rows("true").replace("launch, optimizer, attempt_id,", "launch, 0, NULL::BIGINT AS attempt_id,")
        write_rule(folder, "ABC001", sql.replace("launch, 0,", "launch, 0 AS optimizer,"), scope="run")
        assert verdicts(run, folder, Ignore(rule="ABC001", updates="1-", reason=OLD))["ABC001"].finding
        assert not verdicts(run, folder, Ignore(rule="ABC001", reason=OLD))["ABC001"].finding

    def test_a_rule_that_is_left_out_has_no_verdict(self, run: Path, rules: Path) -> None:
        assert [*verdicts(run, rules, "the-cause")] == ["ABC002", "ABC003"]

    @pytest.mark.parametrize(
        ("ignore", "text"),
        [
            ({"reason": " "}, "the ignore of `ABC001` has no reason"),
            ({"run": ""}, "the ignore of `ABC001` names an empty run; leave `run` out for every run"),
            ({"updates": "\u0664"}, "`\u0664` names no updates"),
            ({"updates": "first"}, "`first` names no updates; write `7`, `1-400` or `400-`"),
            ({"updates": "-4"}, "`-4` names no updates"),
            ({"updates": "9-4"}, "the updates 9-4 end before they begin"),
        ],
    )
    def test_errors(self, ignore: dict[str, str], text: str) -> None:
        with pytest.raises(IgnoreError, match=text):
            Ignore(**{"rule": "ABC001", "reason": OLD, **ignore})

    def test_one_that_matches_nothing_is_told(self, run: Path, rules: Path) -> None:
        ignores = (
            Ignore(rule="ABC001", reason=OLD),
            Ignore(rule="another", reason=OLD, source="a.toml"),
            Ignore(rule="the-cause", run="a-*", updates="4", reason=OLD, source="a.toml"),
            Ignore(rule="another", run="of-another-day", reason=OLD),
        )
        assert unused(run, rules, *ignores) == (
            "a.toml: the ignore of `another` matches nothing",
            "a.toml: the ignore of `the-cause` (run `a-*`, updates 4) matches nothing",
        )

    def test_one_of_a_rule_that_did_not_judge_is_not_told(self, run: Path, rules: Path) -> None:
        assert unused(run, rules, "another", Ignore(rule="another", reason=OLD)) == ()
        assert unused(run, rules, Ignore(rule="ACC101", reason=OLD)) == ()

    def test_one_that_another_has_answered_already_is_used(self, run: Path, rules: Path) -> None:
        same = Ignore(rule="ABC001", reason=OLD)
        assert unused(run, rules, same, same, Ignore(rule="the-effect", reason=OLD)) == ()


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("here")
class TestSettings:
    @pytest.fixture
    def file(self, here: Path) -> Path:
        return here / "accumaudit.toml"

    def test_the_output_repeats_the_reason(self, run: Path, rules: Path, file: Path) -> None:
        ignore = f'{{rule = "the-cause", run = "a-*", updates = "1-3", reason = "{OLD}"}}'
        file.write_text(f'select = ["ABC"]\nignore = ["another", {ignore}]\n')
        result = invoke("check", run, "--rules", rules)
        assert (result.exit_code, result.stderr) == (1, "")
        assert "where        update 5, both ranks" in result.stdout
        assert f"in updates 2 to 3: {OLD} (accumaudit.toml)" in result.stdout

    def test_nothing_fails_where_everything_is_ignored(self, run: Path, rules: Path, file: Path) -> None:
        file.write_text(f'select = ["ABC"]\nignore = [{{rule = "ABC001", reason = "{OLD}"}}]\n')
        result = invoke("check", run, "--rules", rules)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"not checked  the-cause: ignored: {OLD}" in result.stdout
        assert "Found no fault in 1 run (1 rule passed, 2 not checked)." in result.stdout

    def test_a_rule_left_out_on_the_command_line_keeps_the_reasons(
        self, run: Path, rules: Path, file: Path
    ) -> None:
        file.write_text(f'ignore = ["another", {{rule = "ABC001", reason = "{OLD}"}}]\n')
        result = invoke("check", run, "--rules", rules, "--select", "ABC", "--ignore", "the-effect")
        assert "Found no fault in 1 run (1 rule passed, 1 not checked)." in result.stdout

    def test_an_ignore_that_matches_nothing_is_told(self, run: Path, rules: Path, file: Path) -> None:
        file.write_text(f'ignore = [{{rule = "another", reason = "{OLD}"}}]\n')
        for verb in ("check", "show"):
            file.write_text(f'rules = ["{rules}"]\n{file.read_text().splitlines()[-1]}\n')
            result = invoke(verb, run)
            assert result.stderr == "note: accumaudit.toml: the ignore of `another` matches nothing\n"

    def test_show_marks_no_attempt_that_is_ignored(self, run: Path, rules: Path, file: Path) -> None:
        file.write_text(
            f'rules = ["{rules}"]\nselect = ["ABC001"]\n'
            f'ignore = [{{rule = "ABC001", updates = "2-3", reason = "{OLD}"}}]\n'
        )
        table = invoke("show", run).stdout
        assert [line.split()[0] for line in table.splitlines() if line.endswith(" ABC001")] == ["5"]

    @pytest.mark.parametrize(
        ("ignore", "text"),
        [
            ('"ABC001"', "`ignore` is a list: ignore = ["),
            ("[1]", "`ignore` is a list: ignore = ["),
            ('[{rule = "ABC001"}]', "the ignore of `ABC001` has no reason"),
            ('[{reason = "so"}]', "an ignore names no rule: ["),
            ('[{rule = "ABC001", reson = "so"}]', "unknown key `reson` of an ignore, did you mean `reason`?"),
            ('[{rule = "ABC001", reason = "so", ranks = "1"}]', "; there are rule, run, updates, reason"),
            ('[{rule = "ABC001", reason = "so", updates = 4}]', "`updates` of an ignore is a text"),
            ('[{rule = "ABC001", reason = "so", updates = "x"}]', "`x` names no updates"),
        ],
    )
    def test_errors_name_the_file(self, run: Path, file: Path, ignore: str, text: str) -> None:
        file.write_text(f"ignore = {ignore}\n")
        result = invoke("check", run)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{file}: " in result.stderr
        assert text in result.stderr

    def test_an_unknown_rule_has_the_nearest_name(self, run: Path, file: Path) -> None:
        file.write_text('ignore = [{rule = "dropped-tale", reason = "so"}]\n')
        result = invoke("check", run)
        assert result.exit_code == 2
        assert "no rule is called `dropped-tale`, did you mean `dropped-tail`?" in result.stderr


@pytest.mark.usefixtures("here")
class TestBaseline:
    def check(self, run: Path, rules: Path, *options: str) -> Result:
        return invoke("check", run, "--rules", rules, "--select", "ABC", *options)

    def test_what_was_there_is_left_out(self, run: Path, rules: Path, here: Path) -> None:
        written = self.check(run, rules, "--write-baseline", "known.json")
        assert (written.exit_code, written.stderr) == (0, "")
        assert "in updates 2, 3 and 5: it stands in the baseline (known.json)" in written.stdout
        again = self.check(run, rules, "--baseline", "known.json")
        assert (again.exit_code, again.stdout) == (0, written.stdout)
        (known,) = json.loads((here / "known.json").read_text())["findings"]
        assert (known["code"], known["run_id"], known["first_update"]) == ("ABC001", "a-run", 2)
        assert known["message"] == "attempt 2 is wrong"

    @pytest.mark.usefixtures("here")
    def test_what_is_new_is_reported(self, run: Path, rules: Path) -> None:
        self.check(run, rules, "--write-baseline", "known.json")
        write_rule(rules, "ABC004", rows("attempt_id = 4"), name="a-new-one")
        result = self.check(run, rules, "--baseline", "known.json")
        assert result.exit_code == 1
        assert "Found 1 fault in 1 run" in result.stdout
        assert "error ABC004 a-new-one" in result.stdout

    def test_a_finding_that_begins_earlier_is_new(self, run: Path, rules: Path) -> None:
        self.check(run, rules, "--write-baseline", "known.json")
        write_rule(rules, "ABC001", rows("attempt_id < 4"), name="the-cause", explains=["ABC002"])
        assert self.check(run, rules, "--baseline", "known.json").exit_code == 1

    def test_a_finding_that_became_worse_is_new(self, run: Path, rules: Path) -> None:
        write_rule(rules, "ABC003", rows("attempt_id = 1"), name="another", severity="note")
        self.check(run, rules, "--write-baseline", "known.json")
        write_rule(rules, "ABC003", rows("attempt_id = 1"), name="another", severity="warning")
        result = self.check(run, rules, "--baseline", "known.json", "--fail-on", "warning")
        assert result.exit_code == 1
        assert "warning ABC003 another" in result.stdout

    def test_what_is_ignored_otherwise_is_not_written(self, run: Path, rules: Path, here: Path) -> None:
        (here / "accumaudit.toml").write_text(f'ignore = [{{rule = "ABC001", reason = "{OLD}"}}]\n')
        self.check(run, rules, "--write-baseline", "known.json")
        assert json.loads((here / "known.json").read_text()) == {"schema": 1, "findings": []}

    def test_writing_takes_in_what_the_old_one_held(self, run: Path, rules: Path, here: Path) -> None:
        (here / "accumaudit.toml").write_text('baseline = "known.json"\n')
        (here / "known.json").write_text('{"schema": 1, "findings": []}')
        assert self.check(run, rules).exit_code == 1
        for _ in range(2):
            assert self.check(run, rules, "--write-baseline", "known.json").exit_code == 0
            assert len(read_baseline(here / "known.json").known) == 1
        assert self.check(run, rules).exit_code == 0

    def test_the_settings_name_one_beside_their_file(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (here / "accumaudit.toml").write_text('baseline = "known.json"\n')
        (here / "below").mkdir()
        monkeypatch.chdir(here / "below")
        assert find_settings(Path.cwd()).baseline == here / "known.json"

    def test_what_is_no_longer_found_is_told(self, run: Path, rules: Path) -> None:
        self.check(run, rules, "--write-baseline", "known.json")
        write_rule(rules, "ABC001", rows(), name="the-cause", explains=["ABC002"])
        write_rule(rules, "ABC002", rows(), name="the-effect")
        result = self.check(run, rules, "--baseline", "known.json")
        assert result.exit_code == 0
        told = "note: known.json: was not found any more: ABC001 in a-run from update 2\n"
        assert result.stderr == told

    def test_what_is_of_other_runs_and_rules_is_not_told(
        self, run: Path, rules: Path, tmp_path: Path
    ) -> None:
        self.check(run, rules, "--write-baseline", "known.json")
        other = write_run(tmp_path / "other", 1)
        assert self.check(other, rules, "--baseline", "known.json").stderr == ""
        only = invoke("check", run, "--rules", rules, "--select", "ABC003", "--baseline", "known.json")
        assert only.stderr == ""

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "this is no baseline: "),
            pytest.param("[" * 100_000, "this is no baseline: ", id="deep"),
            ("[]", "this is no baseline of schema 1; write it with --write-baseline"),
            ('{"schema": 2}', "this is no baseline of schema 1"),
            ('{"schema": 1}', "a finding of this baseline is not whole; write it again"),
            ('{"schema": 1, "findings": [{"code": "ABC001"}]}', "a finding of this baseline is not whole"),
            ('{"schema": 1, "findings": [3]}', "a finding of this baseline is not whole"),
        ],
    )
    def test_errors_name_the_file(self, run: Path, rules: Path, here: Path, text: str, reason: str) -> None:
        (here / "known.json").write_text(text)
        result = self.check(run, rules, "--baseline", "known.json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"known.json: {reason}" in result.stderr

    def test_a_file_that_is_not_there(self, run: Path, rules: Path) -> None:
        result = self.check(run, rules, "--baseline", "nowhere.json")
        assert result.exit_code == 2
        assert (
            result.stderr == "Error: nowhere.json: the baseline cannot be read: No such file or directory\n"
        )
        result = self.check(run, rules, "--write-baseline", "no/such/folder.json")
        assert result.exit_code == 2
        assert "no/such/folder.json: the baseline cannot be written" in result.stderr
