"""What is recorded of loops under DDP on two gloo ranks: which flag decided, and what was reduced."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import accumaudit
from tests.loops import TOKENS, TinyModel, batches, token_loss
from tests.processes import Pair

MODES = {
    # mode: (word of a window of three, whether the ranks end with the same parameters)
    "no_sync on all but the last": ("ZfbfbFBO", True),
    "no no_sync": ("ZFBFBFBO", True),
    "no_sync around the backward": ("ZFbFbFBO", True),
    "no_sync around the forward": ("ZfBfBFBO", True),
    "no_sync always": ("ZfbfbfbO", False),
    "no_sync on all but the first": ("ZFBfbfbO", False),
    "the module called on the last": ("ZfbfbDBO", False),
    "two forwards": ("ZffbffbFFBO", True),
    "views of buckets": ("ZfbfbFBO", True),
    "unused parameters": ("ZfbfbFBO", True),
    "a static graph": ("ZFBFBFBO", True),
    "the output changed in place": ("ZfbfbFBO", True),
}


def train(mode: str, folder: str) -> dict[str, Any]:
    """Six micro-steps in windows of three; runs on each rank."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        TinyModel(),
        gradient_as_bucket_view=mode == "views of buckets",
        find_unused_parameters=mode == "unused parameters",
        static_graph=mode == "a static graph",
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches(24)[rank::2]
    with accumaudit.attach(model, optimizer, log_dir=folder, accumulation_steps=3, summary=False):
        for place, ids in enumerate(data[:6]):
            _micro_step(mode, model, place % 3, ids, data[place + 6])
            if place % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"sum": float(flat.double().sum()), "norm": float(flat.double().norm())}


def _micro_step(mode: str, model: Any, place: int, ids: torch.Tensor, other: torch.Tensor) -> None:
    quiet = place != 0 if mode == "no_sync on all but the first" else place < 2 or mode == "no_sync always"

    def unsynced(part: str) -> AbstractContextManager[None]:
        if mode in ("no no_sync", "a static graph") or not quiet:
            return nullcontext()
        if mode == "no_sync around the backward" and part == "forward":
            return nullcontext()
        if mode == "no_sync around the forward" and part == "backward":
            return nullcontext()
        return model.no_sync()  # type: ignore[no-any-return]

    with unsynced("forward"):
        called = model.module if mode == "the module called on the last" and place == 2 else model
        logits = called(ids)
        if mode == "the output changed in place":
            logits.mul_(0.5)
        loss = token_loss(logits, ids)
        if mode == "two forwards":
            loss = loss + token_loss(called(other), other)
    with unsynced("backward"):
        (loss / (3 * TOKENS)).backward()


@pytest.mark.parametrize("mode", MODES)
def test_words_agree_with_what_was_reduced(mode: str, pair: Pair, tmp_path: Path) -> None:
    """The word is that of the table, and the ranks' digests agree where it says that they should."""
    word, equal = MODES[mode]
    ends = pair.call("tests.test_ddp_loops:train", mode=mode, folder=str(tmp_path))
    files = sorted(tmp_path.glob("rank-00/*.jsonl"))
    assert len(files) == 2
    records = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    updates = [[entry for entry in rank if entry["record"] == "update"] for rank in records]
    assert [[update["events"] for update in rank] for rank in updates] == [[word] * 2] * 2
    assert (ends[0] == ends[1]) is equal
    assert (updates[0][0]["param_digest"] == updates[1][0]["param_digest"]) is equal
    assert len({rank[0]["launch"] for rank in records}) == 1
    assert records[0][0]["gradient_divisor"] == 2.0
    weights = [sum(update["loss_weight"]) for rank in updates for update in rank]
    assert sum(weights) / 2 / 2 == pytest.approx(2.0 if mode == "two forwards" else 1.0, abs=1e-5)
    assert all(update["grad_rescale"] == 1.0 for rank in updates for update in rank)
