"""Rules ACC7xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, faults_by_run, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

SCALE = 65536.0
RIGHT = "ZFBFBFBFBUCOGS"


def scaled(
    word: str | None = RIGHT, *scales: float | None, scale: float | None = SCALE, **more: Any
) -> dict[str, Any]:
    """An attempt under a scaler; the loss scale of each micro-step where they are not all the scaler's."""
    return {
        "events": word,
        "loss_scale": list(scales) or [scale] * 4,
        "grad_scale": scale,
        "grad_scale_after": scale,
        "probe_unscale": None if word is None or scale is None or "U" not in word else 1 / scale,
        "skipped": word is not None and "X" in word,
    } | more


def sums(lowest: float, highest: float, least_tokens: float | None = 100.0) -> dict[str, Any]:
    """What stands in place of the lists where only sums are recorded."""
    names = (
        "valid_tokens",
        "loss_weight",
        "loss_weight_sq",
        "weight_uniform",
        "loss",
        "loss_scale",
        "samples",
    )
    positions = ("input_positions", "attended_positions", "masked_positions")
    lists = dict.fromkeys((*names, *positions))
    known = {"loss_scale_min": lowest, "loss_scale_max": highest, "valid_tokens_min": least_tokens}
    return {**lists, "microbatches": 4, "window_sums": known}


def one_rank(folder: Path, *updates: Mapping[str, Any], **run_fields: Any) -> Path:
    return write_run(folder / "run", updates, 1, **run_fields)


def by_word(code: str, folder: Path, words: Sequence[str], **more: Any) -> dict[str, bool | None]:
    """The verdict on each word; each is an attempt of an optimizer of its own."""
    updates = [scaled(word, **more) | {"optimizer": place} for place, word in enumerate(words)]
    return {words[row.optimizer or 0]: row.fault for row in judge(code, one_rank(folder, *updates))}


class TestScaleChangedInsideWindow:
    CODE = "ACC701"

    def test_two_scales_in_one_window_are_found(self, tmp_path: Path) -> None:
        halved = scaled(RIGHT, SCALE, SCALE, SCALE / 2, SCALE / 2)
        row = the_fault(self.CODE, one_rank(tmp_path, scaled(), halved))
        assert (row.attempt, row.rank, row.severity, row.observed) == (2, 0, "error", 2.0)
        assert row.message == (
            "loss scales of 32768 to 65536 in one window of 4 micro-steps: "
            "divided by one number, some count 2 times as much as others"
        )

    def test_sums_are_enough(self, tmp_path: Path) -> None:
        updates = [scaled(**sums(SCALE / 2, SCALE)), scaled(**sums(SCALE, SCALE))]
        assert faults(self.CODE, one_rank(tmp_path, *updates)) == [True, False]

    def test_a_scale_that_changes_between_windows_passes(self, tmp_path: Path) -> None:
        """First skips, a growth, hysteresis, and a scaler of each optimizer's own."""
        updates = [
            scaled("ZFBFBFBFBUXG", grad_scale_after=SCALE / 2),
            scaled(scale=SCALE / 2, grad_scale_after=SCALE),
            scaled(),
            scaled("ZFBFBFBFBUXG"),
            scaled("ZFBFBFBFBUXG", grad_scale_after=SCALE / 2),
            scaled(scale=1024.0, optimizer=1),
        ]
        assert set(faults(self.CODE, one_rank(tmp_path, *updates))) == {False}

    def test_micro_steps_without_tokens_may_have_any_scale(self, tmp_path: Path) -> None:
        empty = scaled(RIGHT, SCALE, SCALE, 1024.0, SCALE, valid_tokens=[10.0, 20.0, 0.0, 5.0])
        assert faults(self.CODE, one_rank(tmp_path, empty)) == [False]

    def test_without_a_scale_nothing_is_in_scope(self, tmp_path: Path) -> None:
        skipped = scaled("ZFBFBFBFBUXG", SCALE, SCALE, SCALE / 2, SCALE / 2)
        single = scaled("ZFBUOG", SCALE, microbatches=1)
        run = one_rank(tmp_path, {}, sums(1.0, 1.0), single, skipped)
        assert judge(self.CODE, run) == []
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no loss of a window of several micro-steps was scaled"

    def test_an_unscaled_micro_step_is_told_as_such(self, tmp_path: Path) -> None:
        run = one_rank(tmp_path, scaled(RIGHT, SCALE, SCALE, SCALE, 1.0))
        verdicts = {one.code: one for one in check_paths([run], select=["ACC7"]).runs[0].verdicts}
        assert verdicts["ACC706"].status == "failed"
        assert verdicts[self.CODE].reason == "a cause was found by ACC706"

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param({"loss_scale": None}, id="no scale recorded"),
            pytest.param(scaled(RIGHT, SCALE, None, SCALE, SCALE), id="one is not known"),
            pytest.param(scaled(**sums(SCALE / 2, SCALE, 0.0)), id="one may be empty"),
            pytest.param(scaled("ZFBUFBFBFBO", SCALE, 1024.0, SCALE, SCALE), id="unscaled half-way"),
            pytest.param(
                scaled(RIGHT, SCALE, SCALE, 1.0, SCALE, valid_tokens=[1.0, 1.0, None, 1.0]), id="loss unseen"
            ),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, one_rank(tmp_path, update)) == [None]


class TestUnscaleInsideWindow:
    CODE = "ACC702"

    def test_a_backward_after_the_unscale_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, one_rank(tmp_path, scaled(), scaled("ZFBUFBFBFBOGS")))
        assert (row.attempt, row.rank, row.severity, row.observed) == (2, 0, "error", SCALE)
        assert row.message == (
            "unscaled after 1 of 4 micro-steps: later ones count 65536 times as much as earlier ones"
        )

    def test_every_form_of_it_is_found(self, tmp_path: Path) -> None:
        words = ["ZFBUGFBUGFBUGFBUOG", "ZFFBUFFBOG", "ZBBBUBO", "ZFBUBO", "FBZFBFBUFBFBO"]
        assert by_word(self.CODE, tmp_path, words) == dict.fromkeys(words, True)

    def test_the_place_is_counted_in_micro_steps(self, tmp_path: Path) -> None:
        words = {"ZFFBFFBUFFBO": 2, "ZBBBUBO": 3, "ZFBBFBBUFBBO": 2}
        rows = judge(self.CODE, one_rank(tmp_path, *[scaled(word, microbatches=4) for word in words]))
        assert [row.message.split()[2] for row in rows] == [str(count) for count in words.values()]

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = [
            RIGHT,
            "ZFBFBFBFBUOGS",  # the scaler's own step unscales
            "ZFBUZFBFBFBFBUOGS",  # not finite, and cleared
            "ZFBFBUGZFBFBFBFBUCOGS",  # too large, cleared, the scaler updated
            "FBUoGZFBFBFBFBUOG",  # the partner of a GAN
            "FBFBFBFBUOG",  # never cleared: ACC203
        ]
        assert by_word(self.CODE, tmp_path, words) == dict.fromkeys(words, False)

    def test_a_scale_of_1_changes_nothing(self, tmp_path: Path) -> None:
        assert faults(self.CODE, one_rank(tmp_path, scaled("ZFBUFBFBFBOGS", scale=1.0))) == [False]

    def test_out_of_scope(self, tmp_path: Path) -> None:
        updates = [{}, scaled("ZFBFBFBFBOGS"), scaled("ZFBUFBFBFBXG")]
        run = one_rank(tmp_path, *updates)
        assert judge(self.CODE, run) == []
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no scaler unscaled gradients before a step"

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param(scaled(None), id="no word"),
            pytest.param(scaled("(ZFBUFB)O"), id="a closure"),
            pytest.param(scaled("ZFBUFBFBFBO", SCALE, 1.0, 1.0, 1.0), id="later ones carry no scale"),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, one_rank(tmp_path, update)) == [None]


class TestScalerOrder:
    CODE = "ACC703"

    def problems(self, folder: Path, *updates: Mapping[str, Any], **run_fields: Any) -> list[tuple[Any, ...]]:
        """Verdict and message of each row."""
        rows = judge(self.CODE, one_rank(folder, *updates, **run_fields))
        return [(row.fault, row.message if row.fault else None) for row in rows]

    def test_an_update_before_the_step_is_found(self, tmp_path: Path) -> None:
        words = ["ZFBFBFBFBUGO", "ZFBUGFBUGFBUGFBUOG", "ZFBGFBFBFBUOG", "ZFBFBFBFBUGUOG"]
        rows = judge(self.CODE, one_rank(tmp_path, *[scaled(word) for word in words]))
        assert {(row.fault, row.severity, row.message) for row in rows} == {
            (True, "error", "the scaler was updated before the step")
        }

    def test_gradients_unscaled_twice_are_found(self, tmp_path: Path) -> None:
        assert self.problems(tmp_path, scaled("ZFBFBFBFBUCUOGS")) == [
            (True, "the gradients were unscaled twice")
        ]

    def test_a_step_without_an_update_is_found(self, tmp_path: Path) -> None:
        """Not in the last window: the loop may have ended between step and update."""
        found = self.problems(tmp_path, scaled(), scaled("ZFBFBFBFBUO"), scaled(), scaled("ZFBFBFBFBUO"))
        missing = (True, "no update of the scaler followed this step, as it does others")
        assert found == [(False, None), missing, (False, None), (None, None)]

    def test_a_plain_step_of_scaled_gradients_is_found(self, tmp_path: Path) -> None:
        plain = scaled("ZFBFBFBFBO", SCALE, SCALE, SCALE, SCALE, scale=None, total_weight=SCALE)
        unweighed = plain | {"loss_weight": None}
        assert (
            self.problems(tmp_path, plain, unweighed)
            == [(True, "the loss was scaled by 65536, and the step took gradients that nothing unscaled")] * 2
        )

    def test_a_loss_that_missed_the_scaler_is_found(self, tmp_path: Path) -> None:
        bare = scaled(RIGHT, 1.0, 1.0, 1.0, 1.0)
        row = the_fault(self.CODE, one_rank(tmp_path, bare))
        assert (row.observed, row.expected) == (SCALE, 1.0)
        assert row.message == "the loss was scaled by 1, and the gradients were divided by 65536"

    def test_a_scale_that_no_loss_had_is_found_where_a_runtime_divides_by_it(self, tmp_path: Path) -> None:
        """A right total weight says that the loss did have it, and that the record missed it."""
        word, divided = "ZFBFBFBFBMCOGS", 1 / SCALE
        light = scaled(word, 1.0, 1.0, 1.0, 1.0, grad_rescale=divided)
        message = "the loss was scaled by 1, and the gradients were divided by 65536"
        assert self.problems(tmp_path / "light", light) == [(True, message)]
        right = light | {"total_weight": SCALE}
        assert self.problems(tmp_path / "right", right) == [(False, None)]

    def test_a_launch_that_shows_scales_needs_no_weights(self, tmp_path: Path) -> None:
        bare = scaled(RIGHT, 1.0, 1.0, 1.0, 1.0, loss_weight=None)
        assert faults(self.CODE, one_rank(tmp_path, scaled(), bare)) == [False, True]

    def test_an_update_between_two_optimizers_is_found(self, tmp_path: Path) -> None:
        """Both share a backward; the first's overflow halves the scale before the second unscales."""
        unweighed = {"loss_weight": [None] * 4, "loss_weight_sq": [None] * 4}  # what divided them is unclear
        halved = scaled("ZFBFBFBFBoUOG", *[SCALE] * 4, scale=SCALE / 2, optimizer=1) | unweighed
        fused = scaled("ZFBFBFBFBoOG", *[SCALE] * 4, scale=SCALE / 2, optimizer=2)
        message = "the loss was scaled by 65536, and the gradients were divided by 32768"
        assert self.problems(tmp_path, halved, fused) == [(True, message)] * 2

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = [
            RIGHT,
            "ZFBFBFBFBUOGS",  # the scaler's own step unscales
            "ZFBFBFBFBOGS",  # a fused step does
            "ZFBFBFBFBXGS",
            "ZFBFBFBFBUCXGS",
            "ZFBFBFBFBUCOSG",
            "ZFBFBUGZFBFBFBFBUCOGS",  # too large, cleared, the scaler updated
            "FBoGZFBFBFBFBUOG",  # the partner of a GAN, updated after its step
            "ZFBFBFBFBUOoG",  # one update for two optimizers
            "ZFBFBFBFBoUOG",
            "ZFBFBFBFBUCOGSE",
        ]
        assert by_word(self.CODE, tmp_path, words) == dict.fromkeys(words, False)

    def test_an_update_in_the_next_record_counts(self, tmp_path: Path) -> None:
        """A GAN with one scaler: the generator's backward opens the discriminator's next record."""
        words = ["ZFBUO", "FBoGZFBUO", "FBoGZFBUX", "FBoGZFBUO"]
        found = self.problems(tmp_path, *[scaled(word) for word in words])
        assert [fault for fault, _ in found] == [False, False, False, None]

    def test_a_loop_that_divides_by_itself_needs_no_step_of_the_scaler(self, tmp_path: Path) -> None:
        by_hand = scaled("ZFBFBFBFBMCO", *[SCALE] * 4, scale=None, grad_rescale=1 / SCALE)
        updates = [by_hand | {"total_weight": SCALE}, by_hand]  # weights as they were before the division
        assert [fault for fault, _ in self.problems(tmp_path, *updates)] == [False, None]

    def test_without_a_scaler_nothing_is_in_scope(self, tmp_path: Path) -> None:
        run = one_rank(tmp_path, {}, {"events": "ZFBFBFBFBMCO", "grad_rescale": 1 / 1024}, sums(1.0, 1.0))
        assert judge(self.CODE, run) == []
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no gradient scaler took part in a step"

    @pytest.mark.parametrize(
        "updates",
        [
            pytest.param([scaled(None)], id="no word"),
            pytest.param([scaled("(ZFBFB)OG")], id="a closure"),
            pytest.param([scaled("ZFBUO"), scaled("ZFBUO")], id="an update of the scaler is never seen"),
            pytest.param(
                [scaled("ZFBUO"), scaled(RIGHT, attempt_id=4)], id="the next attempt is not recorded"
            ),
            pytest.param([scaled(RIGHT, 1.0, 1.0, 1.0, 1.0, loss_weight=None)], id="no weights to tell"),
            pytest.param(
                [scaled(RIGHT, 1.0, 1.0, 1.0, 1.0, total_weight=SCALE)], id="the record missed the scale"
            ),
        ],
    )
    def test_unknown(self, tmp_path: Path, updates: list[dict[str, Any]]) -> None:
        assert faults(self.CODE, one_rank(tmp_path, *updates))[0] is None
        assert True not in faults(self.CODE, tmp_path / "run")


def training(
    attempts: int,
    *,
    fits: float = 4096.0,
    scale: float = SCALE,
    growth: int = 2000,
    hysteresis: int = 1,
    bad: Container[int] = (),
    floor: float = 0.0,
) -> list[dict[str, Any]]:
    """What a scaler makes of a run in which gradients overflow above a scale, and in some attempts anyway."""
    updates, good, patience = [], 0, hysteresis
    for attempt in range(1, attempts + 1):
        overflows = scale > fits or attempt in bad
        patience = patience - 1 if overflows else patience
        good = 0 if overflows else good + 1
        after = scale
        if overflows and patience < 1:
            after = max(scale / 2, floor)
        elif good == growth:
            after, good, patience = 2 * scale, 0, hysteresis
        word = "ZFBUXG" if overflows else "ZFBUOGS"
        updates.append(scaled(word, scale, scale=scale, grad_scale_after=after, microbatches=1))
        scale = after
    return updates


class TestSkipStorm:
    CODE = "ACC704"

    def test_a_scaler_at_work_passes(self, tmp_path: Path) -> None:
        cases = {
            "first skips": training(40),
            "many first skips": training(40, scale=2.0**32, fits=2.0**8),
            "hysteresis": training(40, hysteresis=2),
            "one after each growth, all along": training(300, growth=20),
            "growth and hysteresis": training(300, growth=20, hysteresis=3),
            "still settling": training(8, fits=1.0),
            "a bad batch now and then": training(200, bad=range(50, 201, 50)),
            "two bad batches at a scale of 1": training(60, scale=1.0, bad=(20, 21)),
            "bad batches, a fixed scale": training(300, fits=SCALE, floor=SCALE, bad=range(60, 301, 60)),
            "never skipped": training(20, fits=SCALE),
        }
        for case, honest in cases.items():
            write_run(tmp_path / case, honest, 1)
        assert faults_by_run(self.CODE, tmp_path) == {case: [False] for case in cases}

    def test_skips_at_the_floor_are_found(self, tmp_path: Path) -> None:
        """A layer returns NaN from attempt 11 on; 16 skips bring the scale to 1, and they go on."""
        updates = training(40, fits=SCALE, floor=1.0, bad=range(11, 41))
        row = the_fault(self.CODE, one_rank(tmp_path, *updates))
        assert (row.attempt, row.severity, row.observed) == (11, "warning", 30.0)
        assert row.message == (
            "30 of 40 attempts were skipped, up to 14 in a row with the loss scale at 1 or below, "
            "from attempt 11 on"
        )

    def test_a_scale_without_a_floor_is_found_below_1(self, tmp_path: Path) -> None:
        updates = training(19, fits=0.0)
        assert faults(self.CODE, one_rank(tmp_path / "yet", *updates[:18])) == [False]
        assert faults(self.CODE, one_rank(tmp_path / "now", *updates)) == [True]

    def test_a_scale_that_does_not_fall_is_found(self, tmp_path: Path) -> None:
        """The scaler is not told; with hysteresis some skips would be honest."""
        updates = training(30, fits=SCALE, floor=SCALE, bad=range(6, 11))
        row = the_fault(self.CODE, one_rank(tmp_path, *updates))
        assert row.attempt == 6
        assert row.message == (
            "5 of 30 attempts were skipped, up to 5 in a row while the loss scale stayed at 65536, "
            "from attempt 6 on"
        )
        four = training(30, fits=SCALE, floor=SCALE, bad=range(6, 10))
        assert faults(self.CODE, one_rank(tmp_path / "four", *four)) == [False]

    def test_many_skips_of_which_none_lowers_the_scale_are_found(self, tmp_path: Path) -> None:
        updates = training(60, fits=SCALE, floor=SCALE, bad=range(10, 61, 10))
        row = the_fault(self.CODE, one_rank(tmp_path, *updates))
        assert row.attempt == 10
        assert row.message == (
            "6 of 60 attempts were skipped, 6 of them without lowering the loss scale; it grew 0 times"
        )

    def test_a_scale_that_is_tried_again_all_the_time_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, one_rank(tmp_path, *training(60, growth=2, fits=SCALE)))
        assert row.attempt is None
        assert row.message == "20 of 60 attempts were skipped; the loss scale grew 20 times"

    def test_the_scale_of_the_next_attempt_tells_whether_it_fell(self, tmp_path: Path) -> None:
        """A GAN: the update falls into the next record, and so does the scale after it."""
        updates = training(12)
        for before, update in zip([None, *updates], updates, strict=False):
            update |= {"events": "FBoGZFBUX" if update["skipped"] else "FBoGZFBUO"}
            update |= {"grad_scale_after": update["grad_scale"] if before else None}
        assert faults(self.CODE, one_rank(tmp_path, *updates)) == [False]

    def test_a_skip_of_one_rank_counts(self, tmp_path: Path) -> None:
        updates = [{"on": {0: scaled("ZFBUOGS"), 1: scaled("ZFBUXG")}}] * 6
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [True]

    def test_attempts_that_were_not_recorded_are_no_streak(self, tmp_path: Path) -> None:
        skips = [scaled("ZFBUXG", attempt_id=1 + 10 * place) for place in range(4)]
        run = one_rank(tmp_path, *skips, recorded_every=10)
        assert faults(self.CODE, run) == [False]

    def test_without_a_scale_nothing_is_in_scope(self, tmp_path: Path) -> None:
        run = one_rank(tmp_path, *[{"skipped": True, "skip_evidence": "state_step"}] * 8)
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no loss scale took part in a step, and no log counted skipped steps"

    def test_skips_that_are_not_known_leave_it_open(self, tmp_path: Path) -> None:
        run = one_rank(tmp_path, *[scaled() | {"optimizer_step_skipped": None}] * 3)
        assert faults(self.CODE, run) == [None]


class TestScaledAndUnscaledMixed:
    CODE = "ACC706"

    def test_a_micro_step_without_the_scale_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, one_rank(tmp_path, scaled(), scaled(RIGHT, SCALE, SCALE, 1.0, 1.0)))
        assert (row.attempt, row.rank, row.severity, row.observed) == (2, 0, "error", 2.0)
        assert row.message == (
            "2 of 4 micro-steps went backward without the loss scale of 65536: "
            "divided by it like the others, they count 1.53e-05 of what they should"
        )

    def test_sums_are_enough(self, tmp_path: Path) -> None:
        updates = [scaled(**sums(1.0, SCALE)), scaled(**sums(SCALE, SCALE)), scaled(**sums(SCALE / 2, SCALE))]
        rows = judge(self.CODE, one_rank(tmp_path, *updates))
        assert [row.fault for row in rows] == [True, False, False]
        assert rows[0].message.startswith(
            "some of 4 micro-steps went backward without the loss scale of 65536"
        )

    def test_a_scale_below_1_is_a_scale(self, tmp_path: Path) -> None:
        assert faults(self.CODE, one_rank(tmp_path, scaled(RIGHT, 0.5, 0.5, 0.5, 1.0, scale=0.5))) == [True]

    def test_an_empty_micro_step_needs_no_scale(self, tmp_path: Path) -> None:
        """A backward of zero keeps ranks without data in step."""
        empty = scaled(RIGHT, SCALE, SCALE, SCALE, 1.0, valid_tokens=[1.0, 2.0, 3.0, 0.0])
        assert faults(self.CODE, one_rank(tmp_path, empty)) == [False]

    def test_a_scale_that_came_down_to_1_is_none_that_is_missing(self, tmp_path: Path) -> None:
        run = one_rank(tmp_path, scaled(RIGHT, 2.0, 2.0, 1.0, 1.0, scale=1.0))
        assert faults(self.CODE, run) == [False]
        assert faults("ACC701", run) == [True]

    def test_out_of_scope(self, tmp_path: Path) -> None:
        skipped = scaled("ZFBFBFBFBUXG", SCALE, SCALE, SCALE, 1.0)
        assert judge(self.CODE, one_rank(tmp_path, {}, scaled(scale=1.0), skipped, sums(1.0, 1.0))) == []

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param({"loss_scale": None}, id="no scale recorded"),
            pytest.param(scaled(RIGHT, SCALE, None, SCALE, SCALE), id="one is not known"),
            pytest.param(scaled(**sums(1.0, SCALE, 0.0)), id="one may be empty"),
            pytest.param(scaled("ZFBUFBFBFBO", SCALE, 1.0, 1.0, 1.0), id="unscaled half-way"),
            pytest.param(
                scaled(RIGHT, SCALE, SCALE, SCALE, 1.0, valid_tokens=[1.0, 1.0, 1.0, None]), id="loss unseen"
            ),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, one_rank(tmp_path, update)) == [None]


def test_a_healthy_scaled_run_passes(tmp_path: Path) -> None:
    updates = [
        scaled("ZfbfbfbFBUCXGS", grad_scale_after=SCALE / 2),
        *[scaled("ZfbfbfbFBUCOGS", scale=SCALE / 2)] * 3,
    ]
    (report,) = check_paths([write_run(tmp_path / "run", updates)], select=["ACC7"]).runs
    assert [verdict.code for verdict in report.verdicts] == ["ACC701", "ACC702", "ACC703", "ACC704", "ACC706"]
    assert {verdict.status for verdict in report.verdicts} == {"passed"}
