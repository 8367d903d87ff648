"""The manual of a rule: what every bundled one holds, and how it is laid out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import duckdb
import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.cli.explain import RUNTIMES, WIDEST, manual, thresholds
from accumaudit.cli.glossary import WORDS, explained
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.rule import Rule
from tests.rulefiles import rows, write_rule

CATALOGUE: Final = load_rules()

ALWAYS: Final = ["Why it matters", "Example", "How to fix it", "No fault when", "Not checked when", "Query"]
SOMETIMES: Final = [
    *("Thresholds", "Words", "Hides what follows from it", "Hidden where it follows from", "References")
]

every_rule = pytest.mark.parametrize("rule", CATALOGUE.values(), ids=lambda rule: rule.code)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule with a parameter."""
    folder = tmp_path / "rules"
    limit = rows("attempt_id >= $limit")
    write_rule(folder, "ABC003", limit, name="a-note", severity="note", params={"limit": 3})
    return folder


def explain(word: str, *options: object, columns: int = 80) -> Result:
    arguments = ["explain", word, *map(str, options)]
    return CliRunner().invoke(main, arguments, prog_name="accumaudit", env={"COLUMNS": str(columns)})


def sums(text: str) -> list[tuple[str, str]]:
    """The arithmetic in a text: (`1/4 / 100`, `0.0025`)."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    term = rf"(?<![\w.=(])\(?{number}(?:\)?\s*[-+*/^]\s*\(*{number}\)?)+"
    whole = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    found = re.findall(rf"({term})\s+=\s+({number}(?: %)?)(?!\s*[*/^])", whole)
    return [(" ".join(left.split()), right) for left, right in found]


def value(term: str) -> float:
    """What a term of numbers comes to."""
    ((result,),) = duckdb.execute(f"SELECT ({term})::DOUBLE").fetchall()
    return float(result)


def section(text: str, heading: str) -> str:
    """What stands below a heading."""
    return text.partition(f"\n\n{heading}\n")[2].partition("\n\n\n")[0]


class TestTexts:
    """What a reader who has never seen the project needs, in every manual."""

    @every_rule
    def test_the_fix_has_a_line_for_every_runtime_in_one_order(self, rule: Rule) -> None:
        heads = re.findall(rf"^({'|'.join(RUNTIMES)}): \S", rule.fix, re.MULTILINE)
        assert tuple(heads) == RUNTIMES
        assert rule.fix.partition("\n\n")[2].startswith("Hand-written loop: ")

    @every_rule
    def test_the_example_has_numbers(self, rule: Rule) -> None:
        assert len(re.findall(r"\d+", rule.example)) >= 2

    @every_rule
    def test_sums_are_right(self, rule: Rule) -> None:
        for term, result in sums(rule.example):
            number, _, percent = result.partition(" ")
            digits = len(number.replace(".", "").strip("0")) or 1
            said = float(number) / (100 if percent else 1)
            assert said == pytest.approx(value(term), rel=0.6 * 10 ** (1 - digits)), f"{term} = {result}"

    def test_many_examples_have_sums(self) -> None:
        assert sum(len(sums(rule.example)) for rule in CATALOGUE.values()) > 40

    @every_rule
    def test_no_letter_stands_for_a_quantity(self, rule: Rule) -> None:
        text = " ".join((rule.why, rule.example, rule.fix, rule.not_a_fault_when))
        assert re.findall(r"(?<![\w.'\"-])[B-HJ-Zdmn](?![\w'\"-])", text) == []

    @every_rule
    def test_sentences_are_short_enough_to_follow(self, rule: Rule) -> None:
        for text in (rule.why, rule.example, rule.fix, rule.not_a_fault_when):
            sentences = re.split(r"(?<=[.?!])\s|\n\n", text)
            assert max(len(sentence.split()) for sentence in sentences) <= 40

    @every_rule
    def test_every_threshold_says_what_it_is(self, rule: Rule) -> None:
        assert [name for name, meaning in thresholds(rule).items() if not meaning] == []

    @every_rule
    def test_rules_that_are_named_exist(self, rule: Rule) -> None:
        text = " ".join((rule.why, rule.example, rule.fix, rule.not_a_fault_when))
        assert set(re.findall(r"ACC\d{3}", text)) <= {*CATALOGUE} - {rule.code}

    def test_every_word_of_the_glossary_is_used(self) -> None:
        texts = (
            " ".join((one.why, one.example, one.fix, one.not_a_fault_when)) for one in CATALOGUE.values()
        )
        assert set[str]().union(*map(explained, texts)) == {*WORDS}


class TestLayout:
    @pytest.mark.parametrize("width", [80, WIDEST])
    @every_rule
    def test_no_line_is_longer_than_the_terminal(self, rule: Rule, width: int) -> None:
        text = (
            "\n".join(manual(rule, CATALOGUE, width))
            .partition("\n\nReferences\n")[0]
            .partition("\n\nQuery\n")[0]
        )
        assert max(map(len, text.splitlines())) <= width

    def test_the_terminal_tells_the_width(self) -> None:
        wide = explain("ACC101", columns=200).stdout.partition("\n\nQuery\n")[0].splitlines()
        narrow = explain("ACC101", columns=60).stdout.partition("\n\nQuery\n")[0].splitlines()
        assert max(map(len, narrow)) <= 60 < max(map(len, wide)) <= WIDEST

    @every_rule
    def test_the_headings_come_in_one_order(self, rule: Rule) -> None:
        lines = list(manual(rule, CATALOGUE, 80))
        headings = [
            line for line, above in zip(lines[1:], lines, strict=False) if line[:1].strip() and not above
        ]
        assert [one for one in headings if one in ALWAYS] == ALWAYS
        assert [one for one in headings if one not in ALWAYS] == [one for one in SOMETIMES if one in headings]

    def test_runtimes_make_a_table(self) -> None:
        shown = explain("ACC101").stdout
        assert "\n  DDP                Count over all data ranks, and multiply by their number,\n" in shown
        assert f"\n{' ' * 21}because DDP averages.\n" in shown

    def test_numbers_below_each_other_stay_so(self) -> None:
        shown = explain("ACC101", columns=60).stdout
        assert (
            "\n    full window   400 tokens * 0.0025 = 1.0\n    last window   200 tokens * 0.0025 = 0.5\n"
            in shown
        )

    def test_the_words_of_the_manual_are_explained(self) -> None:
        shown = section(explain("ACC701").stdout, "Words")
        assert "loss scale  what a mixed-precision loss is multiplied by" in re.sub(" {2,}", "  ", shown)
        assert "horizon" not in shown

    def test_rules_that_follow_are_named_on_both_sides(self, rules: Path) -> None:
        write_rule(rules, "ABC001", rows("true"), name="a-cause", explains=["ABC003", "ABC999"])
        cause, effect = (explain(code, "--rules", rules).stdout for code in ("ABC001", "ABC003"))
        assert "\n\nHides what follows from it\n  ABC003  something is wrong\n" in cause
        assert "\n\nHidden where it follows from\n  ABC001  something is wrong\n" in effect


class TestCommand:
    @pytest.mark.parametrize("word", ["ABC003", "abc003", "a-note"])
    def test_by_code_or_name(self, rules: Path, word: str) -> None:
        result = explain(word, "--rules", rules)
        assert result.exit_code == 0
        assert result.stdout.startswith("ABC003 a-note (note, since 0.1.0)\n  something is wrong\n")
        for part in (
            "\n\nHow to fix it\n  Nothing to do.\n\n  A second paragraph.\n",
            "\n  nothing was in scope, or where these are not recorded: microbatches\n",
            "\n\nThresholds\n  ABC003.limit = 3\n",
        ):
            assert part in result.stdout

    def test_an_unknown_rule(self, rules: Path) -> None:
        result = explain("a-not", "--rules", rules)
        assert result.exit_code == 2
        assert "no rule is called `a-not`, did you mean `a-note`?" in result.stderr
