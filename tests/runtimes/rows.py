"""Rows of token ids with labels, of which each micro-batch has another number that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from accumaudit.demo.data import IGNORED
from tests.loops import VOCABULARY, TinyModel

BATCH = 2
LENGTH = 12
STEPS = 3
EQUAL = (12,) * 6
"""Valid tokens of micro-batches that are all alike, in two whole windows."""

Row = dict[str, Tensor]


def rows(valid: Sequence[int], seed: int = 0) -> list[Row]:
    """The rows of micro-batches with so many valid tokens each."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in (part for count in valid for part in (count - count // BATCH, count // BATCH)):
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        labels = ids.clone()
        labels[number:] = IGNORED
        made.append({"input_ids": ids, "labels": labels})
    return made


def loss_of(model: Any, batch: Row, reduction: str = "mean") -> Tensor:
    """The loss of a micro-batch, over the labels that count."""
    logits = model(batch["input_ids"])
    return functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED, reduction=reduction
    )


def tiny_model(seed: int = 0) -> TinyModel:
    """The same one each time."""
    torch.manual_seed(seed)
    return TinyModel()


def flat(model: torch.nn.Module) -> Tensor:
    """Its parameters as one vector."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def rank() -> int:
    """Of this process in its group, else 0."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
