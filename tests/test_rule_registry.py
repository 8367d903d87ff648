"""What holds of every bundled rule: its name, its manual, a training that it finds and one that it passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from accumaudit import attach
from accumaudit.cli.new_rule import RULE
from accumaudit.demo.faults import FAULTS
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules, read_folders
from accumaudit.engine.findings import FAILED, PASSED
from accumaudit.engine.rule import Rule
from accumaudit.rules import FOLDER
from tests.faults.registry import faults
from tests.trainings import train, train_here

if TYPE_CHECKING:
    from tests.processes import Pair

RULES: Final = load_rules()
TESTS: Final = Path(__file__).parent

RUNTIMES: Final = ("Hand-written loop", "DDP", "FSDP", "Trainer", "Accelerate", "Lightning", "DeepSpeed")
"""The labels of a fix, in their order."""

RIGHT: Final = (
    "average-held-on-skips",
    "resumed-after-warmup",
    "no-accumulation",
    "flat-parameters",
    "checkpoints-named",
    "loss-logged",
    "two-terms",
)
"""Right loops of which each rule judges one at least."""

OF_LOGS: Final = {"ACC309"}
"""Rules of what logs leave unsaid; a recorded training says it."""

OF_LONG_RUNS: Final[dict[str, dict[str, Any]]] = {"ACC406": {"max_grad_norm": 1e3}, "ACC901": {}}
"""Rules that judge a long run alone: how the plain loop differs that is trained as long as the fault."""

OF_UNKNOWN_LOSSES: Final = {"ACC108"}
"""Rules that judge where no hook knows the loss."""

PLACEHOLDERS: Final = {line for line in RULE.splitlines() if line.startswith("Say ")}
"""What a new rule's headings say until somebody writes them."""

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)


def test_the_queries_are_sound() -> None:
    assert [*read_folders(FOLDER).values()] == [*RULES.values()]


class TestManuals:
    @every_rule
    def test_the_code_and_the_name_lead_back_to_the_rule(self, rule: Rule) -> None:
        assert RULES.find(rule.code) is RULES.find(rule.name) is RULES.find(rule.code.lower()) is rule
        assert RULES.matching([rule.code]) == RULES.matching([rule.name]) == [rule]

    def test_every_file_is_a_rule(self) -> None:
        files = {file.name for file in FOLDER.rglob("*.sql")} - {"tables.sql"}
        assert {rule.file.name for rule in RULES.values()} == files

    def test_the_codes_of_a_family_begin_alike(self) -> None:
        starts: dict[str, set[str]] = {}
        for rule in RULES.values():
            starts.setdefault(rule.family, set()).add(rule.code[:-2])
        assert [*map(len, starts.values())] == [1] * len(starts)
        assert len(set[str]().union(*starts.values())) == len(starts)

    @every_rule
    def test_the_summary_is_one_short_sentence(self, rule: Rule) -> None:
        assert re.fullmatch(r"[^A-Z.\n][^.\n]{10,109}", rule.summary)

    @every_rule
    def test_every_heading_is_written(self, rule: Rule) -> None:
        for text in (rule.why, rule.example, rule.fix, rule.not_a_fault_when):
            assert len(text.split()) >= 10
            assert not {*text.splitlines()} & PLACEHOLDERS

    @every_rule
    def test_the_fix_begins_with_a_short_line_and_goes_on_by_runtime(self, rule: Rule) -> None:
        assert len(rule.fix.partition("\n\n")[0]) <= 240
        heads = re.findall(r"^([A-Z][\w, -]*?): ", rule.fix.partition("\n\n")[2], re.MULTILINE)
        labels = [label for head in heads for label in re.split(r", | and ", head) if label in RUNTIMES]
        assert labels
        assert labels == sorted(labels, key=RUNTIMES.index)

    @every_rule
    def test_references_can_be_looked_up(self, rule: Rule) -> None:
        thread = r"[\w.-]+/[\w.-]+#\d+"
        page = r"https://\S+"
        assert [text for text in rule.references if not re.fullmatch(f"{thread}|{page}", text)] == []
        assert len(set(rule.references)) == len(rule.references)

    @every_rule
    def test_it_has_tests(self, rule: Rule) -> None:
        files = TESTS.glob("test_rules_*.py")
        assert any(rule.code in file.read_text(encoding="utf-8") for file in files)


class TestTrainings:
    def test_every_rule_has_a_fault_that_is_trained(self) -> None:
        trained = {fault.code for fault in FAULTS.values()}
        for fault in faults().values():
            for training in fault.trainings.values():
                trained |= {training.code, *training.also}
        assert {*RULES} - trained <= OF_LOGS

    @pytest.mark.slow
    def test_every_rule_passes_a_right_loop(self, tmp_path: Path, pair: Pair) -> None:
        for name in RIGHT:
            train([name], tmp_path / name, 2, pair)
        assert {*RULES} - passed(tmp_path) <= {*OF_LONG_RUNS, *OF_UNKNOWN_LOSSES, *OF_LOGS}

    @pytest.mark.slow
    @pytest.mark.parametrize("code", OF_LONG_RUNS)
    def test_a_rule_of_long_runs_passes_a_right_one(self, code: str, tmp_path: Path) -> None:
        (fault,) = (one for one in FAULTS.values() if one.code == code)
        fields = {field: getattr(fault.settings, field) for field in fault.settings.__dataclass_fields__}
        settings = {**fields, **OF_LONG_RUNS[code]}
        train_here(["plain"], str(tmp_path / "plain"), settings, hooks=True, launch=0)
        assert code in passed(tmp_path)

    def test_a_rule_of_unknown_losses_passes_a_right_one(self, tmp_path: Path) -> None:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with attach(model, optimizer, log_dir=tmp_path / "run", summary=False) as audit:
            for update in range(80):
                tokens = 4 + 7 * update % 60
                answers = torch.randint(3, (tokens, 1))
                (-model(torch.randn(tokens, 4)).log_softmax(1).gather(1, answers).sum() / tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
                audit.report(global_valid_tokens=tokens)
        assert passed(tmp_path) >= OF_UNKNOWN_LOSSES

    @pytest.mark.parametrize("code", OF_LOGS)
    def test_a_rule_of_logs_finds_and_passes_some(self, code: str) -> None:
        runs = check_paths([TESTS / "data"], select=[code]).runs
        assert {verdict.status for run in runs for verdict in run.verdicts} >= {FAILED, PASSED}


def passed(folder: Path) -> set[str]:
    """The rules that judged something there and found it right."""
    return {verdict.code for run in check_paths([folder]).runs for verdict in run.with_status(PASSED)}
