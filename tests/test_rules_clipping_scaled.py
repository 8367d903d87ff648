"""Rule ACC402, and ACC404 where gradients are scaled: what was clipped, and in which units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import Row, faults, faults_by_run, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

SCALE = 65536.0
EARLY = "ZFBFBFBFBCUOGS"
FUSED = "ZFBFBFBFBCOGS"
RIGHT = "ZFBFBFBFBUCOGS"


def clipped(
    word: str | None,
    *,
    norm: float = 0.5,
    limit: float = 1.0,
    scale: float = SCALE,
    carried: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An attempt under a scaler whose last clip met gradients of this true norm, `carried` times as large."""
    carried = scale if carried is None else carried
    seen = norm * carried
    call = {
        "micro_step": 4,
        "kind": "norm",
        "limit": limit,
        "norm": seen,
        "coefficient": min(1.0, limit / seen),
        "largest": 0.1,
        "complete": True,
    }
    return {
        "events": word,
        "clips": [call],
        "probe_clip_coefficient": call["coefficient"],
        "grad_norm_before_clip": norm,
        "grad_norm_before_scope": "global",
        "grad_norm_after_clip": min(seen, limit) / carried,
        "loss_scale": [scale] * 4,
        "grad_scale": scale,
        "grad_scale_after": scale,
    } | more


def by_hand(word: str, factor: float, **more: Any) -> dict[str, Any]:
    """The same without a scaler: the loop multiplies the gradients by a factor."""
    unscaled = {"grad_scale": None, "grad_scale_after": None, "loss_scale": [1.0] * 4}
    return clipped(word, **{"carried": 1 / factor, "grad_rescale": factor} | unscaled | more)


def judged(folder: Path, cases: Mapping[str, Mapping[str, Any]], **run_fields: Any) -> dict[str, Row]:
    """The row of each case; each is an optimizer of its own, so that none is compared with another."""
    updates = [{**case, "optimizer": place} for place, case in enumerate(cases.values())]
    names = list(cases)
    rows = judge("ACC402", write_run(folder / "run", updates, ranks=1, **run_fields))
    return {names[row.optimizer or 0]: row for row in rows}


class TestClipBeforeUnscale:
    def test_a_clip_of_scaled_gradients_is_found(self, tmp_path: Path) -> None:
        row = the_fault("ACC402", write_run(tmp_path / "run", [clipped(EARLY)], ranks=1))
        assert (row.attempt, row.rank, row.severity) == (1, 0, "error")
        assert (row.observed, row.expected) == (1 / SCALE, 1.0)
        assert row.message == (
            "a clip at 1 met gradients that were 65536 times too large: it worked as one at 1.53e-05, "
            "and scaled them by 3.05e-05"
        )

    def test_every_order_of_it_is_found(self, tmp_path: Path) -> None:
        cases = {
            "a fused step unscales by itself": clipped(FUSED),
            "in every micro-step": clipped("ZFBCFBCFBCFBCUOGS"),
            "before and after": clipped("ZFBFBFBFBCUCOGS"),
            "a rescale before it is none of the scale": clipped("ZFBFBFBFBMCOGS", grad_rescale=0.01),
            "by value": clipped(EARLY, clips=[{"kind": "value", "limit": 1.0, "micro_step": 4}]),
            "the word alone": clipped(EARLY, clips=None, probe_clip_coefficient=None),
            "the last window of a launch": clipped("ZFBFBFBFBCO"),
            "unscaled in the word alone": clipped(RIGHT, probe_unscale=1.0),
        }
        rows = judged(tmp_path, cases)
        assert {name: (row.fault, row.severity) for name, row in rows.items()} == dict.fromkeys(
            cases, (True, "error")
        )
        assert rows["the word alone"].message == "a clip met gradients that were 65536 times too large"

    def test_the_probe_alone_is_enough(self, tmp_path: Path) -> None:
        """No word: the norm at the step, times the scale, is the limit."""
        cases = {
            "a clip that was seen": clipped(None),
            "a declared limit": clipped(None, clips=None),
            "the loss scale alone": clipped(None, grad_scale=None),
        }
        rows = judged(tmp_path, cases, max_grad_norm=1.0)
        assert {row.fault for row in rows.values()} == {True}
        assert {row.observed for row in rows.values()} == {1 / SCALE}

    def test_the_probe_alone_tells_a_right_clip(self, tmp_path: Path) -> None:
        cases = {
            "active": clipped(None, norm=5.0, carried=1.0),
            "idle": clipped(None, carried=1.0),
        }
        assert {row.fault for row in judged(tmp_path, cases).values()} == {False}

    def test_a_clip_that_shortened_nothing_is_a_warning(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(EARLY, norm=1e-6)], ranks=1)
        row = the_fault("ACC402", run)
        assert row.severity == "warning"
        assert row.message.endswith("it worked as one at 1.53e-05, and shortened nothing here")

    def test_it_hides_that_the_clip_is_always_active(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(EARLY)] * 100, ranks=1)
        always, early = check_paths([run], select=["ACC406", "ACC402"]).runs[0].verdicts[::-1]
        assert (early.code, early.status, always.reason) == (
            "ACC402",
            "failed",
            "a cause was found by ACC402",
        )

    @pytest.mark.parametrize(
        "honest",
        [
            pytest.param(clipped(RIGHT, norm=5.0, carried=1.0), id="after the unscale"),
            pytest.param(clipped(RIGHT, carried=1.0), id="idle"),
            pytest.param(clipped("ZFBCZFBFBFBFBUCOGS", carried=1.0), id="an early one was cleared"),
            pytest.param(clipped("ZFBCZFBFBFBFBOGS", clips=None), id="the only one was cleared"),
            pytest.param(clipped(EARLY, scale=1.0), id="a scale of 1"),
            pytest.param(by_hand("ZFBFBFBFBCMO", 1.0), id="changed and left as it was"),
        ],
    )
    def test_honest_clips_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC402", write_run(tmp_path / "run", [honest], ranks=1)) == [False]

    def test_no_clip_and_no_scale_are_out_of_scope(self, tmp_path: Path) -> None:
        logged = clipped("ZFBFBFBFBUOGS", limit=math.inf, carried=1.0)
        updates = [
            clipped("ZFBFBFBFBUOGS", clips=None),
            logged,
            clipped("ZFBFBFBFBCUXGS", skipped=True, norm=math.inf),
            by_hand("ZFBFBFBFBCOS", 1.0),
            by_hand("ZFBFBFBFBMCOS", 1 / 1024, carried=1.0),
            by_hand("ZFBFBFBFBMOS", 1 / 12, clips=None),
        ]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert judge("ACC402", run) == []
        (verdict,) = check_paths([run], select=["ACC402"]).runs[0].verdicts
        assert verdict.reason == "no scaled gradient was clipped by a finite limit"


class TestLimitsInScaledUnits:
    """`clip_grad_norm_(parameters, limit * scaler.get_scale())` is right."""

    def test_a_declared_limit_tells_which_was_meant(self, tmp_path: Path) -> None:
        cases = {
            "scaled": clipped(FUSED, norm=5.0, limit=SCALE),
            "not scaled, at a small scale": clipped(FUSED, scale=64.0),
        }
        rows = judged(tmp_path, cases, max_grad_norm=1.0)
        assert [row.fault for row in rows.values()] == [False, True]
        assert rows["not scaled, at a small scale"].severity == "error"

    def test_a_limit_that_follows_the_scale_is_in_its_units(self, tmp_path: Path) -> None:
        updates = [clipped(FUSED, norm=5.0, limit=scale, scale=scale) for scale in (SCALE, SCALE, 2 * SCALE)]
        assert faults("ACC402", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 3

    def test_a_limit_that_does_not_follow_is_found(self, tmp_path: Path) -> None:
        """Users set 100,000 and more; what it means changes with the scale."""
        updates = [clipped(EARLY, norm=5.0, limit=1e5, scale=scale) for scale in (SCALE, SCALE / 2)]
        rows = judge("ACC402", write_run(tmp_path / "run", updates, ranks=1))
        assert [(row.fault, row.severity, row.observed) for row in rows] == [
            (True, "warning", 1e5 / SCALE),
            (True, "warning", 2e5 / SCALE),
        ]

    def test_a_limit_that_is_taken_from_the_norms_is_in_their_units(self, tmp_path: Path) -> None:
        """Adaptive clipping: a percentile of the norms so far, whatever they carry."""
        norms = (0.004, 0.005, 0.006)
        updates = [clipped(EARLY, norm=norm, limit=0.8 * norm * SCALE) for norm in norms]
        assert faults("ACC402", write_run(tmp_path / "run", updates, ranks=1)) == [None] * 3
        far = [clipped(EARLY, norm=5.0, limit=limit) for limit in (5.0, 3.0, 1.0)]
        assert faults("ACC402", write_run(tmp_path / "far", far, ranks=1)) == [True] * 3

    def test_one_scale_alone_leaves_it_open(self, tmp_path: Path) -> None:
        cases = {
            "it shortened": clipped(FUSED, norm=5.0, limit=SCALE),
            "it did not": clipped(FUSED, norm=0.5, limit=SCALE),
            "nearly a hundredth": clipped(FUSED, norm=5.0, limit=0.0099 * SCALE),
        }
        assert [row.fault for row in judged(tmp_path, cases).values()] == [None, False, True]


class TestLoopsThatMultiplyAfterTheClip:
    def test_a_loss_scale_undone_after_the_clip_is_an_error(self, tmp_path: Path) -> None:
        row = the_fault("ACC402", write_run(tmp_path / "run", [by_hand("ZFBFBFBFBCMO", 1 / 1024)], ranks=1))
        assert (row.severity, row.observed) == ("error", 1 / 1024)
        assert row.message == (
            "a clip at 1 met gradients that the loop multiplied by 0.000977 afterwards: "
            "it worked as one at 0.000977, and scaled them by 0.00195"
        )

    def test_other_factors_may_be_meant(self, tmp_path: Path) -> None:
        tokens = {"valid_tokens": [256.0] * 4}  # a power of two, and still their count
        cases = {
            "the count of tokens": by_hand("ZFBFBFBFBCMO", 1 / 1024, **tokens),
            "no power of two": by_hand("ZFBFBFBFBCMO", 1 / 1000),
            "idle": by_hand("ZFBFBFBFBCMO", 1 / 1024, norm=1e-6),
        }
        found = {name: (row.fault, row.severity) for name, row in judged(tmp_path, cases).items()}
        assert found == {
            "the count of tokens": (True, "warning"),
            "no power of two": (True, "warning"),
            "idle": (True, "note"),
        }

    def test_the_average_over_ranks_undone_afterwards(self, tmp_path: Path) -> None:
        """Undeclared, either limit may be meant; declared, it is a note."""
        case = {"times the ranks": by_hand("ZFBFBFBFBCMO", 2.0, norm=5.0)}
        assert [row.fault for row in judged(tmp_path / "open", case).values()] == [None]
        (row,) = judged(tmp_path / "declared", case, max_grad_norm=1.0).values()
        assert (row.fault, row.severity, row.observed) == (True, "note", 2.0)

    def test_a_limit_in_units_of_the_sum_follows_it(self, tmp_path: Path) -> None:
        updates = [
            by_hand("ZFBFBFBFBCMO", 1 / tokens, norm=5.0, limit=tokens * 1.0) for tokens in (400, 500, 600)
        ]
        assert faults("ACC402", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 3


def test_what_the_record_does_not_tell_is_unknown(tmp_path: Path) -> None:
    cases = {
        "unscaled by hand, perhaps": clipped("ZFBFBFBFBMCOGS", grad_rescale=1 / SCALE),
        "changed in an unknown way": clipped("ZFBFBFBFBMCOGS", grad_rescale=None),
        "noise after the clip": by_hand("ZFBFBFBFBCMO", 0.5, grad_rescale=None),
        "before and after it": by_hand("ZFBFBFBFBMCMO", 1 / 1024),
        "the polled parameter alone": by_hand("ZFBFBFBFBCMO", 1 / 1024, carried=1.0),
        "nothing unscales": clipped("ZFBFBFBFBCO", grad_scale=None),
        "no word, and a shard's norm": clipped(None, grad_norm_after_scope="shard"),
        "no word, and odd numbers": clipped(None, norm=0.5, grad_norm_after_clip=0.001),
        "nothing recorded": clipped(
            None, clips=None, probe_clip_coefficient=None, grad_scale=None, loss_scale=None
        ),
    }
    for case, doubtful in cases.items():
        write_run(tmp_path / case, [doubtful], ranks=1)
    assert faults_by_run("ACC402", tmp_path) == {case: [None] for case in cases}


def test_the_effect_of_a_clip_is_judged_in_the_units_of_the_call(tmp_path: Path) -> None:
    """ACC404: a clip of scaled gradients does what its limit and norm say, in a fused step too."""
    broken = clipped(RIGHT, norm=5.0, carried=1.0)
    broken["clips"][0]["coefficient"] = 1.0
    updates = [clipped(EARLY), clipped(FUSED), clipped(RIGHT, norm=5.0, carried=1.0), broken]
    assert faults("ACC404", write_run(tmp_path / "run", updates, ranks=1)) == [False, False, False, True]
