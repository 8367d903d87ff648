"""What slices of a gradient prove without any flag: trainings whose records say nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from tests.loops import LOOPS, TOKENS, Loop, Training, batches, multiply, record, token_loss, total_weight
from tests.records import write_records
from tests.trainings import train

if TYPE_CHECKING:
    from tests.processes import Pair

pytestmark = pytest.mark.slow

Records = dict[int, list[dict[str, Any]]]


def records_of(folder: Path) -> Records:
    """The records of each rank of a run of one launch."""
    lines = [
        json.loads(line) for file in folder.glob("rank-*/*.jsonl") for line in file.read_text().splitlines()
    ]
    return {
        rank: [line for line in lines if line["rank"] == rank] for rank in {line["rank"] for line in lines}
    }


def without_letters(records: Records, letters: str, instead: str = "") -> Records:
    """The same run as it would be if these events had not been seen."""
    table = str.maketrans(letters, instead) if instead else str.maketrans("", "", letters)
    for line in (line for lines in records.values() for line in lines if line["record"] == "update"):
        line["events"] = line["events"].translate(table)
    return records


def codes(folder: Path, records: Records) -> set[str]:
    [run] = check_paths([write_records(folder, records)]).runs
    assert not run.unreadable
    return {verdict.code for verdict in run.with_status(FAILED)}


def test_a_clip_of_scaled_gradients(tmp_path: Path, pair: Pair) -> None:
    """A kernel unscales where no hook sees it; the clip left a norm of 1/65536 of its limit."""
    settings = {"loss_scale": 65536.0, "max_grad_norm": 1.0, "batches": 8, "epochs": 1}
    train(["clip-before-unscale"], tmp_path / "run", 1, pair, settings=settings)
    records = records_of(tmp_path / "run")
    updates = [line for line in records[0] if line["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBFBFBFBCUOGS"] * 2
    for update in updates:
        assert update["probe_unscale"] == pytest.approx(1 / 65536)
        assert update["grad_norm_after_clip"] == pytest.approx(1 / 65536, rel=1e-4)
    assert codes(tmp_path / "flags", without_letters(records, "U")) == {"ACC402"}


def test_a_gradient_that_was_never_reduced(tmp_path: Path, pair: Pair) -> None:
    """All flags are turned to those of a loop that reduces every micro-step."""
    train(["update-without-sync"], tmp_path / "run", 2, pair, settings={"batches": 8, "epochs": 1})
    records = without_letters(records_of(tmp_path / "run"), "fb", "FB")
    found = codes(tmp_path / "flags", records)
    assert "ACC505" in found
    assert not found & {"ACC501", "ACC604", "ACC605"}


def by_a_twelfth(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (token_loss(training.model(ids), ids) * 12 / training.divisor).backward()
        if place % 4 == 0:
            multiply(list(training.model.parameters()), 1 / 12)
            training.step()


def test_a_rescale_of_a_twelfth(tmp_path: Path) -> None:
    """The weights are right by what was done to the gradients, of which no function told."""
    updates = [
        line
        for line in record(Loop(by_a_twelfth, LOOPS["plain"].words), tmp_path / "run")
        if line["record"] == "update"
    ]
    assert [update["grad_rescale"] for update in updates] == pytest.approx([1 / 12] * 3, rel=1e-6)
    assert [sum(update["loss_weight"]) for update in updates] == pytest.approx([12.0] * 3, rel=1e-6)
    assert [total_weight(update) for update in updates] == pytest.approx([1.0] * 3, rel=1e-6)
    assert updates[0]["valid_tokens"] == [TOKENS] * 4
    assert codes(tmp_path / "flags", without_letters(records_of(tmp_path / "run"), "M")) == set()
