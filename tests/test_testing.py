"""`accumaudit.testing`: what a user's own tests call."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import accumaudit
from accumaudit import Ledger, testing
from accumaudit.engine.catalogue import SelectionError, load_rules
from accumaudit.engine.rule import RuleError
from accumaudit.ledger.schema import FIELDS, RECORD_FIELD
from accumaudit.testing import (
    NothingRecordedError,
    assert_clean,
    assert_finds,
    build_run,
    capture,
    faults,
    judge,
    record,
    the_fault,
    write_run,
)
from tests.processes import Pair
from tests.rulefiles import rows, write_rule
from tests.test_cli import start
from tests.trainings import train as train_loop

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


WRONG = """\
train_wrong: 1 fault in 3 updates

error ACC101 fixed-divisor-tail: a short last window was divided by the full accumulation count
  seen      a short window of 2 of 4 micro-steps weighs 0.500 of an update: its tokens count 0.500
            of what they should
  measured  0.5, expected 1
  where     update 3, rank 0, 1 of 3 attempts
  fix       Divide by what the window really holds: its number of micro-steps, or better its number
            of valid tokens.

`accumaudit explain ACC101` says why it matters and when it is no fault."""


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer, divisor: int | None = None) -> None:
    """Ten micro-steps in windows of four; the last one is short, and a fixed divisor makes it wrong."""
    data = [(torch.randn(2, 4), torch.tensor([0, 1])) for _ in range(10)]
    for first in range(0, len(data), 4):
        window = data[first : first + 4]
        for inputs, labels in window:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            (loss / (divisor or len(window))).backward()
        optimizer.step()
        optimizer.zero_grad()


def train(log_dir: Path, divisor: int | None = None) -> None:
    model, optimizer = make()
    with accumaudit.attach(model, optimizer, log_dir=log_dir, accumulation_steps=4, summary=False):
        loop(model, optimizer, divisor)


def train_wrong(log_dir: Path) -> None:
    train(log_dir, divisor=4)


class TestRecord:
    def test_a_training_gives_its_ledger(self) -> None:
        with record(train) as ledger:
            assert ledger.windows["microbatches"] == [4, 4, 2]
            assert ledger.windows["run_id"] == ["train"] * 3

    def test_the_temporary_folder_goes_with_the_ledger(self) -> None:
        ledger = record(train)
        (folder,) = (Path(path) for path in ledger.runs["path"])
        assert folder.is_dir()
        ledger.close()
        assert not folder.parent.exists()

    def test_it_goes_too_where_nobody_closes_the_ledger(self) -> None:
        ledger = record(train)
        (folder,) = (Path(path) for path in ledger.runs["path"])
        del ledger
        gc.collect()
        assert not folder.parent.exists()

    def test_a_folder_of_ones_own_stays(self, tmp_path: Path) -> None:
        record(train, log_dir=tmp_path / "mine").close()
        assert Ledger.open(tmp_path / "mine").windows["run_id"] == ["mine"] * 3

    def test_a_training_of_several_processes(self, pair: Pair) -> None:
        with record(lambda log_dir: train_loop(["rank-local-denominator"], log_dir, 2, pair)) as ledger:
            assert ledger.runs["rank"] == [0, 1]
            assert assert_finds(ledger, "rank-local-denominator").first_update == 1

    def test_an_error_in_the_training_passes_through(self) -> None:
        folders: list[Path] = []

        def fail(log_dir: Path) -> None:
            folders.append(log_dir)
            train(log_dir)
            raise ZeroDivisionError("in the loop")

        with pytest.raises(ZeroDivisionError, match="in the loop"):
            record(fail)
        assert not folders[0].parent.exists()

    def test_a_training_that_attaches_nothing(self) -> None:
        def bare(log_dir: Path) -> None:
            loop(*make())

        with pytest.raises(NothingRecordedError) as error:
            record(bare)
        assert str(error.value) == (
            "`bare` recorded nothing in the folder that it was given: "
            "call accumaudit.attach(model, optimizer, log_dir=log_dir, ...) with that folder"
        )

    def test_a_training_that_leaves_its_audit_open(self, tmp_path: Path) -> None:
        audits: list[accumaudit.Audit] = []

        def left_open(log_dir: Path) -> None:
            model, optimizer = make()
            audits.append(accumaudit.attach(model, optimizer, log_dir=log_dir, summary=False))
            loop(model, optimizer)

        with pytest.raises(
            NothingRecordedError, match=r"`left_open` left its audit open \(rank 0\): use `with"
        ):
            record(left_open, log_dir=tmp_path / "run")
        audits[0].close()

    @pytest.mark.parametrize("function", [lambda: None, lambda _a, _b: None, lambda *, _dir: None])
    def test_a_function_of_another_kind(self, function: Callable[..., object]) -> None:
        with pytest.raises(
            TypeError, match="`<lambda>` is called with one argument, the folder to record in"
        ):
            record(function)

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCUMAUDIT", "0")
        with pytest.raises(NothingRecordedError, match="ACCUMAUDIT=0 is set, and switches the hooks off"):
            record(train)


class TestCapture:
    def test_what_trains_in_the_block(self) -> None:
        model, optimizer = make()
        with capture(model, optimizer, accumulation_steps=4) as training:
            training.audit.mark("checkpoint", name="first.pt")
            loop(model, optimizer, divisor=4)
        assert training.ledger.windows["total_weight"] == pytest.approx([1.0, 1.0, 0.5])
        assert training.ledger.marks["name"] == ["first.pt", None]
        training.ledger.close()
        assert not training.folder.exists()

    def test_not_before_its_end(self) -> None:
        with capture(*make()) as training, pytest.raises(NothingRecordedError, match="after the with-block"):
            _ = training.ledger
        training.ledger.close()

    def test_an_error_in_the_block_passes_through_and_nothing_stays_attached(self) -> None:
        model, optimizer = make()
        with pytest.raises(ZeroDivisionError), capture(model, optimizer) as training:
            raise ZeroDivisionError
        assert not training.folder.parent.exists()
        with capture(model, optimizer, log_dir=None) as again:
            pass
        again.ledger.close()

    def test_what_attach_refuses(self) -> None:
        model, optimizer = make()
        with (
            pytest.raises(ValueError, match="accumulation_steps is 0"),
            capture(model, optimizer, accumulation_steps=0),
        ):
            pass


class TestAssertClean:
    def test_a_right_training(self) -> None:
        report = assert_clean(train, judged=["fixed-divisor-tail", "ACC102"])
        assert report.runs[0].updates == 3

    def test_a_wrong_training_is_described(self) -> None:
        with pytest.raises(AssertionError) as error:
            assert_clean(train_wrong)
        assert str(error.value) == WRONG

    def test_a_folder_a_ledger_and_a_captured_training(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3)
        assert_clean(run)
        assert_clean(str(run))
        with Ledger.open(run) as ledger:
            assert_clean(ledger)
            assert len(ledger.windows) == 3  # it is still open
        model, optimizer = make()
        with capture(model, optimizer, accumulation_steps=4) as training:
            loop(model, optimizer)
        assert_clean(training)
        training.ledger.close()

    def test_which_rules_judge(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": 0.5}])
        assert_clean(run, ignore=["fixed-divisor-tail"])
        assert_clean(run, select=["ACC2"])
        with pytest.raises(SelectionError, match="no rule is called `ACC999`"):
            assert_clean(run, judged=["ACC999"])

    def test_how_severe_it_has_to_be(self, tmp_path: Path) -> None:
        for severity in ("warning", "note"):
            write_rule(tmp_path / severity, "ABC001", rows("attempt_id = 2"), severity=severity)
        run = write_run(tmp_path / "run", 3)
        assert_clean(run, rules=[tmp_path / "note"])
        assert_clean(run, rules=[tmp_path / "warning"], fail_on="error")
        for severity, fail_on in (("warning", "warning"), ("note", "note")):
            with pytest.raises(
                AssertionError, match=f"^run: 1 fault in 3 updates\n\n{severity} ABC001 fault-abc001"
            ):
                assert_clean(run, rules=[tmp_path / severity], fail_on=fail_on)
        with pytest.raises(ValueError, match="fail_on is error, warning, note, not 'never'"):
            assert_clean(run, fail_on="never")

    def test_thresholds(self, tmp_path: Path) -> None:
        write_rule(tmp_path / "rules", "ABC001", rows("microbatches < $least"), params={"least": 5})
        run = write_run(tmp_path / "run", 3)
        assert_clean(run, rules=[tmp_path / "rules"], params={"ABC001.least": 4})
        assert_finds(run, "fault-abc001", rules=[tmp_path / "rules"])

    def test_nothing_to_judge_is_not_clean(self, tmp_path: Path) -> None:
        with pytest.raises(
            AssertionError, match=r"^run is not clean\n\nno update was recorded, so there was nothing to"
        ):
            assert_clean(write_run(tmp_path / "run", 0))
        with pytest.raises(
            AssertionError, match=r"^one is not clean\n\nno rule could judge anything in this record$"
        ):
            assert_clean(write_run(tmp_path / "one", 1, 1), select=["ACC6"])

    def test_a_rule_that_was_to_judge(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError) as error:
            assert_clean(write_run(tmp_path / "run", 3), judged=["fixed-divisor-tail", "wrong-total-weight"])
        assert str(error.value) == (
            "run is not clean\n\nACC101 fixed-divisor-tail was to judge and did not: no window was short"
        )

    def test_a_record_with_holes_is_not_clean(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3, 1, marks=[{"kind": "gap", "lost_records": 2}])
        with next(run.rglob("*.jsonl")).open("a", encoding="utf-8") as file:
            file.write("torn\n")
        with pytest.raises(AssertionError) as error:
            assert_clean(run)
        text = str(error.value)
        assert "the record has holes\n  rank 0 could not write 2 of its records\n" in text
        assert re.search(r"00000\.aaaa\.jsonl:7:\s+not\s+JSON", text)

    def test_a_broken_rule_is_not_clean(self, tmp_path: Path) -> None:
        write_rule(tmp_path / "rules", "ABC001", rows("error('no')"))
        with pytest.raises(
            AssertionError, match=r"broken rule ABC001 fault-abc001: .*ABC001_fault_abc001\.sql"
        ):
            assert_clean(write_run(tmp_path / "run", 3), rules=[tmp_path / "rules"])


class TestAssertFinds:
    def test_the_finding(self) -> None:
        finding = assert_finds(train_wrong, "fixed-divisor-tail")
        assert (finding.count, finding.first_update, finding.ranks) == (1, 3, (0,))
        assert finding.message == assert_finds(train_wrong, "acc101").message

    def test_what_was_found_instead(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": 0.5}])
        with pytest.raises(AssertionError) as error:
            assert_finds(run, "ACC203")
        assert str(error.value) == (
            "ACC203 stale-gradients found nothing in 2 updates of run: it passed, and judged 1\n"
            "found instead: ACC101 fixed-divisor-tail"
        )

    def test_a_rule_that_judged_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError) as error:
            assert_finds(write_run(tmp_path / "run", 2), "fixed-divisor-tail")
        assert str(error.value) == (
            "ACC101 fixed-divisor-tail found nothing in 2 updates of run: not checked, no window was short\n"
            "found instead: nothing"
        )

    def test_a_rule_that_there_is_not(self, tmp_path: Path) -> None:
        with pytest.raises(SelectionError, match="no rule is called `fixed-divisor-tale`, did you mean"):
            assert_finds(write_run(tmp_path / "run", 2), "fixed-divisor-tale")


class TestJudge:
    def test_a_rule_row_by_row(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": 0.5}, {"microbatches": 2}])
        assert faults("fixed-divisor-tail", run) == [True, False]
        row = the_fault("ACC101", run)
        assert (row.attempt, row.optimizer, row.rank, row.severity) == (2, 0, None, "error")
        assert [row.observed, row.expected] == pytest.approx([0.5, 1.0])

    def test_an_open_ledger(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "run", 2)) as ledger:
            assert faults("ACC204", ledger) == faults("window-too-long", ledger) == [False, False]

    def test_a_rule_of_ones_own(self, tmp_path: Path) -> None:
        file = write_rule(tmp_path, "ABC001", rows("NULL", where="attempt_id < 3"), severity="note")
        assert [(row.fault, row.severity) for row in judge(file, write_run(tmp_path / "run", 3))] == [
            (None, "note")
        ] * 2
        file.write_text("SELECT 1", encoding="utf-8")
        with pytest.raises(RuleError, match="a rule begins with its header"):
            judge(file, tmp_path / "run")

    def test_one_fault_and_no_other(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"microbatches": 5}, {"microbatches": 6}])
        with pytest.raises(
            AssertionError, match=r"^ACC204 found 2 faults in 2 rows, not one\n  attempt 1: .*5"
        ):
            the_fault("ACC204", run)


class TestRecords:
    def test_the_defaults_are_a_right_run(self, tmp_path: Path) -> None:
        assert_clean(write_run(tmp_path / "run", 12), fail_on="note")
        assert_clean(write_run(tmp_path / "single", 12, 1), fail_on="note")

    def test_every_field_is_one_of_the_schema(self) -> None:
        for line in build_run([{}, {"skipped": True}], microbatch_detail="sums")[0]:
            known = {field.name for field in FIELDS[line["record"]]} | {RECORD_FIELD.name}
            assert set(line) <= known

    def test_only_every_tenth_attempt(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "run", 25, 1, every=10)) as ledger:
            assert ledger.updates["attempt_id"] == ledger.updates["optimizer_update_id"] == [1, 11, 21]
            assert ledger.runs["recorded_every"] == [10]

    def test_sums_in_place_of_lists(self, tmp_path: Path) -> None:
        with Ledger.open(write_run(tmp_path / "run", 2, 1, microbatch_detail="sums")) as ledger:
            assert ledger.updates["valid_tokens"] == [None, None]
            (first, _) = ledger.updates["window_sums"]
            assert (first["valid_tokens"], first["valid_tokens_min"], first["loss"]) == (460.0, 100.0, 2.0)


def test_importing_it_needs_neither_torch_nor_pytest() -> None:
    code = (
        "import sys, accumaudit\n"
        "accumaudit.testing.assert_clean\n"
        "heavy = {'torch', 'pytest', 'pandas', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = start("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_public_is_on_the_page() -> None:
    assert not {name for name in testing.__all__ if f"`{name}" not in PAGE}


@pytest.mark.slow
def test_the_examples_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    """They are run as a user's: by pytest, in a file of their own, beside the training that they import."""
    training, *examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "training.py").write_text(training, encoding="utf-8")
    for place, example in enumerate(examples):
        (tmp_path / f"test_example_{place}.py").write_text(example, encoding="utf-8")
    for folder, name in re.findall(r"^    (\w+)/(\w+\.sql)$", PAGE, re.MULTILINE):
        (sql,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(sql, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir=."]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    counted = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counted is not None
    assert int(counted[1]) == sum(example.count("\ndef test_") for example in examples) > 0


def test_every_rule_can_be_judged_by_its_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    with Ledger.open(run) as ledger:
        for rule in load_rules().values():
            assert True not in faults(rule.name, ledger), rule.name
