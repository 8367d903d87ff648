"""The heat strip of a post-mortem: the ranks that are in the minority, the columns in which, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import RunReport
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import Ledger, read_ledger
from accumaudit.postmortem import heat
from accumaudit.postmortem.heat import COLUMNS, ROWS, heat_strip
from accumaudit.postmortem.history import histories
from accumaudit.postmortem.model import HeatStrip
from tests.records import write_run

pytestmark = pytest.mark.slow  # all rules over a dozen runs

DIGEST = {"param_digest": "0" * 16}
GLOBAL = {"grad_norm_before_scope": "global"}
OTHER = {"param_digest": "f" * 16}


@dataclass(frozen=True)
class Runs:
    """Runs that were judged together."""

    ledger: Ledger
    reports: Mapping[str, RunReport]

    def heated(self, name: str) -> HeatStrip | None:
        connection, run = self.ledger.connection, self.reports[name]
        return heat_strip(connection, run, histories(connection, run, ()))

    def rows(self, name: str) -> dict[int, tuple[list[int], tuple[str, ...]]]:
        """For each rank that stands out the columns in which it does, from 1, and why."""
        strip = self.heated(name)
        assert strip is not None
        return {
            row.rank: ([place for place, share in enumerate(row.shares, 1) if share], row.why)
            for row in strip.rows
        }


def of(rank: int, **fields: Any) -> dict[str, Any]:
    """An attempt in which one rank differs."""
    return {"on": {rank: fields}}


def gone(*ranks: int) -> dict[str, Any]:
    return {"on": dict.fromkeys(ranks)}


DIFFERENT: Mapping[str, tuple[dict[str, Any], str]] = {
    "rate": (of(2, learning_rate=5e-4), "another learning rate"),
    "scale": ({"grad_scale": 4.0, **of(2, grad_scale=2.0)}, "another gradient scale"),
    "state": (of(2, optimizer_state_step=9), "another count of the optimizer's steps"),
    "after": (of(2, grad_norm_after_clip=3.0), "another gradient norm at the step"),
    "before": (
        {"grad_norm_before_clip": 1.0, **GLOBAL, **of(2, grad_norm_before_clip=2.0)},
        "another gradient norm before clipping",
    ),
    "digest": ({**DIGEST, **of(2, **OTHER)}, "other parameters"),
    "probe": (of(2, probe_gradient=[0.02] * 8), "another slice of the gradient"),
    "skip": (
        {"scheduler_step": 3, "optimizer_state_step": 3, **of(2, optimizer_step_skipped=True)},
        "skipped or applied against the others",
    ),
}
"""What sets rank 2 of four apart, and what is said of it."""


def write_runs(folder: Path) -> None:
    for name, (attempt, _) in DIFFERENT.items():
        write_run(folder / name, [{}, {}, attempt, {}], ranks=4)
    write_run(folder / "missing", [{}, gone(1), gone(1, 2, 3), {}], ranks=4)
    mark = {"kind": "checkpoint", "rank": 0, "name": "step-16"}
    write_run(folder / "checkpoint", 4, ranks=4, marks=[mark])
    some = {**DIGEST, "on": {2: OTHER, 0: {"param_digest": None}, 1: {"param_digest": None}}}
    write_run(folder / "digests", [{}, {}, some, {}], ranks=6)
    write_run(folder / "two", [{}, of(1, grad_norm_after_clip=3.0), gone(0)], ranks=2)
    write_run(folder / "healthy", 4, ranks=2)
    write_run(folder / "alone", 4, ranks=1)
    write_run(folder / "empty", 0, ranks=2)
    own = {"on": {rank: {"grad_norm_after_clip": 1.0 + rank, **OTHER} for rank in range(2)}}
    write_run(folder / "independent", [own] * 4, ranks=4, wrapper="none")
    write_run(folder / "long", [{}] * 299 + [gone(0)] + [{}] * 300, ranks=2)
    write_run(folder / "named", [{}, {}, of(3, events="ZFBfbfbfbOS"), {}], ranks=4)
    parts: dict[str, Any] = {"tensor_size": 2, "data_parallel_size": 2, "gradient_divisor": 2.0}
    places = {rank: {"tensor_rank": rank % 2, "data_parallel_rank": rank // 2} for rank in range(6)}
    halves = {"on": {rank: OTHER if rank % 2 else DIGEST for rank in range(6)}}
    drifted = {"on": halves["on"] | {4: {"param_digest": "a" * 16}}}
    write_run(folder / "often", [of(2, learning_rate=5e-4)] * 6, ranks=4)
    write_run(folder / "tensor", [halves, halves, drifted], ranks=6, world_size=6, on=places, **parts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("heat")
    write_runs(folder)
    with read_ledger([folder]) as ledger:
        report = audit(ledger, load_rules())
        yield Runs(ledger, {run.run_id: run for run in report.runs})


class TestWho:
    @pytest.mark.parametrize("name", DIFFERENT)
    def test_the_rank_in_the_minority_stands_out(self, runs: Runs, name: str) -> None:
        found = runs.rows(name)
        assert list(found) == [2]
        columns, why = found[2]
        assert 3 in columns
        assert f"1 attempt: {DIFFERENT[name][1]}" in why

    def test_a_rank_without_a_record_stands_out_unless_most_lack_theirs(self, runs: Runs) -> None:
        assert runs.rows("missing") == {1: ([2], ("1 attempt: no record where others wrote one",))}

    def test_two_ranks_that_differ_both_stand_out(self, runs: Runs) -> None:
        """Which of two is right nobody knows; which of them is missing is plain."""
        doubt = "1 attempt: another gradient norm at the step, and no majority says which is right"
        missing = "1 attempt: no record where others wrote one"
        assert runs.rows("two") == {0: ([2, 3], (missing, doubt)), 1: ([2], (doubt,))}

    def test_replicas_of_one_part_are_compared(self, runs: Runs) -> None:
        """The halves of a tensor are no replicas of each other."""
        assert {rank: columns for rank, (columns, _) in runs.rows("tensor").items()} == {4: [3]}

    def test_a_rule_that_names_one_rank_of_several(self, runs: Runs) -> None:
        found = runs.rows("named")
        assert list(found) == [3]
        assert any("named by ACC5" in why for why in found[3][1])

    def test_the_rank_that_wrote_a_checkpoint_did_nothing_wrong(self, runs: Runs) -> None:
        """A rule names it, for the checkpoint's name counts micro-steps."""
        failed = {one.code: one for one in runs.reports["checkpoint"].verdicts if one.finding}
        assert failed["ACC809"].severity == "warning"
        assert failed["ACC809"].finding is not None
        assert failed["ACC809"].finding.ranks == (0,)
        assert runs.rows("checkpoint") == {}

    def test_a_rank_that_wrote_no_digest_is_not_another(self, runs: Runs) -> None:
        assert {rank: columns for rank, (columns, _) in runs.rows("digests").items()} == {2: [3]}

    def test_ranks_that_train_by_themselves_may_differ(self, runs: Runs) -> None:
        assert runs.rows("independent") == {}

    def test_a_healthy_run_has_a_quiet_strip(self, runs: Runs) -> None:
        strip = runs.heated("healthy")
        assert strip is not None
        assert (strip.rows, strip.quiet, strip.ranks, strip.axis) == ((), 2, 2, "update")

    @pytest.mark.parametrize("name", ["alone", "empty"])
    def test_there_is_no_strip_without_ranks_to_compare(self, runs: Runs, name: str) -> None:
        assert runs.heated(name) is None


class TestColumns:
    def test_they_are_bounded_and_hold_shares(self, runs: Runs) -> None:
        strip = runs.heated("long")
        assert strip is not None
        assert (len(strip.starts), strip.starts[0]) == (COLUMNS, 1.0)
        (row,) = strip.rows
        (place,) = [place for place, share in enumerate(row.shares) if share]
        assert row.shares[place] == 0.2
        assert strip.starts[place] <= 300 < strip.starts[place] + 5

    def test_of_many_ranks_the_hottest_are_shown(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(heat, "ROWS", 1)
        strip = runs.heated("two")
        assert strip is not None
        assert ([row.rank for row in strip.rows], strip.quiet) == ([0], 0)
        assert ROWS > 1

    def test_of_many_attempts_that_disagree_every_so_many_are_compared(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They stand for the others, and their number is said to be rough."""
        rough = {}
        for most in (10, 1):
            monkeypatch.setattr(heat, "COMPARED", (most, 10**6))
            rough[most] = next(why for why in runs.rows("often")[2][1] if "learning rate" in why)
        assert rough == {
            10: "6 attempts: another learning rate",
            1: "about 6 attempts: another learning rate",
        }


def test_nothing_is_left_in_the_database(runs: Runs) -> None:
    runs.heated("two")
    tables = runs.ledger.connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
    assert not {"heated", "apart", "disagreeing"} & {name for (name,) in tables}
