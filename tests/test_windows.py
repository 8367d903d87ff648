"""The table of windows: weights over ranks, what explains a wrong total, and what the ranks compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import Record, write_run
from tests.tables import by_rank, column, windows, windows_by_run

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


class TestWeights:
    """T, d and N over ranks."""

    def test_right_weights(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1)
        columns = "total_weight, distortion_min, distortion_max, equivalent_batch / valid_tokens"
        assert windows(run, columns) == [tuple([pytest.approx(1.0)] * 4)]
        assert windows(run, "valid_tokens, weight_cause, weight_factors, tolerance") == [
            (932.0, "right", [], 0.002)
        ]

    def test_unequal_weights(self, tmp_path: Path) -> None:
        """A mean of means: the mean of 1 token counts as much as the mean of 9."""
        lists = {"loss_weight": [0.5, 0.5], "loss_weight_sq": [0.25, 0.25 / 9]}
        update = {"microbatches": 2, "valid_tokens": [1.0, 9.0], **lists}
        run = write_run(tmp_path / "run", [update], ranks=1, accumulation_steps=2)
        (found,) = windows(run, "total_weight, distortion_min, distortion_max, equivalent_batch")
        assert found == (1.0, pytest.approx(10 / 18), pytest.approx(5.0), pytest.approx(3.6))

    def test_local_denominators(self, tmp_path: Path) -> None:
        """Equal inside the ranks, unequal between them; the total hides it."""
        ranks = [
            {
                "microbatches": 2,
                "valid_tokens": [n, n],
                "loss_weight": [0.5, 0.5],
                "loss_weight_sq": [0.25 / n] * 2,
            }
            for n in (10.0, 30.0)
        ]
        run = write_run(tmp_path / "run", [by_rank(*ranks)], accumulation_steps=2)
        (found,) = windows(run, "total_weight, distortion_min, distortion_max")
        assert found == (1.0, pytest.approx(2 / 3), pytest.approx(2.0))

    def test_a_rescale_by_hand_counts(self, tmp_path: Path) -> None:
        update = {"total_weight": 932.0, "grad_rescale": 1 / 932}
        run = write_run(tmp_path / "run", [update, {"grad_rescale": None}, by_rank({"grad_rescale": None})])
        assert windows(run, "total_weight, distortion_max, weight_cause") == [
            (pytest.approx(1.0), pytest.approx(1.0), "right"),
            (None, None, None),
            (None, None, None),
        ]

    def test_what_one_rank_does_not_know_the_window_does_not_know(self, tmp_path: Path) -> None:
        cases: list[dict[str, Any]] = [
            by_rank({"loss_weight": None}),
            by_rank({"loss_weight": [0.1, None, 0.1, 0.1]}),
            by_rank({"loss_weight": [0.1, float("nan"), 0.1, 0.1]}),
            by_rank({"weight_uniform": [True, None, True, True]}),
            by_rank({"weight_uniform": None}),
            {"on": {0: None}},
            {"skipped": True},
        ]
        for place, fields in enumerate(cases):
            write_run(tmp_path / str(place), [fields])
        columns = "total_weight, distortion_min, weight_cause, weight_factors"
        assert windows_by_run(tmp_path, columns) == {
            str(place): [(None, None, None, None)] for place in range(len(cases))
        }

    def test_a_divisor_that_is_not_known_leaves_the_total_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, on={1: {"gradient_divisor": None}})
        assert windows(run, "gradient_divisor, total_weight, valid_tokens") == [(None, None, 932.0)]

    def test_tokens_are_known_without_their_weights(self, tmp_path: Path) -> None:
        lists = {"valid_tokens": [0.0] * 4, "loss_weight": [float("nan")] * 4, "weight_uniform": [None] * 4}
        run = write_run(tmp_path / "run", [lists, {"loss_weight": None}])
        assert windows(run, "valid_tokens, total_weight, weight_uniform") == [
            (0.0, None, True),
            (932.0, None, True),
        ]

    def test_no_tokens_have_no_total(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"valid_tokens": [0.0] * 4}])
        assert windows(run, "valid_tokens, loss_weight, total_weight, weight_cause") == [
            (0.0, 0.0, None, None)
        ]

    def test_an_empty_micro_step_is_uniform(self, tmp_path: Path) -> None:
        lists = {"valid_tokens": [5.0, 0.0, 5.0, 5.0], "weight_uniform": [True, None, True, True]}
        assert column(write_run(tmp_path / "run", [lists]), "weight_cause") == ["right"]

    def test_weights_that_differ_on_purpose_have_a_total_and_no_distortion(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"weight_uniform": [True, True, False, True]}])
        assert windows(run, "weight_cause, weight_uniform, distortion_max") == [("right", False, None)]

    @pytest.mark.parametrize(
        ("dtypes", "tolerance"),
        [
            (("float32", "float32"), 0.002),
            (("torch.float64", "float32"), 0.002),
            (("float32", "bfloat16"), 0.01),
            (("float16", None), 0.01),
            ((None, None), 0.01),
        ],
    )
    def test_the_tolerance_follows_the_dtype(
        self, tmp_path: Path, dtypes: Sequence[str | None], tolerance: float
    ) -> None:
        update = by_rank(*({"weight_dtype": dtype} for dtype in dtypes)) | {"total_weight": 1.005}
        assert windows(write_run(tmp_path / "run", [update]), "tolerance, weight_cause = 'right'") == [
            (tolerance, tolerance > 0.005)
        ]

    def test_terms_that_were_declared_are_none(self, tmp_path: Path) -> None:
        term = {"micro_step": 1, "term": "aux", "declared": True, "loss_weight": 0.1}
        updates = [{"loss_terms": terms} for terms in (None, [], [term], [term, term | {"declared": None}])]
        assert column(write_run(tmp_path / "run", updates), "several_terms") == [False, False, False, True]

    def test_sums_are_unknown_where_a_rank_is(self, tmp_path: Path) -> None:
        columns = "samples, input_positions, attended_positions, masked_positions"
        fields = by_rank({"samples": None, "attended_positions": [1, None, 1, 1]})
        assert windows(write_run(tmp_path / "run", [{}, fields]), columns) == [
            (32, 2048, 1600, 0),
            (None, 2048, None, 0),
        ]


class TestCauses:
    """Which factor a wrong total is, and when it is a tail."""

    def causes(self, tmp_path: Path, updates: Sequence[Mapping[str, Any]], **fields: Any) -> list[str | None]:
        self.run = write_run(tmp_path / "run", updates, **fields)
        return column(self.run, "weight_cause")

    def test_factors(self, tmp_path: Path) -> None:
        cases: dict[float, list[str]] = {
            4.0: ["G"],
            0.25: ["1/G"],
            2.0: ["W"],
            0.5: ["1/W"],
            8.0: ["G*W"],
            0.125: ["1/(G*W)"],
            4.007: ["G"],
            1.0019: [],
            4.2: [],
            0.3: [],
            -1.0: [],
        }
        for total in cases:
            write_run(tmp_path / str(total), [{"total_weight": total}])
        assert windows_by_run(tmp_path, "weight_cause, weight_factors") == {
            str(total): [(factors[0] if factors else "right" if total == 1.0019 else "unexplained", factors)]
            for total, factors in cases.items()
        }

    def test_all_factors_that_fit_are_listed_and_the_nearest_is_the_cause(self, tmp_path: Path) -> None:
        assert self.causes(tmp_path, [{"total_weight": 0.5}], accumulation_steps=2) == ["1/G"]
        assert windows(self.run, "weight_factors, weight_factor") == [(["1/G", "1/W"], 0.5)]

    def test_a_factor_must_fit_better_than_1(self, tmp_path: Path) -> None:
        """In 16 bit 1.015 is wrong; G = 1 explains nothing of it."""
        update = {"total_weight": 1.011, "weight_dtype": "bfloat16"}
        assert self.causes(tmp_path, [update], accumulation_steps=1) == ["unexplained"]

    def test_ranks_that_are_not_the_divisor(self, tmp_path: Path) -> None:
        updates = [{"total_weight": total} for total in (2.0, 0.5, 8.0)]
        assert self.causes(tmp_path, updates, gradient_divisor=1.0) == ["R", "1/R", "G*R"]

    def test_context_and_sequence_sizes(self, tmp_path: Path) -> None:
        on = {rank: {"context_rank": rank % 3, "data_parallel_rank": rank // 3} for rank in range(6)}
        declared: dict[str, Any] = {"data_parallel_size": 2, "context_size": 3, "gradient_divisor": 6.0}
        updates = [{"total_weight": 3.0}, {"total_weight": 1 / 3}]
        assert self.causes(tmp_path, updates, ranks=6, on=on, **declared) == ["cp", "1/cp"]

    TAIL: tuple[Record, ...] = ({}, {"microbatches": 1, "total_weight": 0.25})

    def test_a_tail(self, tmp_path: Path) -> None:
        assert self.causes(tmp_path, self.TAIL) == ["right", "tail"]

    def test_what_is_a_tail_and_what_is_not(self, tmp_path: Path) -> None:
        cases: dict[str, tuple[dict[str, Any], float, str]] = {
            "divided by G": ({}, 0.25, "tail"),
            "divided by m": ({}, 1.0, "right"),
            "a coefficient that all windows share": ({"total_weight": 0.3}, 0.3, "unexplained"),
            "the share of a coefficient": ({"total_weight": 0.3}, 0.075, "tail"),
            "a fault that all windows share": ({"total_weight": 0.5}, 0.5, "1/W"),
            "nothing was divided, by ranks": ({"total_weight": 8.0}, 2.0, "W"),
            "after a skip": ({"skipped": True}, 0.25, "tail"),
            "sums": ({"total_weight": 932.0}, 206.0 + 10.0, "unexplained"),
            "sums over the ranks' mean": ({"total_weight": 466.0}, 108.0, "unexplained"),
            "nearer to 1": ({}, 0.9, "unexplained"),
            "after a short window": ({"microbatches": 3, "total_weight": 0.3}, 0.25, "tail"),
            "after an unknown window": ({"loss_weight": None}, 0.25, "tail"),
        }
        for case, (before, tail, _) in cases.items():
            short = {"microbatches": 1, "valid_tokens": [108.0], "total_weight": tail}
            write_run(tmp_path / case, [before, short])
        found = windows_by_run(tmp_path, "weight_cause")
        assert {case: rows[-1] for case, rows in found.items()} == {
            case: (cause,) for case, (_, _, cause) in cases.items()
        }

    def test_nothing_divided_in_a_tail(self, tmp_path: Path) -> None:
        updates = [{"total_weight": 4.0}, {"microbatches": 3, "total_weight": 3.0}]
        assert self.causes(tmp_path, updates) == ["G", "m"]

    def test_the_last_full_window_is_the_measure_over_a_skip(self, tmp_path: Path) -> None:
        updates: list[Record] = [
            {"total_weight": 0.3},
            {"skipped": True},
            {"microbatches": 1, "total_weight": 0.3},
        ]
        assert self.causes(tmp_path, updates) == ["unexplained", None, "unexplained"]

    def test_windows_that_lost_micro_steps_are_no_tails(self, tmp_path: Path) -> None:
        updates: list[Record] = [{}, {"microbatches": 1, "discarded_microbatches": 3, "total_weight": 0.25}]
        assert self.causes(tmp_path, updates) == ["right", "1/G"]

    @pytest.mark.parametrize(("total", "cause"), [(0.2502, "tail"), (0.3, "unexplained")])
    def test_where_weights_differ_a_tail_must_be_exact(
        self, tmp_path: Path, total: float, cause: str
    ) -> None:
        updates = [dict(update) | {"weight_uniform": None} for update in self.TAIL]
        updates[0]["weight_uniform"] = [False] * 4
        updates[1] |= {"weight_uniform": [False], "total_weight": total}
        assert self.causes(tmp_path, updates) == ["right", cause]

    def test_a_factor_that_few_wrong_windows_meet_is_chance(self, tmp_path: Path) -> None:
        """A total that moves with the data passes by any number now and then."""
        totals = [0.25, 0.29, 0.34, 0.41]
        updates: list[Record] = [{"total_weight": total} for total in totals]
        assert self.causes(tmp_path, updates) == ["unexplained"] * 4
        assert column(self.run, "weight_factors") == [[]] * 4
        assert self.causes(tmp_path / "half", updates[:2])[0] == "1/G"

    @pytest.mark.parametrize(
        ("total", "cause"), [(0.1502, "tail"), (0.1575, "unexplained"), (0.19, "unexplained")]
    )
    def test_where_whole_windows_vary_a_tail_must_be_exact(
        self, tmp_path: Path, total: float, cause: str
    ) -> None:
        totals = [0.5, 0.7, 0.6]
        updates: list[Record] = [{"total_weight": whole} for whole in totals]
        updates.append({"microbatches": 1, "total_weight": total})
        assert self.causes(tmp_path, updates)[-1] == cause

    def test_a_share_that_few_short_windows_have_is_chance(self, tmp_path: Path) -> None:
        shares = [0.25, 0.66, 0.7, 0.8]
        updates: list[Record] = [{}, *({"microbatches": 1, "total_weight": share} for share in shares)]
        assert self.causes(tmp_path, updates)[1] != "tail"

    def test_an_accumulation_that_is_not_known_has_no_tail(self, tmp_path: Path) -> None:
        updates = [{"microbatches": m, "total_weight": 1.0 if m == 4 else 0.5} for m in (4, 2, 4, 2)]
        assert self.causes(tmp_path, updates, accumulation_steps=None) == ["right", "1/W", "right", "1/W"]


class TestUnscored:
    """N/(N+x): positions without loss in the denominator."""

    def updates(self, kind: str, count: int = 5, **fields: Any) -> list[dict[str, Any]]:
        """Windows whose denominators count x too many; x differs from window to window."""
        updates = []
        for place in range(count):
            sums = {
                name: [10 * (place + 7 * at) + 200 + step for step in range(4)]
                for at, name in enumerate(("input_positions", "attended_positions", "masked_positions"))
            }
            sums["samples"] = [3 + place] * 4
            n = 932.0
            x = 2.0 * sum(sums[kind]) - (n if kind in ("input_positions", "attended_positions") else 0.0)
            updates.append(sums | {"total_weight": n / (n + x)} | fields)
        return updates

    @pytest.mark.parametrize("kind", ["samples", "input_positions", "attended_positions", "masked_positions"])
    def test_each_kind_is_told(self, tmp_path: Path, kind: str) -> None:
        run = write_run(tmp_path / "run", self.updates(kind))
        found = windows(run, "weight_cause, unscored_kind, unscored_positions, total_weight")
        for cause, named, x, total in found:
            assert (cause, named) == ("N/(N+x)", kind)
            assert 932.0 / (932.0 + x) == pytest.approx(total)

    def test_samples_that_are_masked_whole_come_before_others(self, tmp_path: Path) -> None:
        """It may be policy, and where nothing else is masked both readings are one."""
        masked = {
            "input_positions": [250] * 4,
            "masked_positions": [134, 134, 133, 133],
            "total_weight": 932 / 2000,
        }
        run = write_run(tmp_path / "run", [by_rank(masked, masked) | masked])
        assert windows(run, "unscored_kind, unscored_positions") == [("masked_positions", 1068.0)]

    def test_a_coefficient_that_meets_one_by_chance_is_none(self, tmp_path: Path) -> None:
        updates = self.updates("input_positions", 10)
        for update in updates[1:]:
            update["total_weight"] = updates[0]["total_weight"]
        run = write_run(tmp_path / "run", updates)
        assert windows(run, "DISTINCT weight_cause, unscored_kind, unscored_positions") == [
            ("unexplained", None, None)
        ]

    def test_it_is_told_before_a_tail(self, tmp_path: Path) -> None:
        """The share of a short window may look like one."""
        updates = self.updates("input_positions")
        updates[-1] |= {"microbatches": 1, "valid_tokens": [466.0]}
        for name in ("samples", "input_positions", "attended_positions", "masked_positions"):
            updates[-1][name] = [sum(updates[-1][name])]
        assert column(write_run(tmp_path / "run", updates), "weight_cause") == ["N/(N+x)"] * 5

    def test_a_lone_tail_stays_a_tail(self, tmp_path: Path) -> None:
        """Half of the positions have loss, and half of the micro-steps are there."""
        tail = {
            "microbatches": 2,
            "valid_tokens": [100.0, 100.0],
            "input_positions": [200, 200],
            "total_weight": 0.5,
        }
        run = write_run(tmp_path / "run", [{}, tail])
        assert windows(run, "weight_cause, unscored_kind") == [("right", None), ("tail", None)]

    def test_weights_that_differ_have_none(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", self.updates("input_positions", weight_uniform=[False] * 4))
        assert windows(run, "DISTINCT weight_cause, unscored_kind") == [("unexplained", None)]


class TestWindows:
    def test_applied_over_ranks(self, tmp_path: Path) -> None:
        """True where all applied, false where all skipped, unknown where they differ or one is silent."""
        states = [(False, False), (True, True), (True, False), (None, False), (None, True), (None, None)]
        updates = [by_rank(*({"optimizer_step_skipped": state} for state in pair)) for pair in states]
        found = windows(write_run(tmp_path / "run", updates), "applied, applied_ranks, skipped_ranks")
        assert found == [(True, 2, 0), (False, 0, 2), (None, 1, 1), (None, 1, 0), (None, 0, 1), (None, 0, 0)]

    def test_norms_and_weights_of_skipped_attempts_are_not_judged(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"skipped": True}, by_rank({"optimizer_step_skipped": True})])
        columns = (
            "grad_norm_min, grad_norm_max, loss_weight, loss_weight_sq IS NULL, equivalent_batch IS NULL, "
            "valid_tokens"
        )
        assert windows(run, columns) == [
            (0.5, 0.5, pytest.approx(2.0), False, False, 932.0),
            (None, None, None, True, True, 932.0),
            (0.5, 0.5, pytest.approx(2.0), False, False, 932.0),
        ]

    def test_norms_of_parts_are_joined_where_all_are_known(self, tmp_path: Path) -> None:
        """Gradients can be parted over ranks that hold the same parameters: so the optimizer's state is."""
        parts = {"grad_norm_after_scope": "shard", "grad_norm_after_clip": 0.3}
        updates = [
            by_rank({"grad_norm_after_clip": 0.7}),
            by_rank(parts, parts | {"grad_norm_after_clip": 0.4}),
            by_rank(parts, parts | {"grad_norm_after_clip": None}),
        ]
        assert windows(write_run(tmp_path / "run", updates), "grad_norm_min, grad_norm_max") == [
            (0.5, 0.7),
            (pytest.approx(0.5), pytest.approx(0.5)),
            (None, None),
        ]

    def test_ranks_that_are_missing(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"on": {1: None, 2: None}}], ranks=4)
        columns = "ranks, ranks_missing, complete, token_ranks, valid_tokens IS NULL"
        assert windows(run, columns) == [(4, [], True, 4, False), (2, [1, 2], False, 4, True)]

    def test_accumulation_is_inferred_where_nine_in_ten_windows_agree(self, tmp_path: Path) -> None:
        counts = [4] * 9 + [2]
        run = write_run(tmp_path / "run", [{"microbatches": m} for m in counts], accumulation_steps=None)
        assert set(windows(run, "accumulation_steps, accumulation_inferred")) == {(4, True)}
        run = write_run(tmp_path / "few", [{"microbatches": m} for m in counts[2:]], accumulation_steps=None)
        assert set(windows(run, "accumulation_steps, accumulation_inferred")) == {(None, False)}

    def test_accumulation_may_be_declared_later_and_change(self, tmp_path: Path) -> None:
        updates = [{"accumulation_steps": steps, "microbatches": 4} for steps in (None, 4, 8)]
        run = write_run(tmp_path / "run", updates, accumulation_steps=None)
        assert windows(run, "accumulation_steps, accumulation_inferred") == [
            (4, True),
            (4, False),
            (8, False),
        ]
        assert column(
            write_run(tmp_path / "run2", updates[:1], accumulation_steps=2), "accumulation_steps"
        ) == [2]

    def test_the_window_before(self, tmp_path: Path) -> None:
        updates: list[Record] = [{}, {"microbatches": 2}, {"skipped": True}, {}, {"attempt_id": 9}]
        columns = (
            "previous_microbatches, previous_accumulation_steps, previous_full_applied, "
            "previous_total_weight IS NULL"
        )
        assert windows(write_run(tmp_path / "run", updates), columns) == [
            (None, None, None, True),
            (4, 4, True, False),
            (2, 4, False, False),
            (4, 4, False, True),
            (None, None, None, True),
        ]

    def test_optimizers_and_launches_have_windows_of_their_own(self, tmp_path: Path) -> None:
        updates = [
            {"optimizer": o, "attempt_id": a, "microbatches": m}
            for a, o, m in ((1, 0, 4), (1, 1, 2), (2, 0, 4), (2, 1, 2))
        ]
        run = write_run(tmp_path / "run", updates, accumulation_steps=None)
        assert windows(run, "optimizer, attempt_id, accumulation_steps, previous_microbatches") == [
            (0, 1, 4, None), (0, 2, 4, 4), (1, 1, 2, None), (1, 2, 2, 2),
        ]  # fmt: skip

    def test_the_end_of_the_data_reaches_this_window_and_the_next(self, tmp_path: Path) -> None:
        marks = [{"kind": "end_of_data", "attempt_id": 2, "rank": 1}, {"kind": "eval", "attempt_id": 5}]
        run = write_run(tmp_path / "run", 6, marks=marks)
        assert column(run, "data_ended") == [False, False, True, True, False, False]
        words = [{}, {"events": "ZFB|FBFBFBO"}, {}, {}]
        assert column(write_run(tmp_path / "words", words), "data_ended") == [False, True, True, False]

    def test_an_end_of_data_may_belong_to_one_optimizer(self, tmp_path: Path) -> None:
        updates = [{"optimizer": o, "attempt_id": a} for a in (1, 2) for o in (0, 1)]
        run = write_run(
            tmp_path / "run", updates, marks=[{"kind": "epoch_end", "attempt_id": 1, "optimizer": 1}]
        )
        assert windows(run, "optimizer, attempt_id, data_ended") == [
            (0, 1, False), (0, 2, False), (1, 1, False), (1, 2, True),
        ]  # fmt: skip

    def test_epochs(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"epoch": epoch} for epoch in (1, 1, 2, None, 2)])
        assert windows(run, "epoch_changed, data_watched") == [
            (None, True), (False, True), (True, True), (None, True), (None, True),
        ]  # fmt: skip
        assert column(write_run(tmp_path / "blind", [{"epoch": None}]), "data_watched") == [False]

    def test_reported_values_and_rates(self, tmp_path: Path) -> None:
        update = by_rank(
            {"learning_rate": 0.1, "reported_loss": 3.0, "scheduler_step": 4}, {"learning_rate": 0.2}
        )
        columns = (
            "learning_rate_min, learning_rate_max, reported_loss, scheduler_step_min, scheduler_step_max"
        )
        assert windows(write_run(tmp_path / "run", [update]), columns) == [(0.1, 0.2, 3.0, 1, 4)]


class TestReplicas:
    """Digests and probes are compared among ranks that hold the same parameters."""

    def test_digests(self, tmp_path: Path) -> None:
        pairs = [("a", "a"), ("a", "b"), ("a", None), (None, None)]
        updates = [by_rank(*({"param_digest": digest} for digest in pair)) for pair in pairs]
        assert column(write_run(tmp_path / "run", updates), "param_digests") == [1, 2, None, None]

    @pytest.mark.parametrize("axis", ["shard", "tensor", "pipeline"])
    def test_other_parameters_are_not_compared(self, tmp_path: Path, axis: str) -> None:
        update = by_rank(
            *({"param_digest": str(rank // 2), "probe_gradient": [float(rank // 2)]} for rank in range(4))
        )
        on = {rank: {f"{axis}_rank": rank // 2} for rank in range(4)}
        declared: Record = {f"{axis}_size": 2}
        run = write_run(tmp_path / "run", [update], ranks=4, on=on, **declared)
        assert windows(run, "param_digests, probe_spread") == [(1, 0.0)]

    def test_probes(self, tmp_path: Path) -> None:
        cases: list[tuple[Sequence[list[Any] | None], float | None]] = [
            (([1.0, -4.0], [1.0, -4.0], [1.0, -4.0]), 0.0),
            (([1.0, -4.0], [1.0, -4.0], [1.4, -4.0]), 0.1),
            (([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]), 0.0),
            (([1.0, 4.0], None, [1.0, 5.0]), 0.2),
            (([1.0, 4.0], [1.0], [2.0]), 0.5),
            (([1.0, None], [1.0, 7.0], [1.0, 7.0]), 0.0),
            (([1.0, float("inf")], [1.0, float("inf")], [1.0, 7.0]), 0.0),
            (([1.0], None, None), None),
            (([], [], []), None),
        ]
        updates = [by_rank(*({"probe_gradient": values} for values in slices)) for slices, _ in cases]
        found = column(write_run(tmp_path / "run", updates, ranks=3), "probe_spread")
        assert found == [spread if spread is None else pytest.approx(spread) for _, spread in cases]

    def test_slices_of_different_parameters_are_not_compared(self, tmp_path: Path) -> None:
        update = by_rank(
            {"probe_parameter": "a", "probe_gradient": [1.0]},
            {"probe_parameter": "b", "probe_gradient": [2.0]},
        )
        assert column(write_run(tmp_path / "run", [update]), "probe_spread") == [None]
