"""The command line: exit status, stdout and stderr together."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import accumaudit
from accumaudit import __version__
from accumaudit.cli import VERBS, main
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.outputs.text import render
from tests.records import write_run
from tests.rulefiles import rows, write_rule


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, so that no settings of this checkout are found."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a-run", 4)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule of each severity, each with one fault."""
    folder = tmp_path / "rules"
    write_rule(folder, "ABC001", rows("attempt_id = 2"), name="an-error")
    write_rule(folder, "ABC002", rows("attempt_id = 3"), name="a-warning", severity="warning")
    limit = rows("attempt_id >= $limit", rank="rank", where="rank = 1")
    write_rule(folder, "ABC003", limit, name="a-note", severity="note", params={"limit": 3})
    return folder


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Start Python as a process of its own; the package may lie in a checkout alone."""
    paths = (str(Path(accumaudit.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def check(run: Path, rules: Path, *options: str) -> Result:
    select = () if "--select" in options else ("--select", "ABC")
    return invoke("check", run, "--rules", rules, *select, *options)


class TestMain:
    def test_the_verbs(self) -> None:
        result = invoke("--help")
        assert result.exit_code == 0
        assert list(VERBS) == [
            "check",
            "show",
            "postmortem",
            "diff",
            "rules",
            "explain",
            "sql",
            "serve",
            "export",
            "dashboards",
            "demo",
        ]
        for verb, text in VERBS.items():
            assert f"  {verb} " in result.stdout
            assert text in result.stdout

    def test_help_imports_little(self) -> None:
        code = (
            "import sys\n"
            "from accumaudit.cli import main\n"
            "main(['--help'], standalone_mode=False)\n"
            "heavy = {'duckdb', 'torch', 'pandas', 'pyarrow', 'numpy', 'rich', 'plotly', 'jinja2'}\n"
            "heavy &= set(sys.modules)\n"
            "sys.exit(f'imported {heavy}' if heavy else 0)\n"
        )
        done = start("-c", code)
        assert (done.returncode, done.stderr) == (0, "")

    def test_check_imports_no_data_frames(self, run: Path) -> None:
        code = (
            "import sys\n"
            "from accumaudit.cli import main\n"
            f"main(['check', {str(run)!r}], standalone_mode=False)\n"
        )
        late = (
            "import atexit, sys\natexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n"
        )
        done = start("-c", late + code)
        assert done.returncode == 0
        frames = {"pandas", "pyarrow", "numpy"}
        if duckdb.__version__.startswith("1."):
            frames.clear()  # DuckDB 1 imports them itself for any parameter of a query.
        assert not {"torch", *frames} & set(done.stderr.split())

    def test_version(self) -> None:
        assert invoke("--version").stdout == f"accumaudit, version {__version__}\n"

    def test_an_unknown_verb(self) -> None:
        result = invoke("chek")
        assert result.exit_code == 2
        assert "No such command 'chek', did you mean `check`?" in result.stderr
        assert "No such command 'x'." in invoke("x").stderr

    @pytest.mark.parametrize("verb", ["check", "show", "sql"])
    def test_a_missing_dependency(self, run: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        monkeypatch.delitem(sys.modules, "accumaudit.ledger.reader", raising=False)
        result = invoke(verb, run, *(["SELECT 1"] if verb == "sql" else []))
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "Error: this needs duckdb, which is not installed: pip install duckdb\n"

    def test_as_a_module(self, run: Path) -> None:
        done = start("-m", "accumaudit", "check", str(run))
        assert (done.returncode, done.stderr) == (0, "")
        assert "Found no fault in 1 run" in done.stdout


class TestCheck:
    def test_a_healthy_run_says_what_was_judged(self, run: Path) -> None:
        result = invoke("check", run)
        assert (result.exit_code, result.stderr) == (0, "")
        first, *_, last = result.stdout.splitlines()
        assert first == "a-run: 4 updates, 2 ranks, torch"
        assert "  passed     " in result.stdout
        assert "  not checked" in result.stdout
        counted = re.fullmatch(r"Found no fault in 1 run \((\d+) rules? passed, (\d+) not checked\)\.", last)
        assert counted is not None
        assert int(counted[1]) + int(counted[2]) == len(load_rules())

    def test_a_finding_can_be_understood(self, run: Path, rules: Path) -> None:
        result = check(run, rules, "--ignore", "ABC002,a-note")
        assert (result.exit_code, result.stderr) == (1, "")
        assert result.stdout == (
            "a-run: 4 updates, 2 ranks, torch\n"
            "\n"
            "error ABC001 an-error\n"
            "  what         something is wrong\n"
            "  seen         attempt 2 is wrong\n"
            "  measured     0.5, expected 1\n"
            "  where        update 2, both ranks, 1 of 4 attempts\n"
            f"  first        {run}/rank-00/00000.aaaa.jsonl:3\n"
            "  fix          Nothing to do.\n"
            "\n"
            "\n"
            "`accumaudit explain ABC001` says why it matters and when it is no fault.\n"
            "Found 1 fault in 1 run (0 rules passed, 0 not checked).\n"
        )

    def test_notes_are_counted_apart(self, run: Path, rules: Path) -> None:
        result = check(run, rules)
        assert result.exit_code == 1
        assert "where        updates 3 to 4, rank 1, 2 of 4 attempts" in result.stdout
        assert "Found 2 faults and 1 note in 1 run (0 rules passed, 0 not checked)." in result.stdout

    @pytest.mark.parametrize(
        ("selected", "fail_on", "status"),
        [
            ("ABC001", None, 1),
            ("ABC002", None, 0),
            ("ABC002", "warning", 1),
            ("ABC003", "warning", 0),
            ("ABC003", "note", 1),
            ("ABC001", "never", 0),
        ],
    )
    def test_the_exit_status(
        self, run: Path, rules: Path, selected: str, fail_on: str | None, status: int
    ) -> None:
        options = ["--fail-on", fail_on] if fail_on else []
        assert invoke("check", run, "--rules", rules, "--select", selected, *options).exit_code == status

    def test_a_broken_rule(self, run: Path, rules: Path) -> None:
        file = write_rule(rules, "ABC009", rows("nonsense"), name="a-broken-one")
        result = check(run, rules, "--select", "ABC009")
        assert result.exit_code == 2
        assert "broken rule ABC009 a-broken-one" in result.stdout
        assert f"{file}:15:" in result.stdout
        assert "1 broken)." in result.stdout

    def test_an_unusable_rule(self, run: Path, rules: Path) -> None:
        file = write_rule(rules, "ABC009", rows(), severity="fatal")
        result = check(run, rules)
        assert result.exit_code == 2
        assert result.stderr == f"Error: {file}:4: `severity` is error or warning or note, not `fatal`\n"

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--select", "an-eror"], "no rule is called `an-eror`, did you mean `an-error`?"),
            (["--ignore", "ABX001"], "no rule is called `ABX001`, did you mean `ABC001`?"),
            (["--select", "ABC0O1"], "no rule is called `ABC0O1`, did you mean `ABC001`?"),
            (["--param", "ABC003.limit"], "`ABC003.limit` sets no threshold"),
            (["--param", "ABC003.limit=nan"], "the parameter ABC003.limit is a finite number, not nan"),
            (["--param", "ABC003.limits=4"], "ABC003 has no parameter `limits`; it has ABC003.limit"),
            (["--rules", "nowhere"], "nowhere: this folder of rules does not exist"),
            (["--output", "no/such/folder"], "no/such/folder: the report cannot be written"),
            (["--fail-on", "fatal"], "'fatal' is not one of 'error', 'warning', 'note', 'never'.\n"),
            (["--fail-on", "eror"], "'note', 'never', did you mean `error`?"),
            (["--fail"], "'--fail-on'"),
        ],
    )
    def test_usage_errors(self, run: Path, rules: Path, options: list[str], text: str) -> None:
        result = invoke("check", run, "--rules", rules, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr

    def test_a_threshold(self, run: Path, rules: Path) -> None:
        result = check(run, rules, "--select", "ABC003", "--param", "ABC003.limit=5")
        assert "Found no fault in 1 run (1 rule passed, 0 not checked)." in result.stdout

    def test_json(self, run: Path, rules: Path) -> None:
        result = check(run, rules, "--format", "json", "--ignore", "ABC002,ABC003")
        assert result.exit_code == 1
        report = json.loads(result.stdout)
        example = {
            "launch": 1,
            "optimizer": 0,
            "attempt_id": 2,
            "optimizer_update_id": 2,
            "rank": None,
            "file": f"{run}/rank-00/00000.aaaa.jsonl",
            "line": 3,
            "message": "attempt 2 is wrong",
            "observed": 0.5,
            "expected": 1.0,
        }
        assert report == {
            "schema": 1,
            "runs": [
                {
                    "run_id": "a-run",
                    "path": str(run),
                    "format": "ledger",
                    "runtime": "torch",
                    "ranks": [0, 1],
                    "world_size": 2,
                    "updates": 4,
                    "attempts": 4,
                    "skipped": 0,
                    "verdicts": [
                        {
                            "code": "ABC001",
                            "name": "an-error",
                            "severity": "error",
                            "status": "failed",
                            "judged": 4,
                            "reason": None,
                            "finding": {
                                "count": 1,
                                "first_update": 2,
                                "last_update": 2,
                                "ranks": [0, 1],
                                "message": "attempt 2 is wrong",
                                "observed": 0.5,
                                "expected": 1.0,
                                "examples": [example],
                            },
                            "ignored": [],
                        }
                    ],
                    "unreadable": [],
                    "remarks": [],
                }
            ],
            "no_logs": [],
            "summary": {"failed": 1, "passed": 0, "not_checked": 0, "broken": 0},
        }

    @pytest.mark.parametrize("format_", ["text", "json"])
    def test_output_to_a_file(self, run: Path, rules: Path, tmp_path: Path, format_: str) -> None:
        shown = check(run, rules, "--format", format_)
        file = tmp_path / "report"
        written = check(run, rules, "--format", format_, "--output", str(file))
        assert (written.exit_code, written.stdout) == (1, "")
        assert file.read_text() == shown.stdout

    def test_numbers_that_json_does_not_have(self, run: Path, rules: Path) -> None:
        write_rule(rules, "ABC004", rows("true").replace("0.5 AS", "'nan'::DOUBLE AS"))
        result = check(run, rules, "--format", "json", "--select", "ABC004")
        (verdict,) = json.loads(result.stdout)["runs"][0]["verdicts"]
        assert verdict["finding"]["observed"] is None

    def test_several_runs(self, run: Path, tmp_path: Path, rules: Path) -> None:
        other = write_run(tmp_path / "another", 1, ranks=1)
        result = invoke("check", run, other, "--rules", rules, "--select", "ABC001")
        assert "another: 1 update, 1 rank, torch" in result.stdout
        assert "Found 1 fault in 2 runs (1 verdict passed, 0 not checked)." in result.stdout


class TestHostileText:
    HOSTILE = "\x1b[2J[bold]\u202e\x9b\nFound no fault"

    @pytest.fixture
    def result(self, tmp_path: Path) -> Result:
        folder = tmp_path / "rules"
        sql = rows("true").replace("format('attempt {} is wrong', attempt_id)", "runtime")
        write_rule(folder, "ABC001", sql)
        run = write_run(tmp_path / "evil\x1b]0;[red]x", 1, runtime=self.HOSTILE)
        return invoke("check", run, "--rules", folder, "--select", "ABC001")

    def test_no_control_character_reaches_the_terminal(self, result: Result) -> None:
        assert result.exit_code == 1
        assert [char for char in result.stdout if not char.isprintable() and char != "\n"] == []
        assert r"seen         \x1b[2J[bold]\u202e\x9b\nFound no fault" in result.stdout

    def test_names_are_no_markup(self, result: Result) -> None:
        assert result.stdout.startswith(r"evil\x1b]0;[red]x: 1 update")


class TestTerminal:
    def test_colour_and_width_are_the_terminals(self, run: Path, rules: Path) -> None:
        report = check_paths([run], rules=[rules], select=["ABC"])
        page = io.StringIO()
        render(report, Console(file=page, force_terminal=True, color_system="standard", width=50))
        assert "\x1b[1;31merror\x1b[0m ABC001 an-error" in page.getvalue()
        plain = re.sub(r"\x1b\[[0-9;]*m", "", page.getvalue())
        wide = [line for line in plain.splitlines() if len(line) > 50]
        assert all(word in "".join(wide) for word in (str(run), "explain", "Found"))
        assert len(wide) == 5

    def test_an_encoding_without_the_letters(self, run: Path, rules: Path) -> None:
        write_rule(rules, "ABC004", rows("true").replace("is wrong", "is \u00e9\u65e5"), name="a-letter")
        report = check_paths([run], rules=[rules], select=["ABC004"])
        page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        render(report, Console(file=page))
        page.seek(0)
        assert r"attempt 1 is \xe9\u65e5" in page.read()


class TestSettings:
    @pytest.fixture
    def file(self, elsewhere: Path) -> Path:
        return elsewhere / "accumaudit.toml"

    def test_accumaudit_toml(self, run: Path, rules: Path, file: Path) -> None:
        file.write_text(
            f'select = ["ABC"]\nignore = ["an-error"]\nfail-on = "note"\nrules = ["{rules}"]\n'
            "[params]\nABC003.limit = 9\n"
        )
        result = invoke("check", run)
        assert result.exit_code == 1
        assert "Found 1 fault in 1 run (1 rule passed, 0 not checked)." in result.stdout

    @pytest.mark.usefixtures("rules")
    def test_pyproject_of_a_folder_above(
        self, run: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = (
            '[tool.accumaudit]\nrules = ["../rules"]\nselect = ["ABC002"]\nparams = {"ABC003.limit" = 9}\n'
        )
        (elsewhere / "pyproject.toml").write_text(table)
        (elsewhere / "below").mkdir()
        monkeypatch.chdir(elsewhere / "below")
        assert "warning ABC002 a-warning" in invoke("check", run).stdout

    def test_the_command_line_goes_before(self, run: Path, rules: Path, file: Path) -> None:
        file.write_text(f'select = ["ABC003"]\nfail-on = "never"\nrules = ["{rules}"]\n')
        assert invoke("check", run, "--select", "ABC001", "--fail-on", "error").exit_code == 1

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("selct = []", "unknown setting `selct`, did you mean `select`?"),
            ("xyz = []", "unknown setting `xyz`; there are select, ignore, baseline, fail-on, rules, params"),
            ('fail-on = "warn"', "not 'warn', did you mean `warning`?"),
            ('select = "ABC"', '`select` is a list of texts: select = ["..."]'),
            ('fail-on = "fatal"', "`fail-on` is error, warning, note, never, not 'fatal'"),
            ('[params]\nABC003.limit = "4"', "`ABC003.limit` in params is a number"),
            ("params = 3", "`params` is a table: [params], then ACC302.share = 0.01"),
            ("select = [", "cannot be read as TOML"),
            pytest.param("select = " + "[" * 20_000, "cannot be read as TOML", id="deep"),
        ],
    )
    def test_errors_name_the_file(self, run: Path, file: Path, text: str, reason: str) -> None:
        file.write_text(text)
        result = invoke("check", run)
        assert result.exit_code == 2
        assert f"{file}: " in result.stderr
        assert reason in result.stderr


class TestRules:
    def test_the_list(self) -> None:
        lines = invoke("rules").stdout.splitlines()
        assert [line.split()[:3] for line in lines] == [
            [rule.code, rule.name, rule.severity] for rule in load_rules().values()
        ]

    def test_json(self, rules: Path) -> None:
        records: list[dict[str, Any]] = json.loads(
            invoke("rules", "--rules", rules, "--format", "json").stdout
        )
        (found,) = (record for record in records if record["code"] == "ABC003")
        assert found["name"] == "a-note"
        assert found["params"] == {"limit": 3.0}
        assert found["why"] == "It is a test."


class TestSql:
    def test_a_table(self, run: Path) -> None:
        result = invoke(
            "sql", run, "SELECT attempt_id, NULL AS x, rank FROM updates WHERE rank = 1 ORDER BY 1"
        )
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[:3] == [
            "attempt_id  x  rank",
            "----------  -  ----",
            "1              1",
        ]

    def test_json(self, run: Path) -> None:
        query = "SELECT 1 AS a, 'nan'::DOUBLE AS b, DATE '2026-01-02' AS c"
        result = invoke("sql", run, query, "--format", "json")
        assert json.loads(result.stdout) == [{"a": 1, "b": None, "c": "2026-01-02"}]

    @pytest.mark.parametrize(
        ("query", "text"),
        [
            ("SELECT 1; SELECT 2", "one statement can be asked at a time; this is 2"),
            ("", "one statement can be asked at a time; this is 0"),
            ("SELEC 1", "syntax error"),
            ("SELECT nonsense FROM windows", 'Referenced column "nonsense" not found'),
            ("COPY windows TO 'out.csv'", "Permission Error"),
            ("SELECT * FROM read_text('/etc/hostname')", "Permission Error"),
            ("ATTACH 'x.db'", "Error"),
            ("SET enable_external_access = true", "Error"),
            ("INSTALL httpfs", "Error"),
        ],
    )
    def test_errors(self, run: Path, elsewhere: Path, query: str, text: str) -> None:
        result = invoke("sql", run, query)
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr
        assert list(elsewhere.iterdir()) == []

    def test_cells_are_escaped(self, run: Path) -> None:
        result = invoke("sql", run, "SELECT chr(27) || '[2J' AS \"a\x1bb\"")
        assert result.stdout == "a\\x1bb\n-------\n\\x1b[2J\n"
