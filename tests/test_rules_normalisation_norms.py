"""ACC108: gradient norms that follow the tokens, where nothing recorded the weights."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.series import columns, each, verdicts_of, write_series

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC108"


def updates(
    norm: Callable[[float, int], float],
    *,
    count: int = 80,
    low: float = 500,
    high: float = 1500,
    noise: float = 0.05,
) -> list[dict[str, Any]]:
    """Updates of varying tokens, and a norm that follows from them, or does not."""
    scatter = random.Random(4)
    tokens = [float(round(scatter.uniform(low, high))) for _ in range(count)]
    norms = [norm(n, step) * math.exp(noise * scatter.gauss(0, 1)) for step, n in enumerate(tokens)]
    return columns(reported_tokens=tokens, grad_norm_before_clip=norms)


def test_a_sum_of_losses_is_found(tmp_path: Path) -> None:
    write_series(tmp_path, {"run": updates(lambda n, _: n / 1000)})
    [run] = check_paths([tmp_path], select=[CODE]).runs
    [verdict] = run.with_status("failed")
    assert verdict.finding is not None
    assert (verdict.severity, verdict.finding.count) == ("warning", 1)
    message = verdict.finding.message
    assert message.startswith("over 72 updates of 602 to 1400 tokens")
    assert (
        "the gradient norm grows as their number to the power 1.00: the logarithms correlate at 0.98"
        in message
    )


def test_what_does_not_follow_passes(tmp_path: Path) -> None:
    cases = {
        "a mean": updates(lambda *_: 2.0),
        "a mean of noise": updates(lambda n, _: 50 / math.sqrt(n)),
        "a root": updates(lambda n, _: math.sqrt(n), noise=0.2),
        "a wide scatter": updates(lambda n, _: n, noise=0.5),
        "a trend beside a ramp": columns(
            reported_tokens=[1000.0 * (1 + step // 10) for step in range(100)],
            grad_norm_before_clip=[1.0 + 0.1 * step + 0.05 * (step * 7 % 11) for step in range(100)],
        ),
        "a constant norm": updates(lambda *_: 2.0, noise=0),
        "one short tail": [
            *updates(lambda *_: 2.0),
            {"reported_tokens": 5.0, "grad_norm_before_clip": 0.01},
        ],
    }
    assert verdicts_of(CODE, write_series(tmp_path, cases)) == each(cases, False)


def test_what_proves_nothing_is_out_of_scope(tmp_path: Path) -> None:
    cases = {
        "few": updates(lambda n, _: n, count=45),
        "equal tokens": updates(lambda n, _: n, low=1000, high=1100),
        "norms of 0": updates(lambda *_: 0.0),
    }
    write_series(tmp_path, cases)
    write_run(tmp_path / "weighed", [{"grad_norm_after_clip": 1.0 + step % 7} for step in range(60)], 1)
    assert verdicts_of(CODE, tmp_path) == each([*cases, "weighed"])


def test_a_steady_growth_of_both_decides_nothing(tmp_path: Path) -> None:
    doubled = [2.0**step for step in range(60)]
    write_series(tmp_path, {"run": columns(reported_tokens=doubled, grad_norm_before_clip=doubled)})
    assert verdicts_of(CODE, tmp_path) == {"run": [None]}
