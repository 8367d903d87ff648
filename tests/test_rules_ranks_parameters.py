"""Rule ACC605: replicas whose parameters differ, and ranks that are no replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

INDEPENDENT: dict[str, Any] = {"wrapper": "none", "gradient_divisor": None}
SAME: dict[str, Any] = {"param_digest": "aa"}
APART: dict[str, Any] = {"param_digest": "aa", "on": {1: {"param_digest": "bb"}}}


EQUAL, MIXED = ["cc", "cc"], ["cc", "dd"]


def between(digests: list[str], *, moved: bool = False) -> dict[str, Any]:
    """An attempt that found the ranks' parameters like this; `on` is that of APART too."""
    own = [{"param_digest_before": digest, "probe_parameter_moved": moved} for digest in digests]
    return {
        "param_digest": "00",
        "on": {rank: {"param_digest": f"{rank}", **own[rank]} for rank in range(len(own))},
    }


def after(digests: list[str]) -> dict[str, Any]:
    """One that followed an average."""
    return between(digests, moved=True)


class TestParameterDisagreement:
    CODE = "ACC605"

    def test_replicas_that_differ_are_found(self, tmp_path: Path) -> None:
        rows = judge(self.CODE, write_run(tmp_path / "run", [SAME, {}, APART, {}, APART]))
        assert [(row.attempt, row.fault) for row in rows] == [(1, False), (3, True), (5, True)]
        assert (rows[1].severity, rows[1].observed, rows[1].expected) == ("error", 2, 1)
        assert rows[1].message == (
            "2 replicas hold 2 different sets of parameters: rank 0 and rank 1 differ, "
            "after they agreed at attempt 1"
        )

    def test_many_ranks_are_counted(self, tmp_path: Path) -> None:
        others = {rank: {"param_digest": "bb"} for rank in range(1, 7)}
        run = write_run(tmp_path / "run", [{"param_digest": "aa", "on": others}], 8)
        assert the_fault(self.CODE, run).message == (
            "8 replicas hold 2 different sets of parameters: rank 0 and ranks 1, 2, 3 and 3 more differ, "
            "and no digests before these agreed"
        )

    def test_replicas_that_agree_again_are_a_note(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [APART, {}, SAME]))
        assert row.severity == "note"
        assert row.message.endswith("differ, and all agree again after attempt 3")

    def test_independent_runs_are_out_of_scope(self, tmp_path: Path) -> None:
        """They may begin alike: the rate of the first update is 0, or the sweep differs later."""
        still = SAME | {"probe_parameter_changed": False}
        for number, updates in enumerate(
            ([APART], [still, still, APART], [SAME, APART, APART], [APART, SAME])
        ):
            apart = [update | {"events": "ZFBO"} for update in updates]
            assert faults(self.CODE, write_run(tmp_path / str(number), apart, **INDEPENDENT)) == []

    def test_a_step_that_reduces_unseen_is_a_warning(self, tmp_path: Path) -> None:
        """Ranks that two updates left equal are replicas, whoever reduces."""
        updates = [update | {"events": "ZFBO"} for update in (SAME, {}, SAME, SAME, APART, SAME, APART)]
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, **INDEPENDENT))
        assert [(row.attempt, row.fault) for row in rows] == [(4, False), (5, True)]
        assert rows[1].severity == "note"
        run = write_run(tmp_path / "apart", updates[:5], **INDEPENDENT)
        row = the_fault(self.CODE, run)
        assert row.severity == "warning"
        assert row.message.endswith(
            "agreed at attempt 4; the record shows no reduction, and independent runs look the same"
        )

    @pytest.mark.parametrize(
        ("word", "run_fields"),
        [
            pytest.param("ZFBO", INDEPENDENT, id="unwrapped"),
            pytest.param("ZFBAO", INDEPENDENT, id="parameters sent around"),
            pytest.param("ZfbO", {}, id="DDP without a reduction"),
            pytest.param("ZFBO", {"gradient_divisor": None}, id="DDP with a communication hook"),
        ],
    )
    def test_local_sgd_is_judged_right_after_an_average(
        self, tmp_path: Path, word: str, run_fields: dict[str, Any]
    ) -> None:
        """Between averages, and after the step that follows one, replicas differ by right."""
        updates = [APART, APART | between(MIXED), APART | after(EQUAL), APART | after(MIXED)]
        run = write_run(tmp_path / "run", [update | {"events": word} for update in updates], **run_fields)
        rows = judge(self.CODE, run)
        assert [(row.attempt, row.fault) for row in rows] == [(3, False), (4, True)]
        assert rows[1].severity == "error"
        assert rows[1].message == (
            "2 replicas hold 2 different sets of parameters right after these were written between two "
            "steps: rank 0 and rank 1 differ, after they agreed at attempt 3"
        )

    def test_what_is_no_average_over_all_ranks_is_unknown(self, tmp_path: Path) -> None:
        pruned = [APART | after(MIXED) | {"events": "ZFBO"}] * 2
        assert faults(self.CODE, write_run(tmp_path / "pruned", pruned, **INDEPENDENT)) == [None, None]
        quiet = [update | {"events": "ZfbO"} for update in pruned]
        assert faults(self.CODE, write_run(tmp_path / "ddp", quiet)) == [True, True]
        in_pairs = after(["aa", "aa", "bb", "bb"]) | {"events": "ZfbO"}
        assert faults(self.CODE, write_run(tmp_path / "pairs", [in_pairs], 4)) == [None]
        one_missed = after(["aa", "aa", "aa", "bb"]) | {"events": "ZfbO"}
        assert faults(self.CODE, write_run(tmp_path / "missed", [one_missed], 4)) == [True]

    def test_clamped_weights_are_judged(self, tmp_path: Path) -> None:
        updates = [SAME, APART | {"probe_parameter_moved": True}]
        assert the_fault(self.CODE, write_run(tmp_path / "run", updates)).severity == "error"

    def test_an_optimizer_divided_over_the_ranks_has_no_replicas(self, tmp_path: Path) -> None:
        own = {"param_digest": "bb", "probe_parameter": "body.bias"}
        run = write_run(tmp_path / "run", [{"param_digest": "aa", "on": {1: own}}])
        assert faults(self.CODE, run) == [None]

    @pytest.mark.parametrize("axis", ["shard", "tensor", "pipeline"])
    def test_parts_of_a_model_are_not_replicas(self, tmp_path: Path, axis: str) -> None:
        parts = {rank: {f"{axis}_rank": rank, f"{axis}_size": 2} for rank in range(2)}
        assert faults(self.CODE, write_run(tmp_path / "run", [APART], 2, on=parts)) == []

    def test_replicas_of_each_shard_are_compared(self, tmp_path: Path) -> None:
        parts = {rank: {"shard_rank": rank % 2, "shard_size": 2} for rank in range(4)}
        even = {1: {"param_digest": "bb"}, 3: {"param_digest": "bb"}}
        updates = [SAME | {"on": even}, SAME | {"on": {1: {"param_digest": "bb"}}}]
        run = write_run(tmp_path / "run", updates, 4, wrapper="fsdp2", on=parts)
        rows = judge(self.CODE, run)
        assert sorted((row.attempt, row.fault) for row in rows) == [
            (1, False),
            (1, False),
            (2, False),
            (2, True),
        ]

    def test_shards_without_coordinates_are_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [APART], wrapper="fsdp1", shard_rank=None, shard_size=None)
        assert faults(self.CODE, run) == [None]

    @pytest.mark.parametrize(("scope", "expected"), [("shard", [False, True]), ("global", [None, None])])
    def test_replicas_that_part_the_gradients_are_compared(
        self, scope: str, expected: list[bool | None], tmp_path: Path
    ) -> None:
        """Each rank looks at a parameter of its own part, and all hold all parameters."""
        probes = {rank: {"probe_parameter": f"layer {rank}"} for rank in (0, 1)}
        apart = {**probes, 1: {**probes[1], "param_digest": "bb"}}
        updates = [{**SAME, "on": probes}, {**SAME, "on": apart}]
        run = write_run(
            tmp_path / "run", [{**update, "grad_norm_after_scope": scope} for update in updates], shard_size=1
        )
        assert faults(self.CODE, run) == expected

    def test_a_digest_of_one_rank_alone_is_out_of_scope(self, tmp_path: Path) -> None:
        update = {"param_digest": "aa", "on": {1: {"param_digest": None}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update, {}])) == []
