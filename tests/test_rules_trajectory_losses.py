"""ACC901 and ACC902: losses and norms that leave their history, and those that only seem to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.series import columns, each, faults_of, rows_of, verdicts_of, write_series

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

NAN = math.nan


def curve(count: int = 200, *, noise: float = 0.03, seed: int = 1) -> list[float]:
    """A loss that falls from 5 to 2."""
    scatter = random.Random(seed)
    return [2 + 3 * math.exp(-step / 25) + noise * scatter.gauss(0, 1) for step in range(count)]


def changed(start: int, change: Callable[[float, int], float], **more: Any) -> list[float]:
    """The curve, changed from one record on."""
    return [loss if step < start else change(loss, step - start) for step, loss in enumerate(curve(**more))]


def losses(values: list[float]) -> list[dict[str, Any]]:
    return columns(reported_loss=values)


class TestDivergenceOnset:
    CODE = "ACC901"

    def test_the_first_update_and_what_was_lost_are_told(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": losses(changed(120, lambda loss, _: loss + 3))})
        [row] = faults_of(self.CODE, tmp_path)["run"]
        assert (row["attempt_id"], row["rank"]) == (121, None)
        assert row["message"].startswith("from here on the loss stays above 4.9")
        assert "in 80 records up to the end: it had fallen from 4.49 to 2.02" in row["message"]
        report = check_paths([tmp_path], select=[self.CODE]).runs[0].with_status("failed")[0]
        assert (report.severity, report.finding and report.finding.examples[0].line) == ("warning", 122)

    def test_a_loss_that_is_hidden_is_told_as_it_is_logged(self, tmp_path: Path) -> None:
        hidden = columns(reported_loss=[3.0] * 10 + [0.0] * 6, grad_norm_before_clip=[1.0] * 10 + [NAN] * 6)
        cases = {"hidden": hidden, "not": losses([4.0, 3.0, *[NAN] * 6])}
        messages = {
            run_id: rows[0]["message"]
            for run_id, rows in faults_of(self.CODE, write_series(tmp_path, cases)).items()
        }
        norm, end = "gradient norm that is not finite", "in 6 records up to the end"
        assert messages == {
            "hidden": f"from here on the loss is logged as 0 beside a {norm}, {end}",
            "not": f"from here on the loss is not finite, {end}",
        }

    def test_what_diverges_is_found(self, tmp_path: Path) -> None:
        cases = {
            "a jump": losses(changed(100, lambda loss, _: loss + 3)),
            "a climb": losses(changed(100, lambda loss, since: loss + min(3.0, 0.3 * since))),
            "far above the start": losses(changed(100, lambda loss, _: 1000 * loss)),
            "falling from afar": losses(
                changed(100, lambda loss, since: loss + 4000 * math.exp(-since / 60))
            ),
            "a spike and its plateau": losses(changed(100, lambda loss, since: loss + 3 + 3 / (1 + since))),
            "after a steep fall": losses([max(0.5, 4 - step / 10) for step in range(90)] + [20.0] * 40),
            "not finite": losses(changed(100, lambda *_: NAN)),
            "not finite soon": losses([4.0, 3.0, *[NAN] * 5]),
            "hidden": columns(
                reported_loss=[3.0] * 10 + [0.0] * 6, grad_norm_before_clip=[1.0] * 10 + [NAN] * 6
            ),
            "norms and a worse loss": columns(
                reported_loss=changed(100, lambda loss, _: loss + 0.4),
                grad_norm_before_clip=[1.0] * 100 + [30.0] * 100,
            ),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, True)

    def test_what_comes_back_or_never_fell_is_none(self, tmp_path: Path) -> None:
        cases = {
            "nothing": losses(curve()),
            "a noisy micro-step's loss": losses(curve(noise=0.5)),
            "a steep fall": losses([max(0.5, 4 - step / 10) for step in range(130)]),
            "a spike": losses(changed(100, lambda loss, since: loss + (5 if since < 20 else 0))),
            "high at the end": losses(changed(180, lambda loss, _: loss + 5)),
            "coming back": losses(changed(100, lambda loss, since: loss + 4 * math.exp(-since / 60))),
            "a harder text": losses(changed(100, lambda loss, _: loss + 0.4)),
            "a slow rise": losses(changed(100, lambda loss, since: loss * (1 + 0.003 * since))),
            "early norms": columns(reported_loss=curve(), grad_norm_before_clip=[50.0] * 20 + [0.3] * 180),
            "higher norms and a better loss": columns(
                reported_loss=curve(), grad_norm_before_clip=[1.0] * 100 + [30.0] * 100
            ),
            "norms that are never finite": columns(reported_loss=curve(), grad_norm_before_clip=[NAN] * 200),
            "a log of rounded zeros": losses([0.0] * 200),
            "a generator's loss": losses([0.7 + 0.02 * step for step in range(200)]),
            "steps down": losses([(3.0, 2.1, 1.2, 0.6)[step // 50] for step in range(200)]),
            "few not finite": losses([*curve(), *[NAN] * 4]),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, False)

    def test_the_launches_of_a_run_are_one_history(self, tmp_path: Path) -> None:
        lost = changed(120, lambda loss, _: loss + 3, count=170)
        harder = changed(100, lambda loss, _: loss + 3)
        for name, values in {"lost soon after": lost, "nothing": curve(170), "a stage": harder}.items():
            write_run(
                tmp_path / name, [{"loss": [loss] * 4} for loss in values[:100]], peak_learning_rate=1e-3
            )
            write_run(
                tmp_path / name,
                [{"loss": [loss] * 4} for loss in values[100:]],
                launch="bbbb",
                first_update=101,
                resumed_from_update=100,
                optimizer_state_step_at_attach=100,
                scheduler_step_at_attach=100,
                started_at=1_700_100_000.0,
                peak_learning_rate=5e-4 if name == "a stage" else 1e-3,
            )
        found = rows_of(self.CODE, tmp_path)
        assert {name: [row["fault"] for row in rows] for name, rows in found.items()} == {
            "lost soon after": [True],
            "nothing": [False],
            "a stage": [False, False],
        }
        (row,) = found["lost soon after"]
        assert (row["launch"], row["attempt_id"]) == (2, 21)

    def test_few_records_are_out_of_scope(self, tmp_path: Path) -> None:
        cases: dict[str, list[dict[str, Any]]] = {
            "few": losses(changed(40, lambda loss, _: loss + 5, count=74)),
            "no loss": [{}] * 100,
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == {"few": [], "no loss": []}
        reasons = {
            run.run_id: run.verdicts[0].reason for run in check_paths([tmp_path], select=[self.CODE]).runs
        }
        assert reasons == {
            "few": "fewer than 75 updates of one stage have a loss",
            "no loss": "`loss` or `reported_loss` was never declared or reported",
        }

    def test_losses_of_both_signs_are_not_judged(self, tmp_path: Path) -> None:
        wander = random.Random(3)
        policy = [0.1 * wander.gauss(0, 1) for _ in range(200)]
        assert verdicts_of(self.CODE, write_series(tmp_path, {"policy": losses(policy)})) == {
            "policy": [None]
        }

    def test_rivals_are_not_judged(self, tmp_path: Path) -> None:
        """A discriminator's loss comes back to where it began when the generator learns."""
        lost = changed(100, lambda loss, _: loss + 3)
        both = [
            {"attempt_id": attempt, "optimizer": optimizer, "reported_loss": loss if optimizer else 9 - loss}
            for attempt, loss in enumerate(lost, 1)
            for optimizer in (0, 1)
        ]
        same = [{**update, "reported_loss": lost[int(update["attempt_id"]) - 1]} for update in both]
        found = verdicts_of(self.CODE, write_series(tmp_path, {"rivals": both, "one loss": same}))
        assert found == {"rivals": [None], "one loss": [True]}

    def test_measured_losses_come_before_reported_ones(self, tmp_path: Path) -> None:
        lost = changed(100, lambda loss, _: loss + 3, count=140)
        run = write_run(tmp_path / "run", [{"loss": [loss] * 4, "reported_loss": 1.0} for loss in lost], 1)
        assert [row["attempt_id"] for row in faults_of(self.CODE, run)["run"]] == [101]


class TestGradientSpike:
    CODE = "ACC902"

    def norms(
        self, *spikes: tuple[int, float], count: int = 100, spread: float = 0.2
    ) -> list[dict[str, Any]]:
        scatter = random.Random(5)
        values = [math.exp(spread * scatter.gauss(0, 1)) for _ in range(count)]
        for place, norm in spikes:
            values[place] = norm
        return columns(grad_norm_before_clip=values)

    def test_a_spike_is_told_with_its_history(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": self.norms((60, 40.0))})
        [row] = faults_of(self.CODE, tmp_path)["run"]
        assert (row["attempt_id"], row["observed"]) == (61, 40.0)
        assert row["message"].startswith("the gradient norm is 40, 4")
        assert " times the median of the 50 before it (" in row["message"]

    def test_what_stands_out_is_found(self, tmp_path: Path) -> None:
        cases = {
            "one": (self.norms((60, 12.0)), [61]),
            "two on end": (self.norms((60, 20.0), (61, 30.0)), [61, 62]),
            "a second, not as high": (self.norms((50, 40.0), (80, 20.0)), [51]),
            "soon after the first records": (self.norms((30, 40.0)), [31]),
        }
        found = faults_of(
            self.CODE, write_series(tmp_path, {name: case for name, (case, _) in cases.items()})
        )
        assert {name: [row["attempt_id"] for row in rows] for name, rows in found.items()} == {
            name: attempts for name, (_, attempts) in cases.items()
        }

    def test_what_does_not_is_none(self, tmp_path: Path) -> None:
        zeros = [{"grad_norm_before_clip": 0.0}] * 60
        cases = {
            "nothing": self.norms(),
            "not ten times": self.norms((60, 8.0)),
            "early": self.norms((5, 40.0), (20, 300.0)),
            "norms that scatter widely": self.norms((60, 60.0), spread=1.6),
            "another level": self.norms(*((place, 40.0) for place in range(60, 100))),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, False)
        other = write_series(tmp_path / "more", {"rounded": [*zeros, *self.norms()[:30], *zeros]})
        assert verdicts_of(self.CODE, other) == {"rounded": []}

    def test_a_declared_warm_up_is_history_alone(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": self.norms((60, 40.0))}, warmup_updates=80)
        assert [row["attempt_id"] for row in rows_of(self.CODE, tmp_path)["run"]] == list(range(81, 101))
        assert not faults_of(self.CODE, tmp_path)

    def test_at_the_end_nobody_knows(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": self.norms((98, 40.0))})
        assert verdicts_of(self.CODE, tmp_path) == {"run": [False, None]}
