"""`accumaudit rules new`: the files of a rule that is to be written."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules, read_folders
from accumaudit.rules import FOLDER
from tests.faults import registry
from tests.records import write_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def checkout(here: Path) -> Path:
    """A folder with the rules, and the place of the trainings."""
    shutil.copytree(FOLDER, here / "rules", ignore=shutil.ignore_patterns("__pycache__"))
    (here / "tests" / "faults").mkdir(parents=True)
    shutil.copy(registry.__file__, here / "tests" / "faults")
    return here


def new(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["rules", "new", *arguments], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


class TestOwnRules:
    def test_it_loads_with_every_heading_and_judges_nothing(self, here: Path, tmp_path: Path) -> None:
        assert new("late-step", "--into", "ours").stdout == "wrote ours/OWN001_late_step.sql\n"
        rule = load_rules(here / "ours")["OWN001"]
        assert rule.name == "late-step"
        assert all((rule.summary, rule.why, rule.example, rule.fix, rule.not_a_fault_when))
        run = write_run(tmp_path / "run", 3)
        (report,) = check_paths([run], rules=[here / "ours"], select=["OWN001"]).runs
        (verdict,) = report.verdicts
        assert (verdict.status, verdict.reason) == (
            "not_checked",
            "3 rows were in scope, and the record decides none of them",
        )

    def test_the_codes_go_on(self, here: Path) -> None:
        new("late-step", "--code", "LAB041")
        assert new("early-step").stdout == "wrote rules/LAB042_early_step.sql\n"
        assert new("no-step", "--family", "steps").exit_code == 2
        assert new("other-step", "--family", "steps", "--code", "LAB101").exit_code == 0
        assert new("third-step", "--family", "steps").stdout == "wrote rules/steps/LAB102_third_step.sql\n"
        assert [*read_folders(here / "rules")] == ["LAB041", "LAB042", "LAB101", "LAB102"]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["Late_Step"], "`Late_Step` is no name: small letters with hyphens (fixed-divisor-tail)"),
            (["use-fewer-steps"], "`use-fewer-steps` says what to do; name the fault, without `use-`"),
            (["fixed-divisor-tail"], "the name fixed-divisor-tail belongs to ACC101 already"),
            (["late-step", "--code", "ACC101"], "the code ACC101 belongs to fixed-divisor-tail already"),
            (["late-step", "--code", "A1"], "`A1` is no code: capital letters, then three digits"),
            (["late-step", "--famly", "x"], "--family"),
            (["late-step", "--family", "../x"], "the family `../x` lies outside of rules"),
            (["late-step", "--family", "/tmp/x"], "the family `/tmp/x` lies outside of rules"),
        ],
    )
    def test_errors(self, here: Path, arguments: list[str], text: str) -> None:
        result = new(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr
        assert list(here.iterdir()) == []

    def test_a_file_is_never_written_over(self, here: Path) -> None:
        (here / "rules").mkdir()
        file = here / "rules" / "OWN002_late_step.sql"
        new("early-step")
        file.write_text("mine")
        result = new("late-step")
        assert result.exit_code == 2
        assert file.read_text() == "mine"

    def test_a_folder_that_cannot_be_made_is_an_error(self, here: Path) -> None:
        (here / "file").write_text("mine")
        result = new("late-step", "--into", "file/rules")
        assert result.exit_code == 2
        assert "OWN001_late_step.sql: the skeleton cannot be written: " in result.stderr

    def test_after_the_last_code_one_has_to_be_named(self) -> None:
        new("late-step", "--code", "OWN999")
        assert "no code is free after OWN999; name one with --code" in new("early-step").stderr
        assert new("early-step", "--code", "OWN001").exit_code == 0

    def test_an_unknown_word_has_the_nearest(self) -> None:
        result = CliRunner().invoke(main, ["rules", "nwe"])
        assert result.exit_code == 2
        assert "No such command 'nwe', did you mean `new`?" in result.stderr


class TestCheckout:
    def test_the_next_code_of_a_family_and_a_training(self, checkout: Path) -> None:
        last = max(code for code, rule in load_rules().items() if rule.family == "window")
        code = f"ACC{int(last[3:]) + 1}"
        assert new("torn-window", "--family", "window").stdout == (
            f"wrote rules/window/{code}_torn_window.sql\nwrote tests/faults/torn_window.py\n"
        )
        rules = read_folders(checkout / "rules")
        assert (rules[code].name, rules[code].family) == ("torn-window", "window")
        assert len(rules) == len(load_rules()) + 1

    def test_nothing_is_written_where_the_training_is_there(self, checkout: Path) -> None:
        (checkout / "tests" / "faults" / "torn_window.py").write_text("mine")
        result = new("torn-window", "--family", "window")
        assert result.exit_code == 2
        assert "tests/faults/torn_window.py is there already" in result.stderr
        assert list((checkout / "rules").rglob("*_torn_window.sql")) == []

    def test_the_training_of_the_twin_runs(self, checkout: Path) -> None:
        new("torn-window", "--family", "window")
        module = runpy.run_path(str(checkout / "tests" / "faults" / "torn_window.py"))
        fault = module["FAULT"]
        assert {*fault.trainings, *fault.elsewhere} == {*registry.RUNTIMES}
        (run,) = check_paths([trained(checkout / "twin", module)]).runs
        assert run.updates == 4
        assert not run.with_status("failed")
        with pytest.raises(NotImplementedError, match="do here what is wrong"):
            module["plain_torch"](str(checkout / "faulty"), honest=False)

    def test_the_family_follows_from_the_code(self, checkout: Path) -> None:
        assert new("torn-window", "--code", "acc299").exit_code == 0
        assert (checkout / "rules" / "window" / "ACC299_torn_window.sql").is_file()
        assert new("late-window", "--code", "NEW101", "--family", "days").exit_code == 0
        assert (checkout / "rules" / "days" / "NEW101_late_window.sql").is_file()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ([], "a rule has a family; name it with --family; there are bookkeeping, clipping, "),
            (["--family", "windw"], "`windw` is no family, did you mean `window`?"),
            (["--code", "NEW101"], "no family has codes like NEW101; name one with --family"),
        ],
    )
    @pytest.mark.usefixtures("checkout")
    def test_errors(self, arguments: list[str], text: str) -> None:
        result = new("torn-window", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr


def trained(folder: Path, module: dict[str, object]) -> Path:
    train = module["plain_torch"]
    assert callable(train)
    train(str(folder), honest=True)
    return folder
