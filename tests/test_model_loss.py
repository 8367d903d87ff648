"""What a model returns in place of logits: a loss that it has divided itself, or log-probabilities."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.options import Options
from tests.recorded import updates

IGNORED = -100


class Quiet(nn.Module):
    """It calls no loss of torch's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 10)

    def log_probabilities(self, ids: Tensor, labels: Tensor) -> Tensor:
        rows = self.table(ids).log_softmax(-1)
        chosen: Tensor = rows.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        counted: Tensor = chosen.masked_fill(labels == IGNORED, 0.0)
        return counted

    def forward(self, ids: Tensor, labels: Tensor, count: int | None = None) -> SimpleNamespace:
        found = self.log_probabilities(ids, labels)
        valid = labels != IGNORED
        loss = -found.sum() / (valid.sum() if count is None else count)
        return SimpleNamespace(loss=loss, found=found, valid=valid)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Three micro-batches, of 2, 5 and 7 labels that count."""
    made = []
    for valid in (2, 5, 7):
        labels = torch.arange(8)[None] % 10
        labels[0, 0] = IGNORED
        labels[0, valid + 1 :] = IGNORED
        made.append((torch.arange(8)[None], labels))
    return made


def window(folder: Path, contract: Contract, labels: str | None, loss_of: Any) -> dict[str, Any]:
    """The record of one window."""
    model = Quiet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = Options(log_dir=folder, labels=labels, summary=False)
    with attach_runtime(contract, model, optimizer, None, None, options):
        for ids, targets in batches():
            loss_of(model, ids, targets).backward()
        optimizer.step()
    [record] = updates(folder)
    assert record["valid_tokens"] == [2.0, 5.0, 7.0]
    return record


def test_a_loss_that_was_divided_by_what_the_model_was_told(tmp_path: Path) -> None:
    contract = Contract(loss_divisor="count")
    record = window(
        tmp_path, contract, "labels", lambda model, ids, labels: model(ids, labels, count=14).loss
    )
    assert record["weight_source"] == "model_loss"
    assert record["loss_weight"] == pytest.approx([2 / 14, 5 / 14, 7 / 14])
    assert record["loss_unobserved"] == 0.0


def test_it_is_a_mean_where_the_model_was_told_nothing(tmp_path: Path) -> None:
    contract = Contract(loss_divisor="count")
    record = window(tmp_path, contract, "labels", lambda model, ids, labels: model(ids, labels).loss / 3)
    assert record["loss_weight"] == pytest.approx([1 / 3] * 3)


def test_first_labels_are_left_out_where_the_model_shifts_them(tmp_path: Path) -> None:
    def shifted(model: Quiet, ids: Tensor, labels: Tensor) -> Tensor:
        return model(ids, labels.index_fill(1, torch.tensor([0]), 1), count=14).loss  # type: ignore[no-any-return]

    record = window(tmp_path, Contract(loss_divisor="count", shifts_labels=True), "labels", shifted)
    assert record["loss_weight"] == pytest.approx([2 / 14, 5 / 14, 7 / 14])


def test_log_probabilities_tell_each_position(tmp_path: Path) -> None:
    contract = Contract(log_probabilities=("found", "valid"))
    record = window(tmp_path, contract, None, lambda model, ids, labels: -model(ids, labels).found.sum() / 14)
    assert record["weight_source"] == "model_loss"
    assert record["weight_uniform"] == [True] * 3
    assert record["loss_weight"] == pytest.approx([2 / 14, 5 / 14, 7 / 14])
    assert record["loss_unobserved"] == 0.0
    assert all(2.0 < loss < 4.0 for loss in record["loss"])
