"""FSDP1 and FSDP2: what is recorded on shards, what is found, and that nothing is disturbed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.findings import BROKEN, FAILED
from tests.loops import read_records
from tests.recorded import faults, marks, updates
from tests.runtimes.fsdp import LIMIT
from tests.tables import query

if TYPE_CHECKING:
    from tests.processes import Pair

pytestmark = pytest.mark.slow

EVERY = ["ZFBFBFBCO", "ZFBFBFBCO", "ZFBFBCO"] * 2
LAST = ["ZFbFbFBCO", "ZFbFbFBCO", "ZFbFBCO"] * 2
SCALED = [word.replace("CO", "UCOG") for word in EVERY]
RESCALED = [word.replace("CO", "MCO") for word in EVERY]

RIGHT: dict[str, tuple[str, list[str], list[str]]] = {
    # name: (wrap, how it is unlike the plain loop, words)
    "fsdp1": ("fsdp1", [], EVERY),
    "fsdp1, no_sync": ("fsdp1", ["last"], LAST),
    "fsdp1, flat parameters": ("fsdp1 flat", ["last"], LAST),
    "fsdp1, gradients alone": ("fsdp1 SHARD_GRAD_OP", ["last"], LAST),
    "fsdp1, no shards": ("fsdp1 NO_SHARD", ["last"], LAST),
    "fsdp1, hybrid": ("fsdp1 HYBRID_SHARD", ["last"], LAST),
    "fsdp1, evaluated": ("fsdp1", ["evaluated", "last"], LAST),
    "fsdp1, in 16 bit": ("fsdp1", ["bf16", "last"], LAST),
    "fsdp1, scaled": ("fsdp1", ["sharded scaler"], SCALED),
    "fsdp1, frozen": ("fsdp1", ["frozen"], EVERY),
    "fsdp1, resumed": ("fsdp1", ["resumed"], EVERY),
    "fsdp2": ("fsdp2", [], EVERY),
    "fsdp2, no sync": ("fsdp2", ["last"], LAST),
    "fsdp2, kept after forward": ("fsdp2", ["kept", "last"], LAST),
    "fsdp2, hybrid": ("fsdp2 hybrid", ["last"], LAST),
    "fsdp2, shards held": ("fsdp2 hybrid", ["shards held"], LAST),
    "fsdp2, waits at the end": ("fsdp2", ["waits at the end"], EVERY),
    "fsdp2, evaluated": ("fsdp2", ["evaluated", "last"], LAST),
    "fsdp2, in 16 bit": ("fsdp2", ["bf16", "last"], LAST),
    "fsdp2, offloaded": ("fsdp2", ["offload", "last"], LAST),
    "fsdp2, scaled": ("fsdp2", ["scaler"], SCALED),
    "fsdp2, frozen": ("fsdp2", ["frozen"], EVERY),
    "fsdp2, foreach": ("fsdp2", ["foreach"], EVERY),
    "fsdp2, zeroed": ("fsdp2", ["zeroed"], EVERY),
    "fsdp2, rescaled": ("fsdp2", ["rescaled"], RESCALED),
    "fsdp2, summed": ("fsdp2", ["summed"], EVERY),
    "fsdp2, divided by the reduction": ("fsdp2", ["divided by the reduction"], EVERY),
    "fsdp2, norm taken first": ("fsdp2", ["norm taken first"], EVERY),
    "fsdp2, resumed": ("fsdp2", ["resumed"], EVERY),
}

WRONG: dict[str, tuple[str, list[str], str, str]] = {
    # name: (wrap, how, code, message)
    "fsdp1, clipped by shards": (
        "fsdp1",
        ["torch's clip"],
        "ACC405",
        "each rank clipped at 0.5 by the norm of its own shard, 1.77 to 1.86; the whole gradient's is 2.57: "
        "shards were scaled by 0.269 to 0.283 where all should be by 0.195",
    ),
    "fsdp1, one shard a mesh": (
        "fsdp1 HYBRID_SHARD alone",
        [],
        "ACC505",
        "slices of the gradient of head.bias differ by 71.3 % between ranks after the last backward, "
        "although its micro-step was to be reduced",
    ),
    "fsdp1, replicas never reduced": (
        "fsdp1 NO_SHARD",
        ["never"],
        "ACC501",
        "none of the 3 micro-steps of rank 0 was reduced: it stepped on its own gradients; "
        "slices of the gradient differ by 88.1 % between ranks",
    ),
    "fsdp2, never reduced": (
        "fsdp2 hybrid",
        ["never"],
        "ACC501",
        "none of the 3 micro-steps of rank 0 was reduced: the optimizer saw no gradient of them",
    ),
    "fsdp2, reduced first": (
        "fsdp2 hybrid",
        ["first"],
        "ACC502",
        "the last 2 of 3 micro-steps of rank 0 came after the reduction: "
        "their gradients wait for the next one, and enter another update",
    ),
    "fsdp2, own tokens": (
        "fsdp2",
        ["own tokens"],
        "ACC103",
        "a token on rank 1 counts 1.41 times one on rank 0",
    ),
    "fsdp2, world not undone": (
        "fsdp2",
        ["not undone"],
        "ACC104",
        "the weights of the window add up to 0.5, not 1: this fits 1/W (3 micro-steps of 3, 2 ranks)",
    ),
}

DIVIDED = {  # how the loss is divided: totals of the windows
    "fixed": [1.0, 1.0, 2 / 3] * 2,
    "mean": [1.0] * 6,
    "summed and mean": [2.0] * 6,
    "not undone": [0.5] * 6,
}


def train(pair: Pair, folder: Path, wrap: str, how: list[str], **more: Any) -> list[dict[str, Any]]:
    return pair.call("tests.runtimes.fsdp:train", folder=str(folder), wrap=wrap, how=how, **more)


@dataclass(frozen=True)
class Trained:
    """All trainings of the tables above: what each rank ended with, and what the auditor says."""

    folder: Path
    hooked: dict[str, list[dict[str, Any]]]
    bare: dict[str, list[dict[str, Any]]]
    told: dict[str, dict[str, tuple[str, str]]]
    """Severity and message of what is found, by run and code."""
    windows: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Judged together: to read a ledger takes longer than to train."""
    folder = tmp_path_factory.mktemp("runs")
    trainings = {name: (wrap, how) for name, (wrap, how, _) in RIGHT.items()}
    trainings |= {name: (wrap, how) for name, (wrap, how, *_) in WRONG.items()}
    trainings |= {f"divided: {name}": ("fsdp2", name.split(" and ")) for name in DIVIDED}
    hooked = {name: train(pair, folder / name, *how) for name, how in trainings.items()}
    bare = {name: train(pair, folder / "bare", *trainings[name], hooks=False) for name in RIGHT}
    assert not (folder / "bare").exists()
    with accumaudit.Ledger.open(folder) as ledger:
        rows = [*ledger.sql("FROM windows ORDER BY attempt_id")]
    windows = {name: [row for row in rows if row["run_id"] == name] for name in trainings}
    return Trained(folder, hooked, bare, findings(folder), windows)


def words(folder: Path, rank: int = 0, optimizer: int = 0) -> list[str]:
    """Of one optimizer on one rank."""
    return [entry["events"] for entry in updates(folder, optimizer) if entry["rank"] == rank]


def findings(folder: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """Severity and message of what is found, by run and code."""
    found = {}
    for run in check_paths([folder]).runs:
        assert not run.with_status(BROKEN)
        found[run.run_id] = {
            verdict.code: (verdict.severity, verdict.finding.message)
            for verdict in run.with_status(FAILED)
            if verdict.finding is not None
        }
    return found


def close_to(values: list[Any], rel: float = 1e-4) -> Any:
    return pytest.approx(values, rel=rel)


@pytest.mark.parametrize("name", RIGHT)
def test_right_loops_are_recorded_and_left_alone(name: str, trained: Trained) -> None:
    """Words, weights, joined norms; silence; and the same parameters, bit by bit, as without hooks."""
    wrap, how, expected = RIGHT[name]
    folder, told, windows = trained.folder / name, trained.told[name], trained.windows[name]
    assert trained.hooked[name] == trained.bare[name]
    assert marks(folder, "hook_error", "gap", "not_recorded") == []
    assert [words(folder, rank) for rank in (0, 1)] == [expected] * 2
    assert {code for code, (severity, _) in told.items() if severity != "note"} == set()
    assert ("ACC506" in told) is ("last" in how and "hybrid" not in wrap and "NO_SHARD" not in wrap)
    for field in ("total_weight", "distortion_min", "distortion_max"):
        assert [window[field] for window in windows] == close_to([1.0] * 6)
    norms = [window["grad_norm_before_min"] for window in windows]
    assert norms == close_to(trained.hooked[name][0]["norms"])
    clipped = [min(norm, LIMIT) for norm in norms]
    assert [window["grad_norm_min"] for window in windows] == close_to(clipped)


@pytest.mark.parametrize("name", WRONG)
def test_faults_are_found(name: str, trained: Trained) -> None:
    *_, code, message = WRONG[name]
    told = trained.told[name]
    assert {found for found, (severity, _) in told.items() if severity != "note"} == {code}
    assert told[code] == ("error", message)
    assert faults(trained.folder / name) == []


@pytest.mark.parametrize("name", DIVIDED)
def test_totals_follow_the_divisor_of_the_reduction(name: str, trained: Trained) -> None:
    totals = [window["total_weight"] for window in trained.windows[f"divided: {name}"]]
    assert totals == close_to(DIVIDED[name], rel=1e-3)


COORDINATES = {
    # shard rank and size, replica rank and size, on both ranks
    "fsdp1": [(0, 2, 0, 1), (1, 2, 0, 1)],
    "fsdp1, no shards": [(0, 1, 0, 2), (0, 1, 1, 2)],
    "fsdp1, hybrid": [(0, 2, 0, 1), (1, 2, 0, 1)],
    "fsdp2": [(0, 2, 0, 1), (1, 2, 0, 1)],
    "fsdp2, hybrid": [(0, 1, 0, 2), (0, 1, 1, 2)],
    "fsdp2, offloaded": [(0, 2, 0, 1), (1, 2, 0, 1)],
}


@pytest.mark.parametrize("name", COORDINATES)
def test_the_run_record_knows_the_layout(name: str, trained: Trained) -> None:
    runs = [entry for entry in read_records(trained.folder / name) if entry["record"] == "run"]
    fields = ("shard_rank", "shard_size", "replica_rank", "replica_size")
    assert [tuple(run[field] for field in fields) for run in runs] == COORDINATES[name]
    assert [(run["data_parallel_rank"], run["data_parallel_size"]) for run in runs] == [(0, 2), (1, 2)]
    assert {(run["wrapper"], run["cpu_offload"]) for run in runs} == {(name[:5], "offloaded" in name)}


@pytest.mark.parametrize("name", ["fsdp1, in 16 bit", "fsdp2, in 16 bit"])
def test_the_run_record_knows_the_precision(name: str, trained: Trained) -> None:
    runs = [entry for entry in read_records(trained.folder / name) if entry["record"] == "run"]
    assert {run["precision"] for run in runs} == {"float32, forward bfloat16, reduced float32"}


def test_replicas_of_a_shard_are_compared_and_shards_are_not(trained: Trained) -> None:
    compared = {"fsdp2": (None, None), "fsdp2, hybrid": (1, 0.0), "fsdp1, no shards": (1, 0.0)}
    first = {name: trained.windows[name][0] for name in compared}
    assert {name: (w["param_digests"], w["probe_spread"]) for name, w in first.items()} == compared


@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("how", ["two optimizers", "tiny alone"])
def test_several_optimizers(wrap: str, how: str, pair: Pair, tmp_path: Path) -> None:
    """One of them may have a parameter of a single element, of which one rank holds nothing."""
    hooked = train(pair, tmp_path / "run", wrap, [how])
    assert hooked == train(pair, tmp_path / "bare", wrap, [how], hooks=False)
    assert faults(tmp_path / "run") == []
    assert words(tmp_path / "run", 0, 0) == [word + "o" for word in EVERY]
    assert words(tmp_path / "run", 0, 1) == [word.replace("O", "oO") for word in EVERY]
    assert findings(tmp_path / "run") == {"run": {}}
    joined = "sqrt(sum(grad_norm_min ** 2)), min(total_weight), max(total_weight)"
    rows = query(tmp_path / "run", f"SELECT {joined} FROM windows GROUP BY attempt_id")
    assert [*map(list, rows)] == [close_to([LIMIT, 1.0, 1.0])] * 6


@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
@pytest.mark.parametrize("name", ["fully-shard-no-sync", "flat-shards-no-sync"])
def test_recomputed_forwards_are_none(name: str, checkpointing: str, pair: Pair, tmp_path: Path) -> None:
    settings = {"checkpointing": checkpointing, "epochs": 1, "batches": 6}
    hooked = pair.call("tests.trainings:train_here", **arguments(name, tmp_path / "run", settings))
    bare = pair.call(
        "tests.trainings:train_here", **arguments(name, tmp_path / "bare", settings, hooks=False)
    )
    assert hooked == bare
    assert words(tmp_path / "run") == ["ZFbFbFbFBCOS", "ZFbFBCOS"]
    truth: dict[str, Any] = {"names": [name], "folder": str(tmp_path / "truth"), "settings": settings}
    of_ranks = pair.call("tests.truth:compare_with_ledger", **truth)
    assert max(update["error"] for updates in of_ranks for update in updates) < 1e-6


def arguments(name: str, folder: Path, settings: dict[str, Any], hooks: bool = True) -> dict[str, Any]:
    """Of one launch of a training of the demo."""
    return {"names": [name], "folder": str(folder), "settings": settings, "hooks": hooks, "launch": 0}


@pytest.mark.parametrize(("wrap", "scaler"), [("fsdp1", "sharded scaler"), ("fsdp2", "scaler")])
def test_an_overflow_on_one_rank_is_skipped_by_all(
    wrap: str, scaler: str, pair: Pair, tmp_path: Path
) -> None:
    train(pair, tmp_path, wrap, [scaler, "overflow"])
    expected = [SCALED[0], SCALED[1].replace("O", "X"), *SCALED[2:]]
    assert [words(tmp_path, rank) for rank in (0, 1)] == [expected] * 2
    assert [*findings(tmp_path).values()] == [{}]


@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2"])
def test_what_somebody_else_reduces_is_not_judged(wrap: str, pair: Pair, tmp_path: Path) -> None:
    train(pair, tmp_path, wrap, ["own reduction"])
    (mark, *_) = marks(tmp_path, "not_recorded")
    assert mark["name"].startswith(f"what {wrap} divides gradients by is not known (a communication hook")
    assert query(tmp_path, "SELECT DISTINCT gradient_divisor, total_weight FROM windows") == [(None, None)]
    assert [*findings(tmp_path).values()] == [{}]


@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2"])
def test_a_checkpoint_saved_while_attached_needs_no_accumaudit(wrap: str, pair: Pair, tmp_path: Path) -> None:
    train(pair, tmp_path, wrap, ["saved"])
    loads = (
        "import sys; sys.modules['accumaudit'] = None\n"
        "import torch; print(len(torch.load(sys.argv[1], weights_only=True)))"
    )
    path = tmp_path / "checkpoint.pt"
    done = subprocess.run([sys.executable, "-c", loads, path], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 1


@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp1 flat", "fsdp2"])
def test_nothing_is_left_behind(wrap: str, pair: Pair, tmp_path: Path) -> None:
    assert pair.call("tests.runtimes.fsdp:traces", folder=str(tmp_path), wrap=wrap) == [[], []]
    assert faults(tmp_path) == []


def test_an_optimizer_is_attached_once(pair: Pair, tmp_path: Path) -> None:
    (said, _) = pair.call("tests.runtimes.fsdp:attach_twice", folder=str(tmp_path))
    assert said.startswith("accumaudit: this AdamW is attached already")


def test_a_version_without_its_own_clip_loses_that_alone(pair: Pair, tmp_path: Path) -> None:
    pair.call("tests.runtimes.fsdp:train_without_its_clip", folder=str(tmp_path))
    told = [mark["name"] for mark in marks(tmp_path, "not_recorded")]
    lacks = "has no FullyShardedDataParallel.clip_grad_norm_: no record of clips"
    assert [lacks in name for name in told] == [True, True]
    assert words(tmp_path) == EVERY


def test_a_version_whose_insides_are_not_known_loses_what_they_tell(pair: Pair, tmp_path: Path) -> None:
    pair.call("tests.runtimes.fsdp:train_on_an_unknown_version", folder=str(tmp_path))
    assert faults(tmp_path) == []
    told = [mark["name"] for mark in marks(tmp_path, "not_recorded")]
    assert ["no record of wrapper, divisor, shards" in name for name in told] == [True, True]
    assert words(tmp_path) == EVERY
    fields = "wrapper, total_weight, grad_norm_min"
    assert query(tmp_path, f"SELECT DISTINCT {fields} FROM windows") == [(None, None, None)]
    assert [*findings(tmp_path).values()] == [{}]


def test_a_version_that_hides_the_factor_loses_the_weights_alone(pair: Pair, tmp_path: Path) -> None:
    """Before torch 2.8 a factor stands in the operator of the reduction."""
    train(pair, tmp_path, "fsdp2", ["an operator"])
    assert len(marks(tmp_path, "not_recorded")) == 2
    assert words(tmp_path) == EVERY
    assert query(tmp_path, "SELECT DISTINCT gradient_divisor, total_weight FROM windows") == [(None, None)]


@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2"])
def test_one_process_alone(wrap: str, tmp_path: Path) -> None:
    code = "import sys; from tests.runtimes.fsdp import healthy; healthy(sys.argv[1], sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, tmp_path, wrap], check=True)
    assert faults(tmp_path) == []
    assert words(tmp_path) == [word + "S" for word in EVERY]
    (told,) = findings(tmp_path).values()
    assert {severity for severity, _ in told.values()} <= {"note"}
    rows = query(tmp_path, "SELECT round(total_weight, 4), grad_norm_min > 0 FROM windows")
    assert rows == [(1.0, True)] * 6
