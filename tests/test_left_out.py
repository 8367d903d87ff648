"""What is left out of a ledger on purpose, and what cannot be recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accumaudit
from accumaudit.hooks import handles
from tests.loops import TOKENS, VOCABULARY, TinyModel, batches, read_records, token_loss
from tests.recorded import marks, updates

pytestmark = pytest.mark.usefixtures("no_hook_faults")


def accumulate(model: nn.Module, micro_steps: int) -> None:
    for ids in batches(micro_steps):
        (token_loss(model(ids), ids) / TOKENS / micro_steps).backward()


def test_sums_stand_in_place_of_lists(tmp_path: Path) -> None:
    for detail in ("full", "sums"):
        torch.manual_seed(0)
        model = TinyModel()
        optimizer = torch.optim.AdamW(model.parameters())
        with accumaudit.attach(
            model, optimizer, log_dir=tmp_path / detail, summary=False, microbatch_detail=detail
        ):
            accumulate(model, 3)
            optimizer.step()
    (full,), (short,) = updates(tmp_path / "full"), updates(tmp_path / "sums")
    sums = short["window_sums"]
    assert sums["loss_weight"] == math.fsum(full["loss_weight"])
    assert sums["loss_weight_sq"] == math.fsum(full["loss_weight_sq"])
    assert sums["valid_tokens"] == 3 * TOKENS == sums["valid_tokens_max"] * 3
    assert sums["token_weight_min"] == min(
        a / n for a, n in zip(full["loss_weight"], full["valid_tokens"], strict=True)
    )
    assert sums["loss"] == pytest.approx(math.fsum(full["loss"]) / 3)
    assert sums["samples"] == 6
    assert short["loss_weight"] is short["data_digest"] is short["samples"] is None
    assert {k: v for k, v in short.items() if full.get(k) == v}.keys() >= {
        "events",
        "microbatches",
        "grad_norm_after_clip",
    }


def test_a_window_of_a_thousand_micro_steps_is_a_short_record(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(
        model, optimizer, log_dir=tmp_path, summary=False, accumulation_steps=1024, microbatch_detail="sums"
    ):
        accumulate(model, 1024)
        optimizer.step()
    (update,) = updates(tmp_path)
    assert update["events"] == "ZFB{FB}1022FBO"
    assert update["microbatches"] == 1024
    assert update["window_sums"]["loss_weight"] == pytest.approx(1.0, rel=1e-4)
    assert len(str(update)) < 6000


def test_every_third_attempt_is_written(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False, every=3):
        for ids in batches(8):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [entry["attempt_id"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["optimizer_state_step"] for entry in updates(tmp_path)] == [1, 4, 7]
    assert [entry["seq"] for entry in updates(tmp_path)] == [2, 3, 4]
    assert read_records(tmp_path)[0]["recorded_every"] == 3


@pytest.mark.parametrize(
    ("ranks", "rank", "writes"), [("first", 1, False), ("first", 0, True), ([1], 1, True)]
)
def test_ranks_that_do_not_write_have_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Any, rank: int, writes: bool
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False, ranks=ranks):
        assert bool(model._forward_hooks) is writes
    heads = [entry for entry in read_records(tmp_path) if entry["record"] == "run"]
    assert [head["recorded_ranks"] for head in heads] == ([[rank]] if writes else [])


def test_a_lazy_device_is_said_to_be_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(VOCABULARY, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        assert not model._forward_hooks
    assert "lie on meta, a lazy device: this run is not recorded" in caplog.text
    (mark,) = marks(tmp_path, "not_recorded")
    assert mark["name"] == "parameters lie on meta, a lazy device: this run is not recorded"


def test_a_captured_graph_is_said_to_be_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No GPU is needed: what asks whether a stream is captured answers yes."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = batches(1)[0]
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        monkeypatch.setattr(handles, "_capturing", lambda: True)
        for _ in range(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
        monkeypatch.setattr(handles, "_capturing", lambda: False)
    assert updates(tmp_path) == []
    assert caplog.text.count("captured in a CUDA graph: it is not recorded") == 1
    (mark,) = marks(tmp_path, "not_recorded")
    assert "CUDA graph" in mark["name"]
