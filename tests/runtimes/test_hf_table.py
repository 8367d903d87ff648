"""What one token weighs in an update that transformers.Trainer makes, in every way to give it a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import transformers

import accumaudit
from accumaudit.engine.findings import FAILED
from tests.processes import Pair
from tests.recorded import faults
from tests.runtimes import hf

pytestmark = [
    pytest.mark.slow,  # transformers takes seconds to import
    pytest.mark.skipif(int(transformers.__version__.partition(".")[0]) < 5, reason="measured on version 5"),
]

WINDOWS: Final = (3, 3, 2, 3, 3, 2)
"""Micro-steps of two epochs."""


@dataclass(frozen=True)
class Expected:
    """What a micro-step of a case weighs, and the totals that the runtime was seen to make."""

    weighs: str
    full: tuple[float, float] = (1.0, 1.0)
    """Total weight of a full window, on one process and on two."""
    tail: tuple[float, float] = (1.0, 1.0)
    codes: tuple[set[str], set[str]] = (set(), set())
    """Findings of warning and above."""
    source: str = "measured"
    ranks: tuple[int, ...] = (1, 2)


MEANS = {"ACC102"}
TABLE: Final = {
    "default": Expected("n/N"),
    "local counts": Expected("n/N of its rank", codes=(set(), {"ACC103"}), ranks=(2,)),
    "no keywords": Expected("1/m", codes=(MEANS, MEANS), ranks=(2,)),
    "keywords ignored": Expected("W", (3.0, 6.0), (2.0, 4.0), (MEANS, MEANS)),
    "func mean": Expected("W", (3.0, 6.0), (2.0, 4.0), (MEANS, MEANS)),
    "func sum": Expected("n/N", ranks=(2,)),
    "override mean": Expected("1", (3.0, 3.0), (2.0, 2.0), (MEANS, MEANS)),
    "override mean, scaled": Expected("1/m", codes=(MEANS, MEANS), ranks=(2,)),
    "smoothed": Expected("n/N", source="declared"),
    "smoothed, no keywords": Expected("1/m", codes=(MEANS, MEANS), source="declared", ranks=(1,)),
    "fused": Expected("n/N", source="model_loss"),
    "compiled": Expected("n/N", source="model_loss", ranks=(1,)),
    "bfloat16": Expected("n/N", ranks=(1,)),
    "checkpointed": Expected("n/N", ranks=(1,)),
    "own shift": Expected("n/(N+rows)", codes=({"ACC110"}, {"ACC110"})),
}


RUNS: Final = [(case, ranks) for case, expected in TABLE.items() for ranks in expected.ranks]


@dataclass(frozen=True)
class Ran:
    """A training that was recorded."""

    windows: list[dict[str, Any]]
    sources: set[str]
    findings: dict[str, Any]
    counts: list[list[int]]
    """Of each rank the labels of its micro-batches."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Any:
    """What each case is on one process and on two. The ledgers are read together: that takes longest."""
    root = tmp_path_factory.mktemp("runs")
    ends: dict[str, list[dict[str, Any]]] = {}
    others = product(("func mean, equal", "classifier", "no length"), (1, 2))
    for case, ranks in (*RUNS, *others):
        name = f"{case} on {ranks}"
        arguments: dict[str, Any] = {"case": case, "folder": str(root / name)}
        alone = ranks == 1
        ends[name] = [hf.train(**arguments)] if alone else pair.call(f"{hf.__name__}:train", **arguments)
        assert faults(root / name) == []
    with accumaudit.Ledger.open(root) as ledger:
        windows = list(ledger.sql("FROM windows ORDER BY attempt_id"))
        sources = list(ledger.sql("SELECT DISTINCT run_id, weight_source FROM updates"))
        reports = {report.run_id: report for report in ledger.check().runs}

    def found(case: str, ranks: int) -> Ran:
        name = f"{case} on {ranks}"
        failed = reports[name].with_status(FAILED)
        return Ran(
            [row for row in windows if row["run_id"] == name],
            {row["weight_source"] for row in sources if row["run_id"] == name},
            {verdict.code: verdict.finding for verdict in failed if verdict.severity != "note"},
            [end["counts"] for end in ends[name]],
        )

    return found


def windows_of(counts: Sequence[int]) -> Iterator[list[int]]:
    places = iter(counts)
    for length in WINDOWS:
        yield [next(places) for _ in range(length)]


@pytest.mark.parametrize(("case", "ranks"), RUNS)
def test_total_weight_and_distortion(case: str, ranks: int, run: Any) -> None:
    """The ledger has what follows from the batches, and the totals that the runtime was seen to make."""
    expected, ran = TABLE[case], run(case, ranks)
    by_rank = [list(windows_of(rank)) for rank in ran.counts]
    assert len(ran.windows) == len(WINDOWS)
    for place, window in enumerate(ran.windows):
        own = [rank[place] for rank in by_rank]
        weights = [weight_of(expected.weighs, each, own) for each in own]
        tokens = sum(map(sum, own))
        distortions = [
            weight / count * tokens / ranks
            for each, of_rank in zip(own, weights, strict=True)
            for count, weight in zip(each, of_rank, strict=True)
        ]
        assert window["valid_tokens"] == tokens
        assert window["total_weight"] == pytest.approx(sum(map(sum, weights)) / ranks, abs=1e-3)
        assert window["distortion_min"] == pytest.approx(min(distortions), rel=1e-3)
        assert window["distortion_max"] == pytest.approx(max(distortions), rel=1e-3)
        if case != "own shift":
            totals = expected.full if window["microbatches"] == hf.STEPS else expected.tail
            assert window["total_weight"] == pytest.approx(totals[ranks - 1], abs=1e-3)
    assert ran.sources == {expected.source}
    assert set(ran.findings) == expected.codes[ranks - 1]


def weight_of(weighs: str, own: Sequence[int], ranks: Sequence[Sequence[int]]) -> list[float]:
    """What each micro-step of a rank weighs before the ranks' gradients are averaged."""
    world, tokens = len(ranks), sum(map(sum, ranks))
    rows = hf.BATCH * sum(map(len, ranks))
    return [
        {
            "n/N": world * count / tokens,
            "n/N of its rank": count / sum(own),
            "n/(N+rows)": world * count / (tokens + rows),
            "1/m": 1 / len(own),
            "W": world,
            "1": 1.0,
        }[weighs]
        for count in own
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ["func mean, equal", "classifier"])
def test_a_mean_that_nothing_divides_is_named(case: str, ranks: int, run: Any) -> None:
    """Where all micro-batches have as many labels, the total alone is wrong.

    So it is with transformers' own models that take any keyword: Trainer leaves the division to them.
    """
    ran = run(case, ranks)
    assert set(ran.findings) == {"ACC104"}
    factor, total = ("G", 3.0) if ranks == 1 else ("G*W", 6.0)
    assert factor in ran.findings["ACC104"].message
    for window in ran.windows:
        assert window["weight_factors"] == [factor]
        assert window["total_weight"] == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_rest_of_data_without_a_length_leaks(ranks: int, run: Any) -> None:
    """The tail of an epoch is neither stepped nor cleared, and the next epoch's first window adds to it."""
    ran = run("no length", ranks)
    totals = [row["total_weight"] for row in ran.windows]
    assert totals == pytest.approx([1.0, 1.0, 2.0, 1.0, 2.0], abs=1e-3)
    assert [row["microbatches"] for row in ran.windows] == [3, 3, 5, 3, 5]
    assert set(ran.findings) == {"ACC206"}
    finding = ran.findings["ACC206"]
    assert (finding.count, [example.optimizer_update_id for example in finding.examples]) == (2, [3, 5])
    assert "2 of 5 micro-steps" in finding.message
    assert "weighs 2.000" in finding.message


def test_hooks_leave_the_parameters_alone(run: Any, pair: Pair, tmp_path: Path) -> None:
    """Bitwise: on one process and on two, with cross entropy, smoothed labels and a fused loss."""
    for case in ("default", "smoothed", "fused"):
        ends = [hf.train(case, str(tmp_path / case), hooks=hooks) for hooks in (True, False)]
        assert ends[0]["parameters"] == ends[1]["parameters"]
    function = f"{hf.__name__}:train"
    with_hooks, without = (
        pair.call(function, case="default", folder=str(tmp_path / "two"), hooks=hooks)
        for hooks in (True, False)
    )
    assert [end["parameters"] for end in with_hooks] == [end["parameters"] for end in without]


def test_weights_give_the_gradient(pair: Pair, tmp_path: Path) -> None:
    """The micro-steps' mean gradients, each times its weight, add up to the gradient that there was."""
    cases = ["default", "func sum", "smoothed", "fused", "keywords ignored"]
    function = f"{hf.__name__}:compare_gradients"
    distances = hf.compare_gradients(cases, str(tmp_path / "one"))
    for of_rank in pair.call(function, cases=cases, folder=str(tmp_path / "two")):
        distances += of_rank
    assert len(distances) == 3 * len(cases)
    assert max(distances) < 1e-5
