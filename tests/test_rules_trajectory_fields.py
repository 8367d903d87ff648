"""ACC903 and ACC904: batches that change, fields that cannot be what they say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import START, write_run
from tests.series import columns, each, faults_of, megatron_line, verdicts_of, write_jsonl, write_series

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


class TestBatchSizeChanged:
    CODE = "ACC903"

    def test_the_update_and_both_sizes_are_told(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": columns(reported_samples=[64.0] * 40 + [48.0] * 30)})
        [row] = faults_of(self.CODE, tmp_path)["run"]
        assert (row["attempt_id"], row["observed"], row["expected"]) == (41, 48.0, 64.0)
        assert (
            row["message"]
            == "from here on an update takes 48 samples instead of 64, in 30 records up to the end"
        )

    def test_changes_for_good_are_found(self, tmp_path: Path) -> None:
        scatter = random.Random(2)
        cases = {
            "samples": columns(reported_samples=[512.0] * 20 + [384.0] * 20),
            "tokens": columns(reported_tokens=[1e6] * 30 + [2e6] * 30),
            "tokens that scatter": columns(
                reported_tokens=[scatter.uniform(80, 120) * (1 if step < 50 else 4) for step in range(100)]
            ),
            "longer sequences": columns(
                reported_samples=[8.0] * 60, reported_tokens=[100.0] * 30 + [400.0] * 30
            ),
            "a tail between": columns(reported_samples=[64.0] * 39 + [3.0] + [32.0] * 40),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, True)

    def test_ramps_tails_and_scatter_are_none(self, tmp_path: Path) -> None:
        scatter = random.Random(2)
        ramp = [min(16.0 * (1 + step // 25), 128.0) for step in range(300)]
        cases = {
            "one size": columns(reported_samples=[64.0] * 60),
            "a ramp": columns(reported_samples=ramp),
            "the end of a ramp": columns(reported_samples=ramp[100:]),
            "there and back": columns(reported_samples=[64.0] * 30 + [32.0] * 30 + [64.0] * 30),
            "tails": columns(reported_samples=([64.0] * 9 + [10.0]) * 8),
            "a last tail": columns(reported_samples=[64.0] * 60 + [10.0]),
            "tokens at random": columns(reported_tokens=[scatter.lognormvariate(6, 1) for _ in range(200)]),
            "sorted by length": columns(reported_tokens=[100.0 + 10 * step for step in range(100)]),
            "just changed": columns(reported_samples=[64.0] * 60 + [32.0] * 10),
            "declared": columns(
                reported_samples=[64.0] * 30 + [128.0] * 30, accumulation_steps=[4] * 30 + [8] * 30
            ),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, False)

    def test_a_resume_on_other_ranks_is_named(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 24, 2)
        write_run(run, 24, 1, launch="bbbb", first_update=25, started_at=START + 1000)
        [row] = faults_of(self.CODE, run)["run"]
        assert (row["launch"], row["attempt_id"]) == (2, 1)
        assert row["message"] == (
            "from here on an update takes 16 samples instead of 32, in 24 records up to the end; "
            "launch 2 begins here"
        )

    def test_few_records_are_out_of_scope(self, tmp_path: Path) -> None:
        write_series(tmp_path, {"run": columns(reported_samples=[64.0] * 39)})
        [run] = check_paths([tmp_path], select=[self.CODE]).runs
        assert run.verdicts[0].reason == "fewer than 40 whole windows have a size"

    def test_megatron_s_batch_is_read_from_its_log(self, tmp_path: Path) -> None:
        sizes = [4] * 25 + [8] * 25
        log = tmp_path / "train.log"
        lines = [megatron_line(step, **{"global batch size": size}) for step, size in enumerate(sizes, 1)]
        log.write_text("".join(lines), encoding="utf-8")
        [rows] = faults_of(self.CODE, log).values()
        assert [(row["attempt_id"], row["observed"]) for row in rows] == [(26, 8.0)]


def moving(count: int = 100, digits: int = 6, seed: int = 7) -> list[float]:
    """A measure as logs print it."""
    scatter = random.Random(seed)
    return [round(scatter.uniform(1, 2), digits) for _ in range(count)]


class TestFrozenOrPlaceholderField:
    CODE = "ACC904"

    def test_the_field_and_since_when_are_told(self, tmp_path: Path) -> None:
        norms = [*moving(40), *[1.284759] * 30]
        write_series(
            tmp_path, {"run": columns(reported_loss=moving(70, seed=1), grad_norm_before_clip=norms)}
        )
        [row] = faults_of(self.CODE, tmp_path)["run"]
        assert (row["attempt_id"], row["severity"]) == (41, "warning")
        assert row["message"] == (
            "from here on the gradient norm is 1.284759 in 30 records on end, while 30 different values of "
            "the loss stand beside it"
        )

    def test_what_repeats_where_it_cannot_is_found(self, tmp_path: Path) -> None:
        loss = moving(seed=1)
        cases = {
            "a norm to its end": columns(
                reported_loss=loss, grad_norm_before_clip=moving(60) + [1.234567] * 40
            ),
            "a norm for a while": columns(
                reported_loss=loss, grad_norm_before_clip=moving(40) + [1.2346] * 20 + moving(40)
            ),
            "a norm all along": columns(reported_loss=loss, grad_norm_before_clip=[1.234567] * 100),
            "a loss": columns(reported_loss=moving(70) + [1.23456] * 30, grad_norm_before_clip=loss),
            "a negative scale": columns(grad_scale=[-1.0] * 3),
            "no tokens": columns(cumulative_train_tokens=[0.0] * 10),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == {
            "a norm to its end": [False, True],
            "a norm for a while": [False, True],
            "a norm all along": [False, True],
            "a loss": [False, True],
            "a negative scale": [True],
            "no tokens": [True],
        }

    def test_what_may_be_equal_is_none(self, tmp_path: Path) -> None:
        loss = moving(seed=1)
        cases: dict[str, list[dict[str, Any]]] = {
            "both move": columns(reported_loss=loss, grad_norm_before_clip=moving()),
            "rounded to 0.000": columns(reported_loss=loss, grad_norm_before_clip=[0.0] * 100),
            "few digits": columns(
                reported_loss=loss, grad_norm_before_clip=moving(digits=1)[:50] + [1.3] * 50
            ),
            "the norm after a clip": columns(reported_loss=loss, grad_norm_after_clip=[0.999999] * 100),
            "bf16": columns(reported_loss=loss, grad_norm_before_clip=[0.271484375] * 100),
            "rounded, and often equal": columns(
                reported_loss=loss,
                grad_norm_before_clip=[1.2345, 1.2345, 1.2346, 1.2346] * 18 + [1.2347] * 28,
            ),
            "a short repeat": columns(reported_loss=loss, grad_norm_before_clip=moving(81) + [1.234567] * 19),
            "nothing moves": columns(reported_loss=[1.5] * 100, grad_norm_before_clip=[1.234567] * 100),
            "a static scale": columns(grad_scale=[12.0] * 50),
            "a constant rate": columns(learning_rate=[1e-4] * 50, reported_loss=moving(50)),
            "first tokens": columns(cumulative_train_tokens=[0.0] + [1000.0] * 20),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases, False)

    def test_few_records_are_out_of_scope(self, tmp_path: Path) -> None:
        cases = {
            "tokens": columns(cumulative_train_tokens=[0.0] * 9),
            "losses": columns(reported_loss=[1.234567] * 19),
        }
        assert verdicts_of(self.CODE, write_series(tmp_path, cases)) == each(cases)

    def test_a_placeholder_is_a_note(self, tmp_path: Path) -> None:
        line = {"total_steps": 120, "epoch": 0.1, "percentage": 1.0, "throughput": "0.00", "total_tokens": 0}
        lines = [
            {"current_steps": step, "loss": loss, "lr": 1e-4, **line}
            for step, loss in enumerate(moving(12), 1)
        ]
        [run] = check_paths([write_jsonl(tmp_path / "trainer_log.jsonl", lines)], select=[self.CODE]).runs
        [verdict] = run.with_status("failed")
        assert verdict.finding is not None
        assert (verdict.severity, verdict.finding.examples[0].line) == ("note", 1)
        assert (
            verdict.finding.message == "the token count is 0 in 12 of 12 records: a placeholder, no measure"
        )
