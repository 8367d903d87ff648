"""What is recorded and found of trainings under DeepSpeed: every stage of ZeRO, on one process and on two.

All of them are made once, in one process and in the pair; each test looks at what they left.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.findings import BROKEN, FAILED
from accumaudit.testing import assert_finds
from tests.processes import CHECKOUT, Pair
from tests.recorded import faults, marks, updates, words
from tests.runtimes.deepspeed import LIMIT, SCALE, VALID, loss_of
from tests.runtimes.rows import BATCH, EQUAL, STEPS, rows, tiny_model

pytestmark = pytest.mark.slow  # deepspeed takes seconds to import

HEALTHY: Final[dict[str, dict[str, Any]]] = {
    f"healthy {precision} {stage}": {
        "stage": stage,
        "precision": precision,
        "valid": (EQUAL,),
        "epochs": 2,
        "clipping": LIMIT,
    }
    for stage in (0, 1, 2, 3)
    for precision in ("fp32", "bf16")
} | {
    "healthy warm-up": {"stage": 2, "valid": (EQUAL,), "epochs": 3, "warmup": True},
    "healthy fp16": {"stage": 2, "precision": "fp16", "valid": (EQUAL,), "epochs": 2, "clipping": LIMIT},
    "healthy sums in fp32": {
        "stage": 1,
        "precision": "bf16",
        "valid": (EQUAL,),
        "clipping": LIMIT,
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    **{
        f"healthy blocks {stage}": {
            "stage": stage,
            "valid": (EQUAL,),
            "epochs": 2,
            "boundary": "coalesced",
            "gradient_accumulation_steps": 1,
        }
        for stage in (1, 2)
    },
    "healthy overflow": {"stage": 1, "precision": "bf16", "valid": (EQUAL,), "epochs": 2, "overflow": [4]},
}

ROWS: Final[dict[str, dict[str, Any]]] = {
    **{f"zero {stage}": {"stage": stage, "epochs": 2, "clipping": LIMIT} for stage in (0, 1, 2, 3)},
    **{f"forced {stage}": {"stage": stage, "boundary": "forced"} for stage in (0, 1, 2)},
    **{f"by the caller {stage}": {"stage": stage, "boundary": "caller"} for stage in (0, 1, 2)},
    "undivided": {"stage": 1, "backward": "undivided"},
    **{f"loss.backward {stage}": {"stage": stage, "backward": "torch"} for stage in (1, 2, 3)},
    "loss.backward, loss inside": {"stage": 2, "backward": "torch", "inside": True},
    "loss inside": {"stage": 0, "inside": True},
}

FAULTS: Final[dict[str, dict[str, Any]]] = {
    "schedule on a skip": {
        "stage": 0,
        "precision": "autocast",
        "epochs": 2,
        "clipping": LIMIT,
        "overflow": [4],
    },
    "clip of scaled gradients 1": {"stage": 1, "precision": "autocast", "clipping": LIMIT, "sgd": True},
    "clip of scaled gradients 2": {"stage": 2, "precision": "autocast", "clipping": LIMIT, "sgd": True},
    "scale that stays": {
        "stage": 1,
        "precision": "autocast",
        "valid": (EQUAL,),
        "epochs": 4,
        "overflow": list(range(6, 24)),
    },
    "scale that grows": {
        "stage": 2,
        "precision": "fp16",
        "valid": (EQUAL,),
        "epochs": 2,
        "fp16": {"loss_scale_window": 2},
    },
    "scale of no loss": {"stage": 0, "precision": "fp16", "valid": (EQUAL,), "sgd": True},
    "cleared 0": {"stage": 0, "valid": (EQUAL,), "cleared": [1]},
    "cleared 1": {"stage": 1, "valid": (EQUAL,), "cleared": [1]},
    "cleared 2": {"stage": 2, "valid": (EQUAL,), "cleared": [1]},
}

SILENCED: Final = {"stage": 0, "epochs": 2, "quiet": True}
"""On two processes alone."""

RUNS: Final = {**HEALTHY, **ROWS, **FAULTS}


@dataclass(frozen=True)
class Made:
    """The trainings of one number of processes."""

    folder: Path
    results: Mapping[str, Any]
    """By name of the run, what each rank made of it."""
    plain: Mapping[str, Any]
    """The same where nothing is recorded."""
    windows: Mapping[str, list[dict[str, Any]]]
    findings: Mapping[str, dict[str, tuple[str, int | None]]]
    """By name of the run and code: the severity, and the first attempt."""
    others: Mapping[str, Any]


def read(folder: Path, results: list[Any], plain: list[Any], others: Mapping[str, Any]) -> Made:
    windows: dict[str, list[dict[str, Any]]] = {}
    with accumaudit.Ledger.open(folder) as ledger:
        for window in ledger.sql("FROM windows ORDER BY run_id, attempt_id"):
            windows.setdefault(window["run_id"], []).append(window)
    findings = {}
    for run in check_paths([folder]).runs:
        assert not run.with_status(BROKEN)
        findings[run.run_id] = {
            verdict.code: (verdict.severity, verdict.finding.examples[0].attempt_id)
            for verdict in run.with_status(FAILED)
            if verdict.finding is not None and verdict.finding.examples
        }
    by_name = {name: [rank[name] for rank in results] for name in results[0]}
    beside = {name: [rank[name] for rank in plain] for name in plain[0]}
    return Made(folder, by_name, beside, windows, findings, others)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All runs in one process, which ends with them."""
    folder = tmp_path_factory.mktemp("alone")
    beside = tmp_path_factory.mktemp("beside")
    answer = beside / "answer.json"
    calls = {
        "train_all": {"runs": RUNS, "folder": str(folder)},
        "what_is_left": {"folder": str(beside / "left")},
        "refusals": {"folder": str(beside / "refused")},
        "with_another_version": {"folder": str(beside / "version")},
        "resumed": {"folder": str(beside / "resumed")},
    }
    made = {}
    for given in (calls, {"train_all": {"runs": RUNS, "folder": None}}):
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtimes.deepspeed"],
            input=json.dumps({"calls": given, "answer": str(answer)}),
            cwd=CHECKOUT,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        made[len(given)] = json.loads(answer.read_text())
    others = made[len(calls)]
    return read(folder, [others["train_all"]], [made[1]["train_all"]], others | {"folder": beside})


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Made:
    """All runs in the pair."""
    folder = tmp_path_factory.mktemp("together")
    runs = {**RUNS, "silenced": SILENCED}
    function = "tests.runtimes.deepspeed:train_all"
    recorded = pair.call(function, timeout=120, runs=runs, folder=str(folder))
    plain = pair.call(function, timeout=120, runs=runs, folder=None)
    return read(folder, recorded, plain, {})


@pytest.fixture(params=["alone", "together"])
def made(request: pytest.FixtureRequest) -> Made:
    """On one process, and on two."""
    found: Made = request.getfixturevalue(request.param)
    return found


# what the training is


def test_training_is_bitwise_the_same_with_and_without(made: Made) -> None:
    assert made.results == made.plain


def test_no_hook_failed(made: Made) -> None:
    assert [name for name in made.results if faults(made.folder / name)] == []


# the table


TOTALS: Final = {
    **{f"zero {stage}": [1.0] * 5 for stage in (0, 1, 2, 3)},
    **{f"forced {stage}": [1.0, 1.0, 0.6667] for stage in (0, 1, 2)},
    **{f"by the caller {stage}": [1.0, 1.0, 0.6667] for stage in (0, 1, 2)},
    "undivided": [3.0, 3.0],
    **{name: [1.0, 1.0] for name in ROWS if "loss" in name},
}


@pytest.mark.parametrize("name", TOTALS)
def test_total_weight_of_each_window(name: str, made: Made) -> None:
    totals = [window["total_weight"] for window in made.windows[name]]
    assert totals == pytest.approx(TOTALS[name], abs=5e-4)


@pytest.mark.parametrize("name", [*ROWS])
def test_tokens_weigh_by_their_micro_batch(name: str, together: Made) -> None:
    """0.53 to 5.1 in the first window, where nothing is left undivided; a mean of means."""
    window = together.windows[name][0]
    factor = TOTALS[name][0]
    assert window["distortion_min"] == pytest.approx(0.535 * factor, abs=5e-4 * factor)
    assert window["distortion_max"] == pytest.approx(5.083 * factor, abs=5e-4 * factor)
    assert "ACC102" in together.findings[name]


@pytest.mark.parametrize(("name", "left"), [("zero 0", 1), ("zero 2", 1), ("undivided", 2), ("forced 1", 0)])
def test_what_the_end_of_training_leaves(name: str, left: int, made: Made) -> None:
    close = marks(made.folder / name, "close")
    assert {mark["leftover_microbatches"] for mark in close} == {left}
    assert ("ACC205" in made.findings[name]) == (left > 0)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_tail_is_divided_by_the_configured_count(stage: int, made: Made) -> None:
    for name in (f"forced {stage}", f"by the caller {stage}"):
        assert made.findings[name]["ACC101"] == ("error", 3)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_window_that_crosses_epochs_is_a_note(stage: int, made: Made) -> None:
    assert made.findings[f"zero {stage}"]["ACC206"] == ("note", 3)


def predicted_norm(weights: list[list[float]]) -> float:
    """Of the sum of mean gradients, each times its weight, over the first window of all ranks."""
    model = tiny_model()
    total = torch.zeros(())
    for rank, own in enumerate(weights):
        made = rows(VALID[rank], seed=rank)
        for place, weight in enumerate(own):
            pair = made[BATCH * place : BATCH * (place + 1)]
            batch = {key: torch.stack([row[key] for row in pair]) for key in pair[0]}
            total = total + weight / len(weights) * loss_of(model, batch)
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


@pytest.mark.parametrize(
    "name", ["zero 1", "zero 3", "undivided", "loss.backward 2", "loss.backward, loss inside"]
)
def test_weights_predict_the_norm_that_the_engine_tells(name: str, made: Made) -> None:
    firsts = [update for update in updates(made.folder / name) if update["attempt_id"] == 1]
    norm = predicted_norm([update["loss_weight"] for update in firsts])
    assert {update["grad_norm_before_scope"] for update in firsts} == {"global"}
    for update in firsts:
        assert update["grad_norm_before_clip"] == pytest.approx(norm, rel=1e-5)


# the record


WORDS: Final = {
    "zero 0": ["ZFbFbFBCOS"] * 2 + ["ZFbFb|FBCOS"],
    "zero 1": ["ZFbFbFBCOS"] * 2 + ["ZFbFb|FBCOS"],
    "zero 2": ["ZFBFBFBCOS"] * 2 + ["ZFBFB|FBCOS"],
    "zero 3": ["ZFBFBFBCOS"] * 2 + ["ZFBFB|FBCOS"],
    "by the caller 0": ["ZFbFbFbAOS"] * 2 + ["ZFbFbAOS"],
    "by the caller 1": ["ZFbFbFbAOS"] * 2 + ["ZFbFbAOS"],
    "by the caller 2": ["ZFBFBFBOS"] * 2 + ["ZFBFBOS"],
    "schedule on a skip": ["ZFbFbFBUCOGS", "ZFbFbFBUCXGS", "ZFbFb|FBUCOGS"],
    "clip of scaled gradients 1": ["ZFbFbFBCUOGS"] * 2,
    "healthy fp16": ["ZFBFBFBUCOGS"] * 3,
    "healthy blocks 1": ["ZFbFbFbAOS"] * 4,
    "healthy blocks 2": ["ZFbFbFbAOS"] * 4,
    "healthy overflow": ["ZFbFbFBOS", "ZFbFbFBX", "ZFbFbFBOS"],
    "cleared 0": ["ZFbFbZFBOS", "ZFbFbFBOS"],
    "cleared 1": ["ZFbFbZFBOS", "ZFbFbFBOS"],
    "cleared 2": ["ZFBFBFBOS"] * 2,
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str, made: Made) -> None:
    found = words(made.folder / name)
    ranks = len(made.results[name])
    assert [found[rank * len(found) // ranks :][: len(WORDS[name])] for rank in range(ranks)] == [
        WORDS[name]
    ] * ranks


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_run_record_tells_the_contract(stage: int, together: Made) -> None:
    with accumaudit.Ledger.open(together.folder / f"healthy bf16 {stage}") as ledger:
        runs = list(ledger.sql("FROM runs ORDER BY rank"))
    for rank, run in enumerate(runs):
        assert (run["runtime"], run["wrapper"]) == ("deepspeed", f"deepspeed-zero{stage}")
        assert run["gradient_divisor"] == 2.0
        assert (run["accumulation_steps"], run["max_grad_norm"]) == (STEPS, LIMIT)
        assert (run["precision"], run["cpu_offload"]) == ("bfloat16", False)
        assert "deepspeed" in json.loads(run["versions"])
        assert (run["shard_rank"], run["shard_size"]) == ((rank, 2) if stage == 3 else (0, 1))
        assert (run["replica_rank"], run["replica_size"]) == ((0, 1) if stage == 3 else (rank, 2))
        assert run["scheduler_steps_per_update"] == 1.0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_clips_and_norms(stage: int, made: Made) -> None:
    """The engine clips out of torch's sight: the limit, the norm and what it really did are recorded."""
    found = updates(made.folder / f"zero {stage}")
    ranks = len(made.results[f"zero {stage}"])
    squares: dict[int, float] = {}
    for update in found:
        [clip] = update["clips"]
        assert clip["limit"] == LIMIT < clip["norm"]
        assert update["grad_norm_before_scope"] == "global"
        assert update["grad_norm_after_scope"] == ("shard" if stage and ranks > 1 else "global")
        attempt = update["attempt_id"]
        squares[attempt] = squares.get(attempt, 0.0) + update["grad_norm_after_clip"] ** 2
        if stage < 3:
            wanted = LIMIT / clip["norm"]
            assert update["probe_clip_coefficient"] == pytest.approx(wanted, rel=1e-4)
        else:
            assert update["probe_gradient"] is None
    # Each rank steps a part, or all ranks the whole.
    whole = LIMIT * math.sqrt(1 if stage else ranks)
    norms = [math.sqrt(square) for square in squares.values()]
    assert norms == pytest.approx([whole] * len(norms), rel=1e-4)
    joined = [window["grad_norm_min"] for window in made.windows[f"zero {stage}"]]
    assert joined == pytest.approx([LIMIT] * len(norms), rel=1e-4)


def test_norms_agree_over_stages(made: Made) -> None:
    norms = [
        [update["grad_norm_before_clip"] for update in updates(made.folder / f"zero {stage}")]
        for stage in (0, 1, 2, 3)
    ]
    assert norms == [pytest.approx(norms[0], rel=1e-3)] * 4


def test_parameters_are_digested_and_compared_where_they_are_replicated(together: Made) -> None:
    digests = {
        stage: {update["param_digest"] for update in updates(together.folder / f"zero {stage}")} - {None}
        for stage in (0, 1, 2, 3)
    }
    assert {stage: len(found) for stage, found in digests.items()} == {0: 1, 1: 1, 2: 1, 3: 2}
    assert together.windows["zero 2"][0]["param_digests"] == 1
    assert together.windows["zero 3"][0]["param_digests"] is None


def test_counts_are_the_engines(made: Made) -> None:
    for name in ("zero 0", "zero 3", "healthy bf16 0", "healthy overflow", "scale that stays"):
        last, result = updates(made.folder / name)[-1], made.results[name][0]
        assert last["optimizer_update_id"] == result["updates"]
        assert last["reported_global_step"] == result["updates"] + result["skipped"]


# faults


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_silent(name: str, made: Made) -> None:
    loud = {code: found for code, found in made.findings[name].items() if found[0] != "note"}
    assert loud == {}
    totals = [window["total_weight"] for window in made.windows[name]]
    applied = [total for total in totals if total is not None]
    assert len(applied) == made.results[name][0]["updates"]
    assert applied == pytest.approx([1.0] * len(applied), abs=5e-3)


def test_a_skip_that_the_engine_tells(made: Made) -> None:
    second = [update for update in updates(made.folder / "healthy overflow") if update["attempt_id"] == 2]
    assert {update["skip_evidence"] for update in second} == {"engine"}
    assert {update["scheduler_step"] for update in second} == {1}
    assert made.results["healthy overflow"][0]["skipped"] == 1


FOUND: Final = {
    "schedule on a skip": {"ACC302": ("error", 2)},
    "clip of scaled gradients 1": {"ACC402": ("error", 1)},
    "clip of scaled gradients 2": {"ACC402": ("error", 1)},
    "scale that stays": {"ACC703": ("error", 3)},
    "scale that grows": {"ACC703": ("error", 3)},
    "scale of no loss": {"ACC703": ("error", 1)},
    "cleared 0": {"ACC202": ("error", 1)},
    "cleared 1": {"ACC202": ("error", 1)},
    "cleared 2": {},
}


@pytest.mark.parametrize("name", FOUND)
def test_faults_are_found_where_they_are(name: str, made: Made) -> None:
    """Unequal micro-batches are found besides, in those runs that have them."""
    loud = {code: found for code, found in made.findings[name].items() if found[0] != "note"}
    assert {code: loud.get(code) for code in FOUND[name]} == FOUND[name]
    besides = {"ACC704"} if "valid" in FAULTS[name] else {"ACC102", "ACC103"}
    assert set(loud) - set(FOUND[name]) <= besides


def test_a_scaler_that_never_backs_off(made: Made) -> None:
    folder = made.folder / "scale that stays"
    finding = assert_finds(folder, "ACC704")
    assert finding.message.startswith("6 of 8 attempts were skipped")
    assert finding.message.endswith("from attempt 3 on")
    skipped = [update for update in updates(folder) if update["optimizer_step_skipped"]]
    assert {update["skip_evidence"] for update in skipped} == {"engine"}
    assert {(update["grad_scale"], update["grad_scale_after"]) for update in skipped} == {(SCALE, SCALE)}


def test_the_engine_does_not_notice_the_scalers_skip(made: Made) -> None:
    result = made.results["schedule on a skip"][0]
    assert (result["skipped"], result["scheduler"]) == (0, result["updates"])
    second = [update for update in updates(made.folder / "schedule on a skip") if update["attempt_id"] == 2]
    assert {update["skip_evidence"] for update in second} == {"scaler"}


def test_a_growing_scale_halves_the_update(made: Made) -> None:
    """DeepSpeed divides by the scale that it has just doubled."""
    third = next(update for update in updates(made.folder / "scale that grows") if update["attempt_id"] == 3)
    assert third["loss_scale"] == [256.0] * STEPS
    assert third["probe_unscale"] == pytest.approx(1 / 512)


def test_no_sync_over_the_engines_own_boundary(together: Made) -> None:
    assert together.findings["silenced"]["ACC501"] == ("error", 3)
    first, second = together.results["silenced"]
    assert first["parameters"] != second["parameters"]


# living with it


def test_close_leaves_nothing(alone: Made) -> None:
    assert alone.others["what_is_left"] == {"0": [], "1": [], "2": [], "3": []}


def test_what_is_refused(alone: Made) -> None:
    told = alone.others["refusals"]
    assert "attached already" in told["twice"]
    assert told["without"].startswith("TypeError: accumaudit: the engine has no optimizer")
    assert told["pipeline"].startswith("TypeError: accumaudit: the engine trains a pipeline")
    assert told["off"] is False


def test_a_version_that_lacks_methods_trains_on(alone: Made) -> None:
    folder = alone.others["folder"] / "version"
    lost = sorted(mark["name"] for mark in marks(folder, "not_recorded"))
    assert len(lost) == 2
    assert lost[0].endswith("has no DeepSpeedEngine.clip_fp32_gradients: no record of clips")
    assert lost[1].endswith("has no DeepSpeedEngine.get_global_grad_norm: no record of norms before a clip")
    assert words(folder) == ["ZFbFbFBOS"] * 2
    assert faults(folder) == []


def test_a_resumed_run_counts_on(alone: Made) -> None:
    run = alone.others["folder"] / "resumed" / "run"
    assert sorted(update["optimizer_update_id"] for update in updates(run)) == [1, 2, 3, 4, 5, 6]
    [report] = check_paths([run]).runs
    assert [verdict.code for verdict in report.with_status(FAILED) if verdict.severity != "note"] == []


def test_checkpoints_load_without_accumaudit(alone: Made) -> None:
    files = alone.others["resumed"]["files"]
    assert files
    code = (
        "import sys; sys.modules['accumaudit'] = None; import torch\n"
        "for file in sys.argv[1:]: assert torch.load(file, weights_only=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
