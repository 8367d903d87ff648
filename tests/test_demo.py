"""The demo's trainings and what the audit says of them: each fault its code, each right loop nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli.demo import command
from accumaudit.demo.faults import FAULTS
from accumaudit.demo.launching import LaunchError, launch, launch_processes
from accumaudit.demo.scenario import Scenario
from accumaudit.demo.variants import VARIANTS
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import BROKEN, FAILED, Verdict
from tests.covering import Row, covering_array
from tests.faults.registry import faults
from tests.trainings import train

if TYPE_CHECKING:
    from tests.processes import Pair


Findings = dict[str, list[Verdict]]


BESIDES = {"mean-of-means": {"ACC905"}, "mixed-denominators": {"ACC905"}}
"""Notes that a fault gives beside its own code: by how much it shrinks the batch."""


def findings(folder: Path) -> Findings:
    """What is found in each training of a folder; there is nothing that could not be read or judged."""
    found: Findings = {}
    for run in check_paths([folder]).runs:
        assert not run.unreadable, run.run_id
        assert not run.with_status(BROKEN), [verdict.reason for verdict in run.with_status(BROKEN)]
        training = Path(run.path).relative_to(folder).parts[0]
        found.setdefault(training, []).extend(run.with_status(FAILED))
    return found


def told(found: Findings) -> dict[str, list[str]]:
    return {
        name: [f"{verdict.code}: {verdict.finding and verdict.finding.message}" for verdict in verdicts]
        for name, verdicts in found.items()
        if verdicts
    }


def train_all(scenarios: dict[str, Scenario], ranks: int, folder: Path, pair: Pair) -> list[str]:
    names = [name for name, scenario in scenarios.items() if ranks in scenario.ranks]
    for name in names:
        train([name], folder / name, ranks, pair)
    return names


def on_the_scoreboard(ranks: int) -> set[str]:
    """The faults that test_scoreboard trains as they are, with the same demand."""
    trainings = (fault.trainings.get("torch" if ranks == 1 else "DDP") for fault in faults().values())
    given = (one.arguments for one in trainings if one and one.function.endswith(":train_demo"))
    return {one["name"] for one in given if not one["variants"] and not one["settings"]}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_fault_gives_its_code_and_no_other(ranks: int, tmp_path: Path, pair: Pair) -> None:
    others = {name: fault for name, fault in FAULTS.items() if name not in on_the_scoreboard(ranks)}
    names = train_all(others, ranks, tmp_path, pair)
    found = findings(tmp_path)
    codes = {name: {verdict.code for verdict in found[name]} - BESIDES.get(name, set()) for name in names}
    wrong = {name: found[name] for name in names if codes[name] != {FAULTS[name].code}}
    assert not wrong, told(wrong) or f"nothing was found in {[*wrong]}"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_no_right_loop_is_accused(ranks: int, tmp_path: Path, pair: Pair) -> None:
    names = train_all(VARIANTS, ranks, tmp_path, pair)
    found = findings(tmp_path)
    assert {*found} == {*names}
    assert not told(accusations(found))
    assert not found["plain"]


def accusations(found: Findings) -> Findings:
    """The findings that are more than notes."""
    return {name: [v for v in verdicts if v.severity != "note"] for name, verdicts in found.items()}


LOGS_ALONE = {"ACC309"}
"""Rules of what logs leave unsaid; a recorded training says it."""


def test_every_rule_has_a_fault_and_every_fault_a_rule() -> None:
    rules = load_rules()
    assert {fault.code for fault in FAULTS.values()} == {*rules} - LOGS_ALONE
    assert {fault.code: name for name, fault in FAULTS.items()}.items() <= {
        (code, rule.name) for code, rule in rules.items()
    }


FACTORS: dict[str, tuple[str | int | bool | float | None, ...]] = {
    "loss": (
        "plain",
        "mean-of-equal-lengths",
        "gradients-rescaled",
        "masked-losses",
        "chunked-loss",
        "class-weights",
        "loss-coefficient",
        "two-backwards",
        "preference-pairs",
        "non-finite-skipped",
    ),
    "ranks": (1, 2),
    "accumulation_steps": (4, 1),
    "tail": ("plain", "tail-left-out"),
    "data": ("plain", "zero-token-micro-step"),
    "clearing": ("plain", "cleared-at-top", "cleared-by-hand"),
    "sync": ("plain", "sync-every-micro-step"),
    "clip": ("plain", "norm-logged", None),
    "schedule": ("plain", "rate-zero-first", None),
    "optimizer": ("plain", "fused-optimizer", "foreach-optimizer", "muon-and-adamw"),
    "average": ("plain", "average-of-updates"),
    "loss_scale": (None, 1024.0),
    "overflow": ("plain", "overflow-skipped", "infinite-loss-skipped"),
    "precision": ("fp32", "bf16", "fp16"),
    "checkpointing": ("off", "reentrant", "non-reentrant"),
}


def can_train(row: Row) -> bool:
    """Combinations that torch forbids, or that would be faults."""
    loss = row.get("loss")
    return not (
        # DDP reduces in the first backward of a forward alone.
        (loss == "two-backwards" and row.get("ranks") == 2)
        # DDP marks a parameter ready at its first nested backward; a second forward brings a second.
        or (loss == "preference-pairs" and row.get("ranks") == 2 and row.get("checkpointing") == "reentrant")
        # A mean over no token is NaN; and lengths that differ are no equal lengths.
        or (loss == "mean-of-equal-lengths" and row.get("data") == "zero-token-micro-step")
        # The skipped micro-step must not be the one that reduces, nor the window's only one.
        or (loss == "non-finite-skipped" and row.get("accumulation_steps") == 1)
        # Without a scaler nobody skips; and with both, a loss that is not finite is skipped already.
        or (row.get("overflow", "plain") != "plain" and row.get("loss_scale", 1.0) is None)
        or (row.get("overflow") == "infinite-loss-skipped" and loss == "non-finite-skipped")
    )


def combinations_of(ranks: int) -> list[Row]:
    return [row for row in covering_array(FACTORS, can_train) if row["ranks"] == ranks]


def settings_of(row: Row) -> dict[str, object]:
    named = ("accumulation_steps", "precision", "checkpointing", "loss_scale")
    settings = {name: row[name] for name in named}
    if row["clip"] != "plain":
        settings["max_grad_norm"] = None
    if row["schedule"] is None:
        settings["warmup_updates"] = None
    return settings | {"batches": 10, "epochs": 2}


def traits_of(row: Row) -> list[str]:
    factors = (
        *("loss", "tail", "data", "clearing", "sync", "clip", "schedule"),
        *("average", "optimizer", "overflow"),
    )
    names = [row[factor] for factor in factors if row[factor] not in (None, "plain")]
    return names or ["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_right_ways_may_be_combined(ranks: int, tmp_path: Path, pair: Pair) -> None:
    rows = {f"{number:02}": row for number, row in enumerate(combinations_of(ranks))}
    for name, row in rows.items():
        train(traits_of(row), tmp_path / name, ranks, pair, settings=settings_of(row))
    found = findings(tmp_path)
    assert {*found} == {*rows}
    wrong = told(accusations(found))
    assert not wrong, [(rows[name], messages) for name, messages in wrong.items()]


def test_the_combinations_cover_every_pair_that_may_meet() -> None:
    rows = list(covering_array(FACTORS, can_train))
    for left, right in ((a, b) for a in FACTORS for b in FACTORS if a < b):
        for pair_of_levels in ((x, y) for x in FACTORS[left] for y in FACTORS[right]):
            if can_train(dict(zip((left, right), pair_of_levels, strict=True))):
                assert any((row[left], row[right]) == pair_of_levels for row in rows), (
                    left,
                    right,
                    pair_of_levels,
                )
    assert all(map(can_train, rows))
    assert len(rows) < 60


def run_demo(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_the_command_trains_and_checks(tmp_path: Path) -> None:
    result = run_demo("--log-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "plain: 12 updates, 1 rank" in result.stdout
    assert "error ACC101 fixed-divisor-tail" in result.stdout
    assert f"The ledgers are in {tmp_path}." in result.stderr
    assert {run.run_id for run in check_paths([tmp_path]).runs} == {"plain", "fixed-divisor-tail"}


def test_the_command_lists_every_training() -> None:
    listed = run_demo("--list").stdout
    assert all(f"{fault.code} {name}" in listed for name, fault in FAULTS.items())
    assert all(name in listed for name in VARIANTS)


def test_a_fault_may_be_named_by_its_code() -> None:
    result = run_demo("--fault", "acc204")
    assert result.exit_code == 0
    assert "window-too-long: 9 updates" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "nonsense"], "there is no demo named 'nonsense'; accumaudit demo --list shows all"),
        (["--fault", "ACC501", "--ranks", "1"], "update-without-sync needs 2 ranks, not 1: use --ranks 2"),
    ],
)
def test_what_cannot_be_trained_is_told(arguments: list[str], message: str) -> None:
    result = run_demo(*arguments)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {message}\n"


def test_a_ledger_is_never_written_into_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    result = run_demo("--fault", "plain", "--log-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "is there already" in result.stderr


@pytest.mark.slow
def test_two_ranks_are_processes_of_their_own(tmp_path: Path) -> None:
    launch(FAULTS["wrong-total-weight"], tmp_path / "run", 2)
    [run] = check_paths([tmp_path / "run"]).runs
    assert run.ranks == (0, 1)
    assert [verdict.code for verdict in run.with_status(FAILED)] == ["ACC104"]


@pytest.mark.slow
def test_a_rank_that_fails_is_told_and_none_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"(?s)rank [01] of nonsense failed:.*no demo named 'nonsense'"):
        launch_processes("nonsense", tmp_path / "run", 2)
