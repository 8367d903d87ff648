"""TRL's trainers under the callback: fine-tuning is judged, what preferences and policies weigh is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import accumaudit
from accumaudit.engine.findings import FAILED, NOT_CHECKED
from accumaudit.testing import assert_clean
from tests.processes import Pair
from tests.recorded import faults
from tests.runtimes import trl_trainers

pytestmark = pytest.mark.slow  # trl takes seconds to import

WEIGHT_RULES: Final = ("ACC101", "ACC102", "ACC104", "ACC106", "ACC110")
FINE_TUNING: Final = [case for case in trl_trainers.CASES if case.startswith("sft")]
OTHERS: Final = [case for case in trl_trainers.CASES if case not in FINE_TUNING]


@dataclass(frozen=True)
class Ran:
    """A training that was recorded."""

    updates: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    report: Any


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Each case on one process; the ledgers are read together."""
    root = tmp_path_factory.mktemp("runs")
    for case in trl_trainers.CASES:
        trl_trainers.train(case, str(root / case))
        assert faults(root / case) == []
    with accumaudit.Ledger.open(*(root / case for case in trl_trainers.CASES)) as ledger:
        updates = list(ledger.sql("FROM updates ORDER BY attempt_id"))
        windows = list(ledger.sql("FROM windows ORDER BY attempt_id"))
        reports = {report.run_id: report for report in ledger.check().runs}
    return {
        case: Ran(
            [row for row in updates if row["run_id"] == case],
            [row for row in windows if row["run_id"] == case],
            reports[case],
        )
        for case in trl_trainers.CASES
    }


@pytest.mark.parametrize("case", [case for case in FINE_TUNING if case != "sft, by probability"])
def test_fine_tuning_is_judged_as_trainer_is(case: str, ran: dict[str, Ran]) -> None:
    found = ran[case]
    assert not found.report.with_status(FAILED)
    assert {"ACC104", "ACC106", "ACC802", "ACC810"} <= {v.code for v in found.report.verdicts if v.judged}
    for window in found.windows:
        assert window["total_weight"] == pytest.approx(1.0, abs=1e-5)
        assert window["distortion_min"] == pytest.approx(1.0, abs=1e-3)
        assert window["distortion_max"] == pytest.approx(1.0, abs=1e-3)
        assert window["valid_tokens"] == window["global_valid_tokens_in_update"]
    source = "declared" if case == "sft, smoothed" else "model_loss"
    assert {update["weight_source"] for update in found.updates} == {source}


def test_tokens_that_weigh_what_they_are_likely_are_no_fault(ran: dict[str, Ran]) -> None:
    found = ran["sft, by probability"]
    assert [(v.code, v.severity) for v in found.report.with_status(FAILED)] == [("ACC104", "note")]
    assert not any(any(update["weight_uniform"]) for update in found.updates)


@pytest.mark.parametrize("case", OTHERS)
def test_preferences_and_policies_are_not_judged_by_weight(case: str, ran: dict[str, Ran]) -> None:
    """Two sequences of a pair, or answers with rewards of either sign: no token has a weight to expect."""
    found = ran[case]
    assert not found.report.with_status(FAILED)
    unjudged = {verdict.code: verdict.reason for verdict in found.report.with_status(NOT_CHECKED)}
    for code in WEIGHT_RULES:
        assert "`loss_weight` was never recorded" in unjudged[code]
    steps = 2 if case.startswith("grpo") else 3
    word = "Z" + "FB" * steps + "COS"
    assert {update["events"] for update in found.updates if update["microbatches"] == steps} == {word}
    assert {"ACC201", "ACC203", "ACC303", "ACC307"} <= {v.code for v in found.report.verdicts if v.judged}


def test_fine_tuning_on_two_processes(pair: Pair, tmp_path: Path) -> None:
    pair.call(f"{trl_trainers.__name__}:train", case="sft", folder=str(tmp_path))
    assert_clean(tmp_path, judged=["ACC102", "ACC103", "ACC104", "ACC502", "ACC802"])


@pytest.mark.parametrize("case", ["sft", "grpo"])
def test_hooks_leave_the_parameters_alone(case: str, tmp_path: Path) -> None:
    with_hooks, without = (
        trl_trainers.train(case, str(tmp_path / str(hooks)), hooks=hooks) for hooks in (True, False)
    )
    assert with_hooks == without
