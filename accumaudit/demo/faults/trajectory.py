"""What shows over the whole of a run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.registry import fault


@fault("ACC905")
class EquivalentBatchShrunk(Loop):
    """Each sequence takes the mean over its own tokens, so those of long answers hardly count."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, _ = self.forward(batch)
        rows = zip(logits.split(batch.labels.shape[1]), batch.labels, strict=True)
        means = [F.cross_entropy(row, row_labels, ignore_index=IGNORED) for row, row_labels in rows]
        share = batch.valid_tokens * self.world_size / window.tokens
        return torch.stack(means).mean() * share
