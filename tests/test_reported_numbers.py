"""Fifteen public reports, made again so small that the numbers of each come out exactly.

Each case is held against its numbers twice: as the ledger has them, and as the finding has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import accumaudit
from tests.loops import read_records
from tests.processes import Pair
from tests.reported_loops import (
    fused_overflow,
    linear,
    resumed,
    scaled,
    smoothed,
    tail_of_lightning,
    tail_of_trainer,
    warmed_up,
)

pytestmark = pytest.mark.slow  # frameworks and pairs of processes train


@dataclass
class Seen:
    """A run as its ledger has it, and what is found in it."""

    updates: list[dict[str, Any]]
    """The records of all updates, by rank and time."""
    windows: list[dict[str, Any]]
    found: dict[str, dict[str, Any]]
    """The first row of each finding."""

    @property
    def totals(self) -> list[Any]:
        return [window["total_weight"] for window in self.windows]

    @property
    def gradients(self) -> list[Any]:
        """Of the first update, on each rank: whole, unscaled and not yet clipped."""
        return [update["probe_gradient"] for update in self.updates if update["attempt_id"] == 1]

    def field(self, name: str) -> list[Any]:
        return [update[name] for update in self.updates]

    def first(self, code: str) -> tuple[str, int | None, float | None]:
        """Severity, first attempt and what was observed there."""
        row = self.found[code]
        return row["severity"], row["attempt_id"], row["observed"]

    def silent(self) -> bool:
        return not [code for code, row in self.found.items() if row["severity"] != "note"]


def look(*folders: Path) -> list[Seen]:
    """Read and judge runs, together: many take no longer than one."""
    with accumaudit.Ledger.open(*folders) as ledger:
        windows, rows = list(ledger.windows), list(ledger.findings)
    return [
        _seen(
            folder,
            [window for window in windows if window["run_id"] == folder.name],
            [row for row in rows if row["run_id"] == folder.name],
        )
        for folder in folders
    ]


def _seen(folder: Path, windows: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Seen:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["code"], row)
    updates = [record for record in read_records(folder) if record["record"] == "update"]
    return Seen(sorted(updates, key=lambda update: (update["rank"], update["time"])), windows, found)


def about(value: Any) -> Any:
    """Equal but for rounding in 32 bit."""
    return pytest.approx(value, rel=1e-5, abs=1e-12)


def by_two(pair: Pair, folder: Path, **how: Any) -> list[Any]:
    """Train by two ranks; what each gives."""
    folder.mkdir()
    return pair.call("tests.reported_loops:linear", folder=str(folder), **how)


def test_1_a_tail_divided_by_the_full_count(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#19987: six batches at four a window."""
    tail_of_lightning(str(tmp_path))
    (seen,) = look(tmp_path / "run")
    assert seen.field("probe_gradient") == [[1.0], [0.5], [1.0], [0.5]]
    assert seen.field("microbatches") == [4, 2, 4, 2]
    assert seen.field("scheduler_step") == [1, 2, 3, 4]
    assert seen.totals == [1.0, 0.5, 1.0, 0.5]
    assert seen.first("ACC101") == ("error", 2, 0.5)
    assert seen.found.keys() == {"ACC101"}


def test_1_a_tail_divided_by_its_own_count(tmp_path: Path) -> None:
    """The same data under Trainer."""
    tail_of_trainer(str(tmp_path))
    (seen,) = look(tmp_path / "run")
    assert seen.field("probe_gradient") == [[1.0]] * 4
    assert seen.field("microbatches") == [4, 2, 4, 2]
    assert seen.totals == [1.0] * 4
    assert seen.silent()


ONE_AND_NINE = [[[3.0, 0.0]], [[0.0, 1.0]] * 9]
"""One token in a micro-step, nine in the other."""


def test_2_the_mean_of_means(tmp_path: Path) -> None:
    """meta-pytorch/torchtune#1878: a gradient of (1.5, 0.5) instead of (0.3, 0.9)."""
    moved = linear(str(tmp_path / "means"), [ONE_AND_NINE])
    assert moved == about([1.5, 0.5])
    (seen,) = look(tmp_path / "means")
    assert seen.gradients == [about([1.5, 0.5])]
    assert seen.field("grad_norm_after_clip")[0] == about(1.5811388)
    assert seen.totals[0] == about(1.0)
    assert (seen.windows[0]["distortion_min"], seen.windows[0]["distortion_max"]) == about((5 / 9, 5.0))
    assert seen.first("ACC102") == ("error", 1, 9.0)
    assert seen.found["ACC905"]["observed"] == about(0.36)


def test_2_one_denominator(tmp_path: Path) -> None:
    moved = linear(str(tmp_path / "sums"), [ONE_AND_NINE], reduction="sum", factors=[0.1])
    assert moved == about([0.3, 0.9])
    (seen,) = look(tmp_path / "sums")
    assert seen.field("grad_norm_after_clip")[0] == about(0.9486833)
    assert not seen.found


RANKS_OF_ONE_AND_NINE = [[[[3.0]]], [[[1.0]] * 9]]


@pytest.mark.parametrize(
    ("factors", "gradient", "total", "code", "observed"),
    [
        ([1, 1 / 9], 2.0, 1.0, "ACC103", 9.0),
        ([1 / 10, 1 / 10], 0.6, 0.5, "ACC104", 0.5),
        ([2 / 10, 2 / 10], 1.2, 1.0, None, None),
    ],
)
def test_3_and_4_denominators_of_ranks(
    factors: list[float],
    gradient: float,
    total: float,
    code: str | None,
    observed: float | None,
    tmp_path: Path,
    pair: Pair,
) -> None:
    """pytorch/torchtitan#1842, own counts: 2.0. meta-pytorch/torchtune#2172, averaged: 0.6. Right: 1.2."""
    how = {"reduction": "sum", "factors": factors}
    moved = by_two(pair, tmp_path / "run", micro_steps=RANKS_OF_ONE_AND_NINE, **how)
    assert moved == [about([gradient])] * 2
    (seen,) = look(tmp_path / "run")
    assert seen.gradients == [about([gradient])] * 2
    assert seen.totals == [about(total)] * 3
    if code is None:
        assert not seen.found
    else:
        assert seen.first(code) == ("error", 1, about(observed))


FOUR_ALIKE = [[[[0.26387]]] * 4]


def test_5_an_argument_accepted_and_not_used(tmp_path: Path) -> None:
    """MakazhanAlpamys/Soup#720: a norm of 1.05548 accumulated, and 0.26387 at once."""
    linear(str(tmp_path / "undivided"), FOUR_ALIKE, factors=[1.0])
    linear(str(tmp_path / "divided"), FOUR_ALIKE)
    wrong, right = look(tmp_path / "undivided", tmp_path / "divided")
    norms = [seen.field("grad_norm_after_clip")[0] for seen in (wrong, right)]
    assert norms == about([1.05548, 0.26387])
    assert wrong.totals == [4.0] * 3
    assert wrong.first("ACC104") == ("error", 1, 4.0)
    assert not right.found


def test_5_label_smoothing(tmp_path: Path) -> None:
    """huggingface/transformers#46731: smoothed losses are means again, four times too large."""
    smoothed(str(tmp_path / "means"), honest=False)
    smoothed(str(tmp_path / "sums"), honest=True)
    wrong, right = look(tmp_path / "means", tmp_path / "sums")
    norms = [seen.field("grad_norm_after_clip")[0] for seen in (wrong, right)]
    assert norms[0] / norms[1] == about(4.0)
    assert wrong.first("ACC104") == ("error", 1, about(4.0))
    assert right.totals == [about(1.0)] * 3
    assert right.silent()


def test_6_divided_twice(tmp_path: Path) -> None:
    """modelscope/ms-swift#10117: the weights and the logged loss are a quarter of what they should be."""
    moved = linear(str(tmp_path / "run"), [[[[1.0]]] * 4], factors=[1 / 16], logged=1.0)
    assert moved == [0.25]
    (seen,) = look(tmp_path / "run")
    assert seen.totals == [0.25] * 3
    assert seen.first("ACC104") == ("error", 1, 0.25)
    assert seen.field("loss")[1] == [-0.25] * 4
    assert seen.found.keys() == {"ACC104"}


def test_7_clipped_in_each_micro_step(tmp_path: Path) -> None:
    """huggingface/transformers#1563: norms of 2.0 and 2.236; (0.447, 0.894) and not (0.707, 0.707)."""
    rows = [[[[4.0, 0.0]], [[0.0, 4.0]]]]
    assert linear(str(tmp_path / "each"), rows, clipped=[0, 1]) == about([5**-0.5, 2 * 5**-0.5])
    assert linear(str(tmp_path / "once"), rows, clipped=[1]) == about([0.5**0.5] * 2)
    wrong, right = look(tmp_path / "each", tmp_path / "once")
    clips = [(clip["micro_step"], clip["norm"]) for clip in wrong.updates[0]["clips"]]
    assert clips == [(1, 2.0), (2, about(5**0.5))]
    assert wrong.totals == [1.0] * 3
    assert wrong.first("ACC401") == ("error", 1, about(0.5))
    assert [clip["norm"] for clip in right.updates[0]["clips"]] == [about(8**0.5)]
    assert not right.found


def test_8_clipped_before_unscaled(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#9330: a norm of 32,768, not 0.5; updates of 1 / 65,536."""
    assert scaled(str(tmp_path / "before"), honest=False) == about(2.0**-16)
    assert scaled(str(tmp_path / "after"), honest=True) == about(0.5)
    wrong, right = look(tmp_path / "before", tmp_path / "after")
    assert wrong.updates[0]["grad_scale"] == 65536.0
    assert wrong.updates[0]["clips"][0]["norm"] == 32768.0
    assert wrong.updates[0]["grad_norm_before_clip"] == 0.5
    assert wrong.updates[0]["grad_norm_after_clip"] == about(1.52587890625e-05)
    assert wrong.first("ACC402") == ("error", 1, about(2.0**-16))
    assert right.updates[0]["clips"][0]["norm"] == 0.5
    assert not right.found


RISING = [[[[1.0]], [[2.0]], [[3.0]], [[4.0]]], [[[4.0]], [[5.0]], [[6.0]], [[7.0]]]]
"""Two ranks whose windows have a mean of 2.5 and of 5.5, and of 4.0 together."""


@pytest.mark.parametrize(
    ("how", "gradients", "code", "notes"),
    [
        ({"reduced": [0]}, [2.875, 5.125], "ACC502", set()),
        ({"bypassed": True}, [2.5, 5.5], "ACC501", set()),
        ({}, [4.0, 4.0], None, set()),
        ({"reduced": [0, 1, 2, 3]}, [4.0, 4.0], None, {"ACC504"}),
    ],
)
def test_9_and_10_gradients_not_reduced(
    how: dict[str, Any],
    gradients: list[float],
    code: str | None,
    notes: set[str],
    tmp_path: Path,
    pair: Pair,
) -> None:
    """modelscope/FunASR#3472: 2.875 and 5.125. jingyaogong/minimind#853: 2.5 and 5.5. Right: 4.0."""
    assert by_two(pair, tmp_path / "run", micro_steps=RISING, **how) == [about([one]) for one in gradients]
    (seen,) = look(tmp_path / "run")
    assert seen.gradients == [[one] for one in gradients]
    digests = {update["param_digest"] for update in seen.updates if update["attempt_id"] == 1}
    assert len(digests) == len(set(gradients))
    if code is None:
        assert seen.silent()
        assert seen.found.keys() == notes
    else:
        assert seen.first(code)[:2] == ("error", 1)
        assert seen.found.keys() == {code}


def test_11_cleared_in_each_micro_step(tmp_path: Path) -> None:
    """bytetriper/RAE#67: of 1, 2, 3 and 4 the last alone is left, divided by four."""
    assert linear(str(tmp_path / "run"), RISING[:1], cleared=[0, 1, 2]) == [1.0]
    (seen,) = look(tmp_path / "run")
    assert seen.gradients == [[1.0]]
    assert seen.field("events") == ["ZFBZFBZFBZFBO"] * 3
    assert (seen.updates[0]["microbatches"], seen.updates[0]["discarded_microbatches"]) == (1, 3)
    assert seen.totals == [0.25] * 3
    assert seen.first("ACC202") == ("error", 1, 1.0)
    assert seen.found.keys() == {"ACC202"}


def test_12_the_schedule_counts_micro_steps(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#1476: four steps an update; a warm-up of 16 peaks at 4."""
    warmed_up(str(tmp_path / "micro"), honest=False)
    warmed_up(str(tmp_path / "update"), honest=True)
    wrong, right = look(tmp_path / "micro", tmp_path / "update")
    assert wrong.field("learning_rate")[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert wrong.field("scheduler_step")[:3] == [4, 8, 12]
    assert wrong.first("ACC301")[1] == 1
    assert right.field("learning_rate")[:3] == [1 / 16, 2 / 16, 3 / 16]
    assert right.silent()


def test_12_accelerate_steps_once_for_each_process(tmp_path: Path, pair: Pair) -> None:
    """huggingface/accelerate#2926: two steps an update on two processes, which is its contract."""
    pair.call("tests.runtimes.accelerate:healthy", folder=str(tmp_path))
    (seen,) = look(tmp_path / "run")
    assert [update["scheduler_step"] for update in seen.updates if update["rank"] == 0][:3] == [2, 4, 6]
    assert seen.silent()


def test_13_the_schedule_moves_on_a_skip(tmp_path: Path) -> None:
    """huggingface/accelerate#4242: a fused step is skipped, and neither its flag nor the schedule knows."""
    assert fused_overflow(str(tmp_path / "run")) == [False, False, False]
    (seen,) = look(tmp_path / "run")
    skipped = seen.updates[0]
    assert (skipped["grad_scale"], skipped["grad_scale_after"]) == (65536.0, 32768.0)
    assert skipped["optimizer_step_skipped"] is True
    assert skipped["probe_parameter_changed"] is False
    assert seen.field("learning_rate") == about([1.0, 0.9, 0.8])
    assert seen.first("ACC302") == ("warning", 1, 1.0)


@pytest.mark.parametrize(
    ("how", "rates", "last", "observed", "expected"),
    [
        ("restarted", [1e-3, 9.99753e-4], 4.37335e-4, 1e-3, 5.78217e-4),
        ("at", [5.78217e-4, 5.62173e-4], 0.0, 46.0, 45.0),
        ("rightly", [5.78217e-4, 5.62667e-4], 2.46720e-7, None, None),
    ],
)
def test_14_the_rate_breaks_at_a_resume(
    how: str, rates: list[float], last: float, observed: float | None, expected: float | None, tmp_path: Path
) -> None:
    """ultralytics/yolov5#292: 5.782e-4, then 1e-3. pytorch/pytorch#60265: 5.62173e-4 and not 5.62667e-4."""
    resumed(str(tmp_path / "run"), how)
    (seen,) = look(tmp_path / "run")
    second = seen.field("learning_rate")[45:]
    assert second[:2] == pytest.approx(rates, rel=1e-5)
    assert second[-1] == pytest.approx(last, rel=1e-4, abs=1e-9)
    if observed is None:
        assert seen.silent()
    else:
        assert seen.first("ACC306") == ("warning", 1, about(observed))
        assert seen.found["ACC306"]["expected"] == pytest.approx(expected, rel=1e-5)


def test_15_the_global_step_counts_optimizers(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#17958: 2, 4, 6 after three batches of two optimizers."""
    from tests.runtimes.lightning import manual

    manual(str(tmp_path), adversaries=True)
    (seen,) = look(tmp_path / "run")
    own = [update for update in seen.updates if update["optimizer"] == 0]
    assert [update["reported_global_step"] for update in own][:3] == [2, 4, 6]
    for optimizer in (0, 1):
        steps = [one["optimizer_update_id"] for one in seen.updates if one["optimizer"] == optimizer]
        assert steps[:3] == [1, 2, 3]
    assert seen.first("ACC804") == ("note", None, 2.0 * (len(own) - 1))
