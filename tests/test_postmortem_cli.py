"""`accumaudit postmortem`: what it writes where, its exit status, and its forms for people and programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.outputs.postmortem import json_form, markdown
from accumaudit.outputs.postmortem.markdown import coded
from accumaudit.postmortem.model import HeatRow, HeatStrip, PostMortem, Unchecked
from accumaudit.testing.records import write_run
from tests.findings import run_with
from tests.rulefiles import rows, write_rule

TAIL: dict[str, Any] = {"microbatches": 2, "total_weight": 0.5}
HOSTILE = "<script>alert(1)</script> | `x`"


SETTINGS = 'select = ["ACC101", "ACC104", "ACC810"]\n'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder whose settings ask for a few rules alone."""
    (tmp_path / "accumaudit.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a short last window, saved before it under a hostile name."""
    marks = [{"kind": "checkpoint", "name": HOSTILE, "attempt_id": 2}]
    return write_run(tmp_path_factory.mktemp("runs") / "a_run", [{}, {}, {}, TAIL], ranks=2, marks=marks)


@pytest.fixture(scope="module")
def told(faulty: Path) -> Iterator[Result]:
    """What the command says of it."""
    (faulty.parent / "accumaudit.toml").write_text(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(faulty.parent)
        yield invoke(faulty)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["postmortem", *map(str, arguments)], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


class TestText:
    def test_the_story_stands_on_stdout(self, faulty: Path, told: Result) -> None:
        assert (told.exit_code, told.stderr) == (0, "")
        heads = re.findall(r"^## (.*)$", told.stdout, re.MULTILINE)
        assert heads == [
            "The first wrong update",
            "What the run did",
            "The attempts around it",
            "Suspects",
            "Where to resume",
            "The ranks",
            "What could not be checked",
            "The run",
        ]
        start = "# Post-mortem of a\\_run\n\n**Faulty updates.** At update 4 the training is not the one "
        assert told.stdout.startswith(start)
        assert "**update 4**, error ACC101 fixed-divisor-tail: " in told.stdout
        assert f"- Evidence: {faulty}/rank-00/00000.aaaa.jsonl:5".replace("_", r"\_") in told.stdout
        assert "- Under DDP: " in told.stdout
        assert "reported\\_loss" not in told.stdout
        assert "`reported_loss` is told with `audit.report(loss=...)`." in told.stdout

    def test_names_show_as_they_are(self, told: Result) -> None:
        text = told.stdout
        assert "<script>" not in text
        assert r"resume from &lt;script&gt;alert(1)&lt;/script&gt; \| \`x\`, saved after update 2" in (
            text.replace("`x`", r"\`x\`")
        )

    def test_the_table_reads_in_a_terminal(self, told: Result) -> None:
        lines = told.stdout.splitlines()
        table = [line for line in lines if line.startswith("| ") and "ACC101" in line]
        head = next(line for line in lines if line.startswith("| update"))
        assert [len(line) for line in table] == [len(head)]

    def test_it_is_written_to_a_file(self, faulty: Path, told: Result, elsewhere: Path) -> None:
        result = invoke(faulty, "-o", "report.md")
        assert (result.exit_code, result.output) == (0, "")
        assert (elsewhere / "report.md").read_text() == told.stdout


class TestForPrograms:
    def test_every_part_of_the_story_has_a_name(self, faulty: Path, elsewhere: Path) -> None:
        assert invoke(faulty, "--output", "report.json").exit_code == 0
        text = (elsewhere / "report.json").read_text()
        assert text.isascii()
        document = json.loads(text)
        (run,) = document["runs"]
        assert document["schema"] == 1
        names = (
            "outcome verdict first_wrong onset suspects symptoms others checkpoint advice loss facts marked"
        )
        names += " around histories ranks_apart unchecked quality comparison"
        assert [name for name in run if name in names.split()] == names.split()
        assert (run["run_id"], run["outcome"]) == ("a_run", "faulty")
        (suspect,) = run["suspects"]
        assert (suspect["code"], suspect["role"], suspect["lead"]) == ("ACC101", "cause", None)
        assert (suspect["first"]["attempt_id"], suspect["first"]["number"]) == (4, 4)
        assert suspect["own_fix"]["framework"] == "DDP"
        assert run["checkpoint"]["name"] == HOSTILE
        assert run["unchecked"][0] == {
            "reason": "`reported_loss` was never declared or reported",
            "remedy": "`reported_loss` is told with `audit.report(loss=...)`",
            "rules": [{"code": "ACC810", "name": "reported-loss-scaled"}],
        }
        assert [len(section["attempts"]) for section in run["around"]] == [4]

    def test_a_number_that_json_lacks_is_null(self) -> None:
        view, _ = run_with()
        assert "NaN" in repr(view.report) or "nan" in repr(view.report)
        assert "NaN" not in json_form.rendered([telling()])


class TestPage:
    def test_a_page_is_written_by_the_ending_of_its_name(self, faulty: Path, elsewhere: Path) -> None:
        result = invoke(faulty, "-o", "report.HTML")
        assert (result.exit_code, result.output) == (0, "")
        text = (elsewhere / "report.HTML").read_text()
        assert text.startswith("<!DOCTYPE html>")
        assert text.endswith("</html>\n")
        assert "alert(1)</script> |" not in text

    @pytest.mark.parametrize("missing", ["jinja2", "plotly"])
    def test_what_to_install_is_said(
        self, missing: str, faulty: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [
            name for name in sys.modules if name.split(".")[0] == missing or name.endswith("em.html")
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        result = invoke(faulty, "-o", "report.html")
        assert result.exit_code == 2
        assert result.stderr.endswith(
            f"this needs {missing}, which is not installed: pip install 'accumaudit[report]'\n"
        )


class TestRuns:
    @pytest.fixture
    def two(self, tmp_path: Path) -> Path:
        for name in ("one", "two"):
            write_run(tmp_path / "both" / name, 2, ranks=1)
        return tmp_path / "both"

    def test_all_below_the_path_are_told(self, two: Path) -> None:
        result = invoke(two)
        assert result.exit_code == 0
        assert re.findall(r"^# Post-mortem of (.*)$", result.stdout, re.MULTILINE) == ["one", "two"]

    def test_one_of_several_in_a_file_has_a_number(self, tmp_path: Path) -> None:
        lines = [f"step {step}: train loss 2.0, val loss 2.0\n" for step in (0, 100)]
        lines += [f"iter {step}: loss 2.0, time 10ms, mfu 1%\n" for step in (0, 100, 200, 0, 100)]
        (tmp_path / "train.log").write_text("".join(lines))
        both = invoke(tmp_path / "train.log").stdout
        assert both.count("# Post-mortem of train.log") == 2
        second = invoke(tmp_path / "train.log#2").stdout
        assert re.findall(r"^# (.*)$", second, re.MULTILINE) == ["Post-mortem of train.log#&#8203;2"]
        assert invoke(tmp_path / "train.log#3").exit_code == 2

    def test_a_comparison_is_of_one_run(self, two: Path) -> None:
        result = invoke(two, "--against", two / "one")
        assert result.exit_code == 2
        assert "2 runs (one, two); give the folder or the file of one" in result.stderr

    def test_the_other_run_is_compared(self, faulty: Path, two: Path) -> None:
        result = invoke(faulty, "--against", two / "one")
        assert result.exit_code == 0
        assert re.search(r"^## .*one", result.stdout, re.MULTILINE)


class TestTrouble:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--by", "update"], "--by is about a comparison: name the other run with --against"),
            (["-o", "report.pdf"], "report.pdf: no format has this ending; name one with --format"),
            (["--format", "htm"], "did you mean `html`?"),
            (["--memory", "many"], "`many` is no amount of memory; write a number and its unit"),
            (["--memory", "0GB"], "`0GB` is no amount of memory"),
        ],
    )
    def test_arguments_that_cannot_be_used(self, arguments: list[str], said: str, tmp_path: Path) -> None:
        result = invoke(tmp_path, *arguments)
        assert result.exit_code == 2
        assert said in result.stderr

    def test_a_path_without_a_run(self, tmp_path: Path) -> None:
        result = invoke(tmp_path / "nothing")
        assert result.exit_code == 2
        assert "nothing" in result.stderr

    def test_a_file_that_cannot_be_written(self, faulty: Path) -> None:
        result = invoke(faulty, "-o", "no/folder.md")
        assert result.exit_code == 2
        assert "no/folder.md: the report cannot be written: No such file or directory" in result.stderr

    def test_too_little_memory(self, faulty: Path) -> None:
        result = invoke(faulty, "--memory", "1kB")
        assert result.exit_code == 2
        assert "Out of Memory" in result.stderr

    def test_a_broken_rule_is_trouble_and_the_story_is_told(self, faulty: Path, elsewhere: Path) -> None:
        write_rule(elsewhere / "rules", "ABC001", rows("attempt_id / 0 = 'x'"), name="broken-one")
        (elsewhere / "accumaudit.toml").write_text('select = ["ACC101", "ABC"]\nrules = ["rules"]\n')
        result = invoke(faulty)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ABC001 is broken: ")
        assert "ACC101" in result.stdout
        assert re.search(
            r"^- it is broken: .*: ABC001 broken-one. Mend the rule.$", result.stdout, re.MULTILINE
        )


class TestMarkdown:
    def test_code_is_code_and_the_rest_is_text(self) -> None:
        assert coded("a_b `c_d|e` <f>") == r"a\_b `c_d\|e` &lt;f&gt;"
        assert coded("an odd ` stays") == r"an odd \` stays"
        assert coded("`` is nothing") == r"\`\` is nothing"

    def test_ranks_that_stand_out_are_drawn_in_signs(self) -> None:
        shares = tuple(0.0 if column < 60 else 1.0 for column in range(120))
        strip = HeatStrip(
            starts=tuple(map(float, range(120))),
            axis="update",
            rows=(
                HeatRow(rank=2, shares=shares, why=("its <digest> differs",)),
                HeatRow(rank=0, shares=(0.0,) * 120, why=()),
            ),
            ranks=3,
            quiet=2,
        )
        text = markdown.rendered([telling(strip=strip)])
        assert f"| 2    | `{'.' * 30}{'#' * 30}` | its &lt;digest&gt; differs |" in text
        assert "3 ranks wrote; 2 of them never stand out." in text
        assert "| 0 " not in text

    def test_what_one_remedy_would_show_stands_together(self) -> None:
        verdict = telling().run.verdicts[0]
        groups = tuple(
            Unchecked(reason=reason, verdicts=(verdict,) * rules, remedy=remedy)
            for reason, rules, remedy in [
                ("no a", 1, "do x"),
                ("no b", 4, "do x"),
                ("no c", 1, "do `y`"),
                ("d", 1, None),
            ]
        )
        lines = markdown.rendered([telling(unchecked=groups)]).splitlines()
        start = lines.index("## What could not be checked")
        code = "ACC101 fixed-divisor-tail"
        assert lines[start + 2 : lines.index("## The run") - 1] == [
            f"- no c: {code}. Do `y`.",
            "",
            "Do x:",
            "",
            f"- no a: {code}",
            "- no b: ACC101, ACC101, ACC101, ACC101",
            "",
            "Not judged for other reasons:",
            "",
            f"- d: {code}",
        ]


def telling(**fields: Any) -> PostMortem:
    """A post-mortem that holds next to nothing."""
    view, _ = run_with()
    given: dict[str, Any] = {
        "run": view.report,
        "outcome": "clean",
        "verdict": ("Nothing.",),
        "first_wrong": None,
        "onset": None,
        "suspects": (),
        "symptoms": (),
        "others": (),
        "checkpoint": None,
        "advice": "Go on.",
        "loss": None,
        "facts": (("Record", "1 update"),),
    }
    return PostMortem(**{**given, **fields})
