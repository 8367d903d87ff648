"""The recorded weights are the true ones: they predict the gradient, and they add up to the known total."""

from __future__ import annotations

from itertools import accumulate
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from accumaudit.demo.faults import FAULTS
from accumaudit.demo.launching import scenario
from accumaudit.demo.variants import VARIANTS
from accumaudit.ledger.reader import read_ledger
from tests import truth
from tests.trainings import train

if TYPE_CHECKING:
    from tests.processes import Pair

NOT_PREDICTED = {
    "stale-gradients": "the gradient holds those of earlier windows",
    "update-without-sync": "the ranks' gradients were never added",
    "sync-on-wrong-micro-step": "the ranks' gradients were added in part",
    "gradient-disagreement": "noise was added",
    "rank-stopped-early": "the ranks have unequally many updates",
    "parameter-disagreement": "the ranks' models differ",
    "rate-disagreement": "the ranks' models differ",
    "preference-pairs": "its weights change sign, and are no mean of losses",
    "norm-tracks-tokens": "its loss is one that no hook sees, so its weights are unknown",
    "non-finite-skipped": "a micro-step of the window is left out",
    "resumed": "two launches write the ledger",
    "schedule-fast-forwarded": "two launches write the ledger",
    "one-backward": "one micro-step of the record holds all batches of the window",
    "each-batch-twice": "half of each gradient is taken at embeddings that were moved",
    "gradients-kept-elsewhere": "its gradients are set by hand, so its weights are unknown",
    "window-thrown-away": "two windows have no update",
    "clipped-by-hand": "its clip is part of the recorded weights",
    "loss-term-denominators": "a second term is in the gradient",
    "two-terms": "a second term is in the gradient",
    "non-finite-micro-batch-applied": "its gradients are not finite",
    "window-straddles-epochs": "its windows are made elsewhere",
    "gradients-not-reduced": "the ranks' gradients were never added",
    "skip-disagreement": "the ranks' models differ",
    "scale-disagreement": "each rank takes another scale out of the sum of the gradients",
    "optimizer-state-disagreement": "two launches write the ledger",
    "optimizer-in-backward": "its gradients are cleared in the backward",
    "lbfgs-by-closure": "its gradients are computed inside the step",
    "sam-by-closure": "its gradients are computed inside the step",
    "adamw-by-closure": "its gradients are computed inside the step",
    "local-sgd": "the ranks' gradients are not added",
    "local-sgd-unwrapped": "the ranks' gradients are not added",
    "divisor-unknown": "its weights are unknown without the divisor",
    "reduced-inside-step": "the gradients are reduced when the clip is past",
    "flat-parameters": "its parameters have no gradients of their own",
}

AS_IN_PLAIN = {
    *("no-clip", "norm-logged", "fused-optimizer", "foreach-optimizer", "foreach-under-scaler"),
    *(
        "larger-scales-tried",
        "scaler-not-given",
        "unscaled-without-clip",
        "scaled-norm-logged",
        "optimizer-for-each-layer",
    ),
}
"""Right loops whose gradients are made as the plain loop's are, or as those of another that is compared."""

KINDS_AS_IN_PLAIN = ("schedules", "averages", "resumption")
"""Right loops of these kinds do nothing else with their gradients. Adversaries have a test of their own."""

ROUNDED = {"under-autocast": 2e-2, "half-precision": 3e-3}
"""The backward rounds to 16 bit, at another place for another factor."""

OF_THE_GRADIENT = ("ACC1", "ACC2", "ACC5", "ACC6")
"""The families of rules whose faults change what a gradient is made of."""


def cases(ranks: int) -> list[str]:
    faults = [name for name, fault in FAULTS.items() if (fault.code or "").startswith(OF_THE_GRADIENT)]
    rights = [name for name in VARIANTS if kind(name) not in (*KINDS_AS_IN_PLAIN, "adversaries")]
    names = [name for name in (*faults, *rights) if name not in AS_IN_PLAIN | NOT_PREDICTED.keys()]
    return [name for name in names if ranks in scenario(name).ranks]


def kind(name: str) -> str:
    """The module of the demo that holds the training."""
    return scenario(name).loop.__module__.rpartition(".")[2]


def known_total(name: str, window: dict[str, Any], first: dict[str, Any]) -> float | None:
    """The total weight of a window of this training, from what it and the first one were made of."""
    if window["valid"] == 0 or window["skipped"]:
        return None
    totals: dict[str, float] = {
        "fixed-divisor-tail": window["micro_steps"] / 4,
        "wrong-total-weight": 1 / 2,
        "unscored-tokens-in-denominator": window["valid"] / window["attended"],
        "gradients-cleared-inside-window": window["valid_kept"] / window["valid"],
        "loss-coefficient": 0.3,
        "constant-divisor": window["valid"] / (4 * first["valid"]),
        "mixed-denominators": sum(map(truediv, window["valid_each"], accumulate(window["valid_each"]))),
    }
    return totals.get(name, 1.0)


def whole_window(of_ranks: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    counts = ("valid", "valid_kept", "attended")
    return {
        **{name: sum(part[name] for part in of_ranks) for name in counts},
        "valid_each": [sum(each) for each in zip(*(part["valid_each"] for part in of_ranks), strict=False)],
        "micro_steps": max(part["micro_steps"] for part in of_ranks),
        "skipped": any(part["skipped"] for part in of_ranks),
    }


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_weights_predict_the_gradient_and_add_up(ranks: int, tmp_path: Path, pair: Pair) -> None:
    expected: dict[str, list[Any]] = {}
    for name in cases(ranks):
        arguments = {"names": [name], "folder": str(tmp_path / name), "settings": {}}
        of_ranks = run_on(ranks, pair, "compare_with_ledger", **arguments)
        worst = max(update["error"] for updates in of_ranks for update in updates if not update["skipped"])
        assert worst < ROUNDED.get(name, 1e-5), name
        windows = list(map(whole_window, zip(*of_ranks, strict=True)))
        totals = [known_total(name, window, windows[0]) for window in windows]
        expected[name] = [total if total is None else pytest.approx(total, rel=1e-4) for total in totals]
    assert recorded_totals(tmp_path) == expected


ADVERSARIES = [name for name in VARIANTS if kind(name) == "adversaries" and name != "adversaries-apart"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_weights_predict_the_gradients_of_adversaries(name: str, tmp_path: Path) -> None:
    compared = truth.compare_adversaries(name, tmp_path)
    in_turn = [0, 0, 1] if name == "discriminator-twice" else [0, 1]
    assert [number for number, _, _ in compared] == in_turn * 12
    assert [total for _, total, _ in compared] == pytest.approx([1.0] * len(compared))
    assert max(distance for _, _, distance in compared) < 1e-5


def recorded_totals(runs: Path) -> dict[str, list[float | None]]:
    with read_ledger([runs]) as ledger:
        in_order = "list(total_weight ORDER BY optimizer, attempt_id)"
        query = f"SELECT run_id, {in_order} FROM windows GROUP BY run_id"
        return dict(ledger.connection.execute(query).fetchall())


def run_on(ranks: int, pair: Pair, function: str, **arguments: Any) -> list[Any]:
    """What a function of tests.truth returns on each rank."""
    if ranks > 1:
        return pair.call(f"tests.truth:{function}", **arguments)
    return [getattr(truth, function)(**arguments)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plain_loop_has_the_gradient_of_one_large_batch(ranks: int, tmp_path: Path, pair: Pair) -> None:
    arguments = {"names": ["plain"], "folder": str(tmp_path / "run"), "settings": {}}
    of_ranks = run_on(ranks, pair, "compare_with_full_batch", **arguments)
    assert len(of_ranks[0]) == 12
    assert max(max(errors) for errors in of_ranks) < 1e-5


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plain_loop_learns(ranks: int, tmp_path: Path, pair: Pair) -> None:
    results = train(["plain"], tmp_path / "run", ranks, pair)
    losses = [sum(shares) / ranks for shares in zip(*(result["losses"] for result in results), strict=True)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_fifty_updates_are_the_same_with_and_without_hooks(ranks: int, tmp_path: Path, pair: Pair) -> None:
    settings = {"batches": 14, "epochs": 13}
    hooked = train(["plain"], tmp_path / "hooked", ranks, pair, settings=settings)
    bare = train(["plain"], tmp_path / "bare", ranks, pair, settings=settings, hooks=False)
    assert (tmp_path / "hooked").exists()
    assert not (tmp_path / "bare").exists()
    assert [result["updates"] for result in hooked] == [52] * ranks
    assert [result["parameters"] for result in hooked] == [result["parameters"] for result in bare]
    assert [result["losses"] for result in hooked] == [result["losses"] for result in bare]


UNTOUCHED = {
    1: (
        *("overflow-skipped", "half-precision", "fused-unscales", "hysteresis", "average-of-updates"),
        *("muon-and-adamw-under-scaler", "optimizer-in-backward", "lbfgs-by-closure", "sam-by-closure"),
        *("adversaries-updated-once", "two-scalers", "sequential", "unfrozen-later", "resumed-under-scaler"),
    ),
    2: ("overflow-skipped", "fused-under-scaler", "scaled-gradients-reduced", "local-sgd", "buffer-reduced"),
}
"""Trainings that hooks could disturb, by the number of ranks."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks in UNTOUCHED for name in UNTOUCHED[ranks]]
)
def test_trainings_are_the_same_with_and_without_hooks(
    ranks: int, name: str, tmp_path: Path, pair: Pair
) -> None:
    hooked = train([name], tmp_path / "hooked", ranks, pair)
    (tmp_path / "bare").mkdir()
    bare = train([name], tmp_path / "bare", ranks, pair, hooks=False)
    assert [*(tmp_path / "hooked").glob("rank-*/*.jsonl")]
    assert not [*(tmp_path / "bare").glob("rank-*")]
    assert hooked == bare
