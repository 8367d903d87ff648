"""Rules ACC4xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def clip(micro_step: int = 4, **more: Any) -> dict[str, Any]:
    """A clip at 1 of a norm of 5 after the last micro-step, which did what it should."""
    entry = {
        "micro_step": micro_step,
        "kind": "norm",
        "limit": 1.0,
        "norm": 5.0,
        "coefficient": 0.2,
        "largest": 0.1,
        "complete": True,
    }
    return entry | more


def clipped(*clips: dict[str, Any], word: str = "ZFBFBFBFBCOS", **more: Any) -> dict[str, Any]:
    """An attempt of four micro-steps with these clips."""
    return {"clips": list(clips), "events": word, "grad_norm_before_scope": "global"} | more


class TestClipPerMicroStep:
    def test_a_clip_in_every_micro_step_is_found(self, tmp_path: Path) -> None:
        calls = [clip(1, norm=2.0), clip(2, norm=2.236)]
        updates = [clipped(*calls, word="ZFBCFBCOS", microbatches=2)]
        row = the_fault("ACC401", write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2))
        assert (row.attempt, row.rank, row.severity, row.observed) == (1, 0, "error", 0.5)
        assert row.message == (
            "gradients were clipped before the last of 2 micro-steps: "
            "an early call scaled what was gathered by 0.5, later micro-steps came on top"
        )

    def test_the_word_is_enough(self, tmp_path: Path) -> None:
        updates = [clipped(word="ZFBCFBFBFBCOS", clips=None)]
        row = the_fault("ACC401", write_run(tmp_path / "run", updates, ranks=1))
        assert (row.severity, row.message) == (
            "error",
            "gradients were clipped before the last of 4 micro-steps",
        )

    def test_a_limit_that_was_not_reached_makes_it_a_warning(self, tmp_path: Path) -> None:
        calls = [clip(step, norm=0.5, coefficient=1.0) for step in (1, 2, 3)] + [clip(4)]
        row = the_fault(
            "ACC401", write_run(tmp_path / "run", [clipped(*calls, word="ZFBCFBCFBCFBCOS")], ranks=1)
        )
        assert row.severity == "warning"
        assert row.message.endswith("; no early call reached its limit here")

    def test_a_clip_by_value_is_an_error(self, tmp_path: Path) -> None:
        calls = [clip(1, kind="value", norm=None), clip(4, kind="value", norm=None)]
        updates = [clipped(*calls, word="ZFBCFBFBFBCOS")]
        row = the_fault("ACC401", write_run(tmp_path / "run", updates, ranks=1))
        assert row.severity == "error"
        assert row.message == "gradients were clipped before the last of 4 micro-steps"

    def test_each_rank_is_told(self, tmp_path: Path) -> None:
        updates = [{"on": {0: clipped(clip()), 1: clipped(clip(1), clip(), word="ZFBCFBFBFBCOS")}}]
        rows = judge("ACC401", write_run(tmp_path / "run", updates))
        assert [(row.rank, row.fault) for row in rows] == [(0, False), (1, True)]

    @pytest.mark.parametrize(
        "word",
        ["ZFBFBFBFBCOS", "ZFBFBFBFBUCOGS", "FBCoZFFBFBFBFBCOS", "ZFBCZFBFBFBFBCOS", "ZFBFBFBFBCCOS"],
        ids=["last", "after-unscale", "gan", "cleared-after-it", "two-groups"],
    )
    def test_honest_clips_pass(self, tmp_path: Path, word: str) -> None:
        assert faults("ACC401", write_run(tmp_path / "run", [clipped(clip(), word=word)], ranks=1)) == [False]

    def test_a_discarded_clip_is_not_told(self, tmp_path: Path) -> None:
        calls = [clip(1, norm=100.0), clip(2, norm=2.0), clip(3)]
        updates = [clipped(*calls, word="ZFBCZFBCFBCOS", microbatches=2, discarded_microbatches=1)]
        row = the_fault("ACC401", write_run(tmp_path / "run", updates, ranks=1))
        assert row.observed == 0.5

    def test_without_a_finite_limit_nothing_is_in_scope(self, tmp_path: Path) -> None:
        """Norms are logged by a clip with an infinite limit, in every micro-step."""
        logged = [clip(step, limit=math.inf, coefficient=1.0) for step in (1, 2, 3, 4)]
        updates = [clipped(*logged, word="ZFBFBFBFBOS"), clipped(clip(1), word="ZFBCFBXG", skipped=True)]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert judge("ACC401", run) == []
        assert judge("ACC404", run) == []
        (verdict,) = check_paths([run], select=["ACC401"]).runs[0].verdicts
        assert verdict.reason == "no gradient was clipped by a finite limit"

    def test_an_unknown_word_is_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(clip(1), events=None)], ranks=1)
        assert faults("ACC401", run) == [None]


class TestClipWithoutEffect:
    def test_gradients_that_were_left_as_they_were_are_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(clip(coefficient=1.0))], ranks=1)
        row = the_fault("ACC404", run)
        assert (row.rank, row.severity, row.observed, row.expected) == (0, "warning", 1.0, 0.2)
        assert row.message == (
            "a clip at 1 with a norm of 5 should scale by 0.2, but the gradients were scaled by 1"
        )

    @pytest.mark.parametrize(
        "wrong", [clip(coefficient=0.1), clip(coefficient=0.203), clip(norm=0.5, coefficient=0.5)]
    )
    def test_another_coefficient_is_found(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        assert faults("ACC404", write_run(tmp_path / "run", [clipped(wrong)], ranks=1)) == [True]

    def test_a_clip_by_value_bounds_elements(self, tmp_path: Path) -> None:
        by_value = clip(kind="value", norm=None, coefficient=None)
        updates = [clipped(by_value | {"largest": 1.0}), clipped(by_value | {"largest": 3.0})]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert faults("ACC404", run) == [False, True]
        row = the_fault("ACC404", run)
        assert (row.observed, row.expected) == (3.0, 1.0)
        assert row.message == "a clip by value at 1 left an element of 3"

    def test_every_call_is_judged_and_the_wrong_one_told(self, tmp_path: Path) -> None:
        calls = [clip(), clip(norm=1.0, coefficient=1.0), clip(norm=10.0, coefficient=1.0)]
        row = the_fault("ACC404", write_run(tmp_path / "run", [clipped(*calls)], ranks=1))
        assert "a norm of 10 should scale by 0.1, but the gradients were scaled by 1" in row.message
        assert (row.observed, row.expected) == (1.0, 0.1)

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_clip_of_nothing_is_found(self, tmp_path: Path, complete: bool) -> None:
        """An exhausted generator of parameters: the norm returned is 0."""
        nothing = clip(norm=0.0, coefficient=None, largest=None, complete=complete)
        run = write_run(tmp_path / "run", [clipped(nothing, word="ZFBFBFBFBOS")], ranks=1)
        row = the_fault("ACC404", run)
        assert row.message == (
            "the clip returned a norm of 0, but the optimizer stepped with a norm of 0.5: "
            "it clipped none of it"
        )

    @pytest.mark.parametrize(
        "honest",
        [
            clip(),
            clip(coefficient=0.2015),
            clip(norm=0.5, coefficient=1.0),
            clip(norm=1e-6, limit=5e-7, coefficient=0.25),
        ],
        ids=["right", "rounding", "below-the-limit", "tiny-norm"],
    )
    def test_honest_clips_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC404", write_run(tmp_path / "run", [clipped(honest)], ranks=1)) == [False]

    def test_nothing_to_clip_passes(self, tmp_path: Path) -> None:
        """No gradient at all, or a frozen part that is clipped beside the rest."""
        nothing = clip(norm=0.0, coefficient=None, largest=None, complete=False)
        updates = [clipped(nothing, grad_norm_after_clip=0.0), clipped(nothing, clip())]
        assert faults("ACC404", write_run(tmp_path / "run", updates, ranks=1)) == [False, False]

    @pytest.mark.parametrize(
        ("call", "more"),
        [
            (clip(coefficient=1.0, complete=False), {}),
            (clip(coefficient=1.0), {"grad_norm_before_scope": "shard"}),
            (clip(coefficient=1.0), {"grad_norm_before_scope": None}),
            (clip(coefficient=None), {}),
            (clip(norm=math.nan, coefficient=math.nan), {}),
            (clip(norm=math.nan, coefficient=0.5), {}),
            (clip(kind="value", norm=None, largest=3.0, complete=False), {}),
        ],
        ids=["one-group", "shard", "unknown-scope", "no-factor", "nan", "norm-alone-nan", "value-of-a-group"],
    )
    def test_what_the_probe_cannot_tell_is_unknown(
        self, tmp_path: Path, call: dict[str, Any], more: dict[str, Any]
    ) -> None:
        assert faults("ACC404", write_run(tmp_path / "run", [clipped(call, **more)], ranks=1)) == [None]

    def test_a_clip_without_numbers_is_unknown(self, tmp_path: Path) -> None:
        assert faults("ACC404", write_run(tmp_path / "run", [clipped(clips=None)], ranks=1)) == [None]

    def test_a_run_without_a_clip_is_out_of_scope(self, tmp_path: Path) -> None:
        (verdict,) = check_paths([write_run(tmp_path / "run")], select=["ACC404"]).runs[0].verdicts
        assert verdict.reason == "no gradient was clipped by a finite limit"

    def test_one_unknown_call_leaves_the_update_open(self, tmp_path: Path) -> None:
        updates = [
            clipped(clip(), clip(complete=False)),
            clipped(clip(coefficient=1.0), clip(complete=False)),
        ]
        assert faults("ACC404", write_run(tmp_path / "run", updates, ranks=1)) == [None, True]

    def test_a_skipped_attempt_is_out_of_scope(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(clip(coefficient=1.0), skipped=True)], ranks=1)
        assert judge("ACC404", run) == []

    def test_the_difference_can_be_set(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [clipped(clip(coefficient=0.21))], ranks=1)
        (verdict,) = check_paths([run], select=["ACC404"], params={"ACC404.difference": 0.1}).runs[0].verdicts
        assert verdict.status == "passed"


class TestClipBeforeSync:
    CODE = "ACC403"

    def verdicts(self, folder: Path, *words: str, **run_fields: Any) -> list[bool | None]:
        """The verdicts on rank 0, by attempt."""
        run = write_run(folder / "run", [clipped(clip(), word=word) for word in words], **run_fields)
        return [row.fault for row in judge(self.CODE, run) if row.rank == 0]

    def test_a_clip_before_the_loops_own_reduction_is_found(self, tmp_path: Path) -> None:
        update = clipped(clip(), word="ZFBFBFBFBCAO", on={1: {"clips": [clip(norm=2.0, coefficient=0.5)]}})
        rows = judge(self.CODE, write_run(tmp_path / "run", [update], wrapper="none"))
        assert [(row.rank, row.fault, row.severity, row.observed) for row in rows] == [
            (0, True, "error", 0.2),
            (1, True, "error", 0.5),
        ]
        assert rows[0].message == (
            "rank 0 clipped its own gradients before they were reduced over 2 ranks: "
            "they were scaled by 0.2 first"
        )

    def test_every_reduction_after_it_counts(self, tmp_path: Path) -> None:
        under_ddp = ["ZfbfbfbfbCAO", "ZfbfbfbCFBO", "ZfbCfbCfbCFBCO", "ZDBCFBO", "ZfbfbfbfbUCAOGS"]
        assert self.verdicts(tmp_path / "ddp", *under_ddp) == [True] * 5
        assert self.verdicts(tmp_path / "fsdp", "ZFbFbCFBO", "ZFbFbCAO", wrapper="fsdp2") == [True] * 2
        by_hand = ["ZFBFBCAO", "ZFBAFBCAO", "FBCAZFBCAO"]
        assert self.verdicts(tmp_path / "none", *by_hand, wrapper="none") == [True] * 3

    def test_a_limit_that_was_not_reached_makes_it_a_warning(self, tmp_path: Path) -> None:
        idle = clipped(clip(norm=0.5, coefficient=1.0), word="ZFBFBFBFBCAO")
        unknown = clipped(clips=None, word="ZFBFBFBFBCAO")
        rows = judge(self.CODE, write_run(tmp_path / "run", [idle, unknown], wrapper="none"))
        assert [(row.severity, row.fault) for row in rows[::2]] == [("warning", True), ("error", True)]
        assert rows[0].message.endswith("over 2 ranks; no call reached its limit here")

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        under_ddp = {
            "right": "ZfbfbfbFBCO",
            "right, with a scaler": "ZfbfbfbFBUCOGS",
            "every micro-step reduced, and clipped": "ZFBCFBCFBCFBCO",
            "averaged again": "ZfbfbfbFBCAO",
            "reduced by hand, then clipped": "ZfbfbfbfbACO",
            "a forward around the wrapper beside one through it": "ZfbFfBCAO",
            "never reduced": "ZfbfbfbfbCO",
            "cleared after it": "ZfbCZfbfbfbFBCO",
        }
        assert self.verdicts(tmp_path / "ddp", *under_ddp.values()) == [False] * len(under_ddp)
        by_hand = ["ZFBFBACO", "ZFBAFBACO", "ZFBFBACAO", "ZFBCAZFBACO"]
        assert self.verdicts(tmp_path / "none", *by_hand, wrapper="none") == [False] * 4
        assert self.verdicts(tmp_path / "fsdp", "ZFbFbFBCO", wrapper="fsdp1") == [False]

    def test_out_of_scope(self, tmp_path: Path) -> None:
        assert self.verdicts(tmp_path / "single", "ZFBCAO", ranks=1, wrapper="ddp") == []
        assert self.verdicts(tmp_path / "independent", "ZFBCO", wrapper="none") == []
        logged = clipped(clip(limit=math.inf), word="ZFBFBFBFBAO")
        skipped = clipped(clip(), word="ZFBFBFBFBCAX", skipped=True)
        run = write_run(tmp_path / "run", [logged, skipped], wrapper="none")
        assert judge(self.CODE, run) == []

    def test_unknown(self, tmp_path: Path) -> None:
        assert self.verdicts(tmp_path / "unseen", "ZBBBBCAO") == [None]
        assert self.verdicts(tmp_path / "wrapper", "ZFBFBCAO", wrapper=None) == [None]
        assert self.verdicts(tmp_path / "both", "ZFbFBCAO", wrapper="fsdp2") == [None]
        run = write_run(tmp_path / "word", [clipped(clip(), events=None)])
        assert faults(self.CODE, run) == [None, None]


class TestClipAlwaysActive:
    CODE = "ACC406"
    IDLE = clip(norm=0.5, coefficient=1.0)

    def run(self, folder: Path, *clips: dict[str, Any], **run_fields: Any) -> Path:
        return write_run(folder / "run", [clipped(one) for one in clips], ranks=1, **run_fields)

    def test_a_limit_that_nearly_every_update_reaches_is_told(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, self.run(tmp_path, *[clip()] * 96, *[self.IDLE] * 4))
        assert (row.attempt, row.severity, row.observed, row.expected) == (None, "note", 0.96, 0.95)
        assert row.message == (
            "96 of 100 updates were clipped at 1, half of them to 0.2 of their length or less"
        )

    def test_one_in_twenty_that_passes_is_enough(self, tmp_path: Path) -> None:
        assert faults(self.CODE, self.run(tmp_path, *[clip()] * 95, *[self.IDLE] * 5)) == [False]

    def test_the_norm_tells_where_the_probe_does_not(self, tmp_path: Path) -> None:
        unseen = [clip(coefficient=None)] * 100
        assert faults(self.CODE, self.run(tmp_path, *unseen)) == [True]

    @pytest.mark.parametrize(
        "other",
        [
            clip(limit=math.inf, coefficient=1.0),
            clip(complete=False),
            clip(kind="value", norm=None),
            clip(norm=math.nan, coefficient=None),
        ],
        ids=["logged", "a-group", "by-value", "nan"],
    )
    def test_other_clips_do_not_count(self, tmp_path: Path, other: dict[str, Any]) -> None:
        assert judge(self.CODE, self.run(tmp_path, *[clip()] * 99, other)) == []

    def test_a_short_run_and_skips_are_not_judged(self, tmp_path: Path) -> None:
        updates = [clipped(clip())] * 99 + [clipped(clip(), skipped=True)]
        run = write_run(tmp_path / "run", updates, ranks=1)
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no launch made 100 updates whose norm was clipped by a finite limit"

    def test_ranks_are_not_counted_twice(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [clipped(clip())] * 50)) == []


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    updates = [clipped(clip(), word="ZfbfbfbFBUCOGS"), {}, clipped(clip(norm=0.3, coefficient=1.0))]
    codes = ["ACC401", "ACC403", "ACC404"]
    (report,) = check_paths([write_run(tmp_path / "run", updates)], select=codes).runs
    assert [verdict.status for verdict in report.verdicts] == ["passed"] * 3
