"""Rules ACC5xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, judge

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

SLICE = [1.0, 2.0]
APART: dict[str, Any] = {"probe_gradient": SLICE, "on": {1: {"probe_gradient": [1.5, 2.0]}}}
"""Two ranks whose gradients differ by a quarter."""

HONEST_UNDER_DDP = {
    "right": "ZfbfbfbFBO",
    "right, with a scaler": "ZfbfbfbFBUCOGS",
    "every micro-step": "ZFBFBFBFBO",
    "no_sync around the backward alone": "ZFbFbFbFBO",
    "the same in the last micro-step": "ZFbFbFbFbO",
    "preference pairs": "ZffbffbffbFFBO",
    "a second forward around the wrapper in the last micro-step": "ZfbfbfbFDBO",
    "a second forward under no_sync in the last micro-step": "ZfbfbfbFfBO",
    "two backwards of one forward": "ZfbbfbbfbbFBBO",
    "the partner of a GAN": "FBoZfbfbfbFBO",
    "a dropped tail": "fbfb|ZfbfbfbFBO",
    "a long window": "Zfb{fb}124fbFBO",
    "reduced by hand": "ZfbfbfbfbAO",
    "reduced by hand after all": "ZFbFbFbfbAUCOGS",
    "a closure": "(ZFBZFBZFB)O",
}


def run_of(folder: Path, *words: str, ranks: int = 2, **run_fields: Any) -> Path:
    """A run whose attempts have these words."""
    updates = [{"events": word, "skipped": "X" in word} for word in words]
    return write_run(folder / "run", updates, ranks, **run_fields)


def by_word(code: str, run: Path, words: Iterable[str]) -> dict[str, set[bool | None]]:
    """The verdicts on each attempt, by its word."""
    rows = judge(code, run)
    return {word: {row.fault for row in rows if row.attempt == n} for n, word in enumerate(words, 1)}


class TestUpdateWithoutSync:
    CODE = "ACC501"

    def test_windows_that_ddp_did_not_reduce_are_found(self, tmp_path: Path) -> None:
        none = "none of the 4 micro-steps of rank 0 was reduced: it stepped on its own gradients"
        last = "the last of the 4 micro-steps of rank 0 bypassed DDP and was not reduced"
        texts = {
            "ZfbfbfbfbO": none,
            "ZfBfBfBfBO": none,
            "FBZfbfbfbfbO": none,
            "ZfbAfbfbfbO": none,
            "ZfbfbfbDBO": last,
            "ZFBFBFBDBO": last,
            "ZDBDBDBDBO": last,
        }
        rows = judge(self.CODE, run_of(tmp_path, *texts))
        assert {(row.fault, row.severity) for row in rows} == {(True, "error")}
        assert [row.rank for row in rows] == [0, 1] * len(texts)
        assert [row.message for row in rows if row.rank == 0] == list(texts.values())

    def test_the_message_has_the_size_where_the_probe_shows_it(self, tmp_path: Path) -> None:
        other = {"probe_gradient": [value * 1.25 for value in SLICE]}
        update = {"events": "ZfbfbfbfbO", "probe_gradient": SLICE, "on": {1: other}}
        row = judge(self.CODE, write_run(tmp_path / "run", [update]))[0]
        assert row.observed == pytest.approx(0.2)
        assert row.message.endswith("; slices of the gradient differ by 20 % between ranks")

    def test_one_rank_alone_is_named(self, tmp_path: Path) -> None:
        update = {"on": {1: {"events": "ZfbfbfbfbO"}}}
        rows = judge(self.CODE, write_run(tmp_path / "run", [update]))
        assert [(row.rank, row.fault) for row in rows] == [(0, False), (1, True)]

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = [*HONEST_UNDER_DDP.values(), "ZFBfbfbfbO"]  # the last is ACC502
        found = by_word(self.CODE, run_of(tmp_path, *words), words)
        assert found == {key: {False} for key in words}

    @pytest.mark.parametrize("wrapper", ["fsdp1", "deepspeed-zero1"])
    def test_other_wrappers_tell_at_the_backward(self, tmp_path: Path, wrapper: str) -> None:
        words = {"ZFbFbFbFBO": {False}, "ZFBFBFBFBO": {False}, "ZFbFbFbFbO": {True}}
        assert by_word(self.CODE, run_of(tmp_path, *words, wrapper=wrapper), words) == words

    def test_replicas_that_agree_later_were_averaged(self, tmp_path: Path) -> None:
        """Local SGD: four updates of each rank alone, then the parameters are averaged."""
        alone = {"events": "ZfbfbfbfbO"}
        apart = alone | {"param_digest": "aa", "on": {1: {"param_digest": "bb"}}}
        together = alone | {"param_digest": "cc"}
        run = write_run(tmp_path / "run", [apart, alone, together, apart])
        assert [row.fault for row in judge(self.CODE, run) if row.rank == 0] == [False, False, False, True]

    @pytest.mark.parametrize(
        ("word", "ranks", "run_fields"),
        [
            pytest.param("ZfbfbfbfbX", 2, {}, id="skipped"),
            pytest.param("ZfbfbfbfbO", 1, {"wrapper": "ddp"}, id="one rank"),
            pytest.param("ZFBFBFBFBO", 2, {"wrapper": "none"}, id="independent runs"),
            pytest.param("O", 2, {}, id="no backward"),
            pytest.param(
                "ZfbfbfbfbO", 2, {"data_parallel_size": 1, "tensor_size": 2}, id="tensor parallel alone"
            ),
        ],
    )
    def test_out_of_scope(self, tmp_path: Path, word: str, ranks: int, run_fields: dict[str, Any]) -> None:
        assert faults(self.CODE, run_of(tmp_path, word, ranks=ranks, **run_fields)) == []

    @pytest.mark.parametrize(
        ("update", "run_fields"),
        [
            pytest.param({"events": "ZBBBBO"}, {}, id="no forward seen"),
            pytest.param({"events": None}, {}, id="no word"),
            pytest.param({"events": "ZfbfbfbfbMO", "grad_rescale": None}, {}, id="perhaps reduced by hand"),
            pytest.param({"events": "ZfbfbfbfbO"}, {"wrapper": None}, id="no wrapper known"),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any], run_fields: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [update], **run_fields)) == [None, None]


class TestSyncOnWrongMicroStep:
    CODE = "ACC502"

    def test_micro_steps_after_the_reduction_are_found(self, tmp_path: Path) -> None:
        after = {"ZFBfbfbfbO": 3, "ZfbfbFBfbO": 1, "ZFFBffbO": 1, "fbZFBfbUCOGS": 1, "ZFBfbAfbO": 2}
        rows = judge(self.CODE, run_of(tmp_path, *after))
        assert {(row.fault, row.severity) for row in rows} == {(True, "error")}
        assert [row.rank for row in rows] == [0, 1] * len(after)
        assert [row.message for row in rows if row.rank == 0] == [
            f"the last {count} of 4 micro-steps of rank 0 came after the reduction: "
            "each rank adds its own gradient of them"
            for count in after.values()
        ]

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = [*HONEST_UNDER_DDP.values(), "ZfbfbfbfbO"]  # the last is ACC501
        found = by_word(self.CODE, run_of(tmp_path, *words), words)
        assert found == {key: {False} for key in words}

    @pytest.mark.parametrize("wrapper", ["fsdp2", "deepspeed-zero0"])
    def test_other_wrappers_tell_at_the_backward(self, tmp_path: Path, wrapper: str) -> None:
        words = {"ZFbFbFbFBO": {False}, "ZFBFbFbFbO": {True}, "ZFbFbFbFbO": {False}}
        run = run_of(tmp_path, *words, wrapper=wrapper)
        assert by_word(self.CODE, run, words) == words
        assert all("the last 3 of 4" in row.message for row in judge(self.CODE, run) if row.fault)

    def test_replicas_that_agree_later_were_averaged(self, tmp_path: Path) -> None:
        updates = [{"events": "ZFBfbfbfbO"}, {"events": "ZFBfbfbfbO", "param_digest": "cc"}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [False] * 4

    def test_skipped_attempts_and_single_ranks_are_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of(tmp_path / "skipped", "ZFBfbfbfbX")) == []
        assert faults(self.CODE, run_of(tmp_path / "single", "ZFBfbfbfbO", ranks=1, wrapper="ddp")) == []

    def test_unknown(self, tmp_path: Path) -> None:
        unseen = {"events": "ZBbbbO"}
        perhaps_reduced_by_hand = {"events": "ZFBfbfbfbMO", "grad_rescale": None}
        run = write_run(tmp_path / "run", [unseen, perhaps_reduced_by_hand])
        assert faults(self.CODE, run) == [None] * 4

    def test_a_factor_after_the_last_backward_reduces_nothing(self, tmp_path: Path) -> None:
        update = {"events": "ZFBfbfbfbMO", "grad_rescale": 0.25}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [True, True]


class TestLocalSGD:
    """Parameters are averaged in place of gradients: ACC605 alone judges that."""

    WORDS: ClassVar[dict[str, str | None]] = {"ACC501": "ZfbfbfbfbO", "ACC502": "ZFBfbfbfbO", "ACC505": None}

    @pytest.mark.parametrize("code", WORDS)
    def test_parameters_that_move_between_steps_leave_it_open(self, tmp_path: Path, code: str) -> None:
        alone = APART | {"events": self.WORDS[code]}
        updates = [alone, alone | {"probe_parameter_moved": True}, alone | {"probe_parameter_moved": False}]
        assert set(faults(code, write_run(tmp_path / "run", updates))) == {None}
        assert set(faults(code, write_run(tmp_path / "fault", [alone, alone]))) == {True}

    @pytest.mark.parametrize("code", WORDS)
    def test_an_optimizer_that_averages_leaves_it_open(self, tmp_path: Path, code: str) -> None:
        alone = APART | {"events": self.WORDS[code]}
        for place, name in enumerate(("PostLocalSGDOptimizer", "DiLoCo", "ModelAveragingOptimizer")):
            attached = [{"index": 0, "class": name, "name": None}]
            run = write_run(tmp_path / str(place), [alone], optimizers=attached)
            assert set(faults(code, run)) == {None}

    @pytest.mark.parametrize("code", WORDS)
    def test_averaged_iterates_of_one_rank_are_none(self, tmp_path: Path, code: str) -> None:
        attached = [{"index": 0, "class": "ASGD", "name": None}]
        alone = APART | {"events": self.WORDS[code]}
        assert set(faults(code, write_run(tmp_path / "run", [alone], optimizers=attached))) == {True}

    def test_it_reaches_its_own_optimizer_and_launch_alone(self, tmp_path: Path) -> None:
        alone = {"events": "ZfbfbfbfbO"}
        moved = alone | {"probe_parameter_moved": True}
        write_run(tmp_path / "run", [alone | {"optimizer": 1}, moved])
        run = write_run(tmp_path / "run", [alone], launch="bbbb", started_at=1_700_009_000.0, first_update=3)
        rows = judge("ACC501", run)
        assert [(row.attempt, row.optimizer, row.fault) for row in rows if row.rank == 0] == [
            (1, 1, True),
            (1, 0, True),
            (2, 0, None),
        ]

    @pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
    def test_weights_that_are_clamped_between_the_steps_are_none(self, tmp_path: Path, wrapper: str) -> None:
        clamped = {"events": "ZfbfbfbFBO", "probe_parameter_moved": True}
        alone = {"events": "ZfbfbfbfbO"}
        run = write_run(tmp_path / "run", [clamped, alone, clamped | APART], wrapper=wrapper)
        assert [row.fault for row in judge("ACC501", run) if row.rank == 0] == [False, True, False]
        assert set(faults("ACC502", run)) == {False}
        assert faults("ACC505", run) == [False, False, True]


class TestGradientsNotReduced:
    CODE = "ACC505"

    def test_slices_that_differ_although_the_flags_are_right_are_found(self, tmp_path: Path) -> None:
        updates = [{"probe_gradient": SLICE}, APART | {"probe_parameter": "head.weight"}]
        (row,) = [row for row in judge(self.CODE, write_run(tmp_path / "run", updates)) if row.fault]
        assert (row.attempt, row.rank, row.severity, row.observed) == (2, None, "error", 0.25)
        assert row.message == (
            "slices of the gradient of head.weight differ by 25 % between ranks after the last backward, "
            "although its micro-step was to be reduced"
        )

    def test_the_probe_alone_is_enough(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [APART | {"events": None}, {"events": None}])
        assert faults(self.CODE, run) == [True, False]
        assert judge(self.CODE, run)[0].message.endswith("between ranks after the last backward")

    def test_one_backward_around_the_wrapper_is_found(self, tmp_path: Path) -> None:
        """Two losses in the last micro-step, one through the wrapper: no flag shows it."""
        run = write_run(tmp_path / "run", [APART | {"events": "ZfbfbfbFDBBO"}])
        assert faults(self.CODE, run) == [True]
        assert set(faults("ACC501", run)) == {False}

    @pytest.mark.parametrize(("word", "cause"), [("ZfbfbfbfbO", "ACC501"), ("ZFBfbfbfbO", "ACC502")])
    def test_flags_explain_it_where_they_are_wrong(self, tmp_path: Path, word: str, cause: str) -> None:
        run = write_run(tmp_path / "run", [APART | {"events": word}])
        verdicts = {one.code: one for one in check_paths([run]).runs[0].verdicts}
        assert verdicts[cause].status == "failed"
        assert verdicts[self.CODE].reason == f"a cause was found by {cause}"

    def test_it_explains_that_gradients_and_parameters_disagree(self, tmp_path: Path) -> None:
        apart = {"probe_gradient": [1.5, 2.0], "param_digest": "bb"}
        updates = [APART | {"param_digest": "aa", "on": {1: apart}}]
        verdicts = {
            one.code: one for one in check_paths([write_run(tmp_path / "run", updates)]).runs[0].verdicts
        }
        assert verdicts[self.CODE].status == "failed"
        assert {verdicts[code].reason for code in ("ACC604", "ACC605")} == {"a cause was found by ACC505"}

    def test_an_engine_that_leaves_whole_gradients_is_judged(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [APART | {"events": "ZFbFbFbFBO"}], wrapper="deepspeed-zero0")
        assert faults(self.CODE, run) == [True]

    def test_replicas_under_fsdp_are_compared(self, tmp_path: Path) -> None:
        """Hybrid sharding: ranks 0 and 1 hold the two shards, ranks 2 and 3 the same again."""
        ranks = {rank: {"shard_rank": rank % 2, "replica_rank": rank // 2} for rank in range(4)}
        own = {rank: {"probe_gradient": [1.0 + rank % 2, 2.0]} for rank in range(4)}
        apart = {**own, 3: {"probe_gradient": [2.5, 2.0]}}
        run = write_run(
            tmp_path / "run", [{"on": own}, {"on": apart}], 4, wrapper="fsdp2", shard_size=2, on=ranks
        )
        assert faults(self.CODE, run) == [False, True]

    @pytest.mark.parametrize(
        ("ranks", "run_fields"),
        [(1, {"wrapper": "ddp"}), (2, {"wrapper": "none"}), (2, {"wrapper": "deepspeed-zero1"})],
    )
    def test_out_of_scope(self, tmp_path: Path, ranks: int, run_fields: dict[str, Any]) -> None:
        update = APART if ranks > 1 else {}
        assert faults(self.CODE, write_run(tmp_path / "run", [update], ranks, **run_fields)) == []

    def test_skips_and_attempts_without_a_backward_are_out_of_scope(self, tmp_path: Path) -> None:
        updates = [APART | {"skipped": True}, APART | {"events": "O"}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == []

    @pytest.mark.parametrize(
        ("update", "run_fields"),
        [
            pytest.param({"events": "ZfbfbfbfbAO"}, {}, id="reduced by hand"),
            pytest.param({"events": "ZfbfbfbfbMO", "grad_rescale": None}, {}, id="perhaps reduced by hand"),
            pytest.param({"events": None, "grad_rescale": None}, {}, id="nothing known of changes"),
            pytest.param({}, {"gradient_divisor": None}, id="a communication hook"),
            pytest.param({}, {"wrapper": None}, id="no wrapper known"),
            pytest.param({}, {"wrapper": "fsdp1", "shard_rank": None}, id="shards without coordinates"),
            pytest.param({"param_digest": "aa"}, {}, id="an optimizer that reduces inside its step"),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any], run_fields: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [APART | update], **run_fields)) == [None]

    def test_ranks_that_differ_in_more_than_the_gradient_are_unknown(self, tmp_path: Path) -> None:
        other = {"probe_gradient": [1.5, 2.0]}
        updates = [
            APART | {"grad_scale": 1024.0, "on": {1: other | {"grad_scale": 512.0}}},
            APART | {"on": {1: other | {"micro_step_id": 100}}},
            {"probe_gradient": SLICE, "on": {1: {"probe_gradient": None}}},
        ]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [None, None, None]


class TestNoSyncAroundBackwardOnly:
    CODE = "ACC503"

    def test_a_forward_outside_and_a_backward_inside_is_found(self, tmp_path: Path) -> None:
        (row,) = judge(self.CODE, run_of(tmp_path, "ZFbFbFbFBO"))
        assert row.fault
        assert (row.severity, row.rank, row.observed, row.expected) == ("note", None, 4, 1)
        assert row.message == (
            "no_sync was entered after the forward in 3 of 4 micro-steps, so they were reduced all the same: "
            "right, with 4 reductions for this update"
        )

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = ["ZfbfbfbFBO", "ZFBFBFBFBO", "ZfBfBfBfBO", "ZfbfbfbfbO", "FbZfbfbfbFBO", "ZFBbO"]
        found = by_word(self.CODE, run_of(tmp_path, *words), words)
        assert found == {key: {False} for key in words}

    def test_it_says_nothing_of_an_update_whose_last_micro_step_was_not_reduced(self, tmp_path: Path) -> None:
        """The flag is set after the forward, so that each forward finds that of the micro-step before."""
        words = ["ZFbfbfbfBO", "ZFbfbfbDBO"]
        assert by_word(self.CODE, run_of(tmp_path / "a", *words), words) == {key: {False} for key in words}
        assert faults("ACC502", run_of(tmp_path / "b", words[0])) == [True, True]

    @pytest.mark.parametrize(
        ("ranks", "wrapper"), [(1, "ddp"), (2, "none"), (2, "fsdp2"), (2, "deepspeed-zero1")]
    )
    def test_out_of_scope(self, tmp_path: Path, ranks: int, wrapper: str) -> None:
        assert faults(self.CODE, run_of(tmp_path, "ZFbFbFbFBO", ranks=ranks, wrapper=wrapper)) == []

    def test_unknown(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of(tmp_path / "wrapper", "ZFbFbFbFBO", wrapper=None)) == [None]
        assert faults(self.CODE, write_run(tmp_path / "word", [{"events": None}])) == [None]


class TestSyncEveryMicroStep:
    CODE = "ACC504"

    def test_reductions_before_the_last_are_found(self, tmp_path: Path) -> None:
        reduced = {"ZFBFBFBFBO": 4, "ZfbFBfbFBO": 2, "ZFFBFFBO": 2}
        rows = judge(self.CODE, run_of(tmp_path, *reduced))
        assert {(row.fault, row.severity, row.rank) for row in rows} == {(True, "note", None)}
        assert [row.observed for row in rows] == list(reduced.values())
        assert rows[0].message == (
            "4 of 4 micro-steps were reduced where the last alone is enough: "
            "right, at 4 times the communication"
        )

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        honest = {
            "right": "ZfbfbfbFBO",
            "this is ACC502": "ZFBfbfbfbO",
            "this is ACC503": "ZFbFbFbFBO",
            "preference pairs": "ZFFBO",
            "the partner of a GAN": "FBoZFFBO",
            "a dropped tail": "FBFB|ZfbfbfbFBO",
        }
        found = by_word(self.CODE, run_of(tmp_path, *honest.values()), honest.values())
        assert found == {key: {False} for key in honest.values()}

    def test_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of(tmp_path / "one rank", "ZFBFBO", ranks=1, wrapper="ddp")) == []
        assert faults(self.CODE, run_of(tmp_path / "fsdp", "ZFBFBO", wrapper="fsdp2")) == []
        single = {"events": "ZFBO", "microbatches": 1}
        assert faults(self.CODE, write_run(tmp_path / "no accumulation", [single])) == []

    def test_unknown(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of(tmp_path / "forward", "ZBBBBO")) == [None]
        assert faults(self.CODE, run_of(tmp_path / "wrapper", "ZFBFBFBFBO", wrapper=None)) == [None]
