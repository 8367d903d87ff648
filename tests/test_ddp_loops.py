"""What is recorded of loops under DDP on two gloo ranks: which flag decided, and what was reduced."""

from __future__ import annotations

import json
import math
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


SKIPPED_FIRST = ["ZfbfbFBUXG", "ZfbfbFBUOG"]
OTHERS = {
    # what the loop does: (the words of both windows on each rank, whether the ranks end alike)
    "a scaler": ([["ZfbfbFBUOG"] * 2] * 2, True),
    "an overflow on one rank": ([SKIPPED_FIRST] * 2, True),
    "an overflow on one rank, fused": ([["ZfbfbFBXG", "ZfbfbFBOG"]] * 2, True),
    "each gradient reduced": ([["ZFBFBFBAMO"] * 2] * 2, True),
    "each gradient reduced without waiting": ([["ZFBFBFBAO"] * 2] * 2, True),
    "a buffer reduced": ([["ZFBFBFBAO"] * 2] * 2, True),
    "reduced before unscale": ([["ZFBFBFBAUXG", "ZFBFBFBAMUOG"]] * 2, True),
    "reduced after unscale": ([["ZFBFBFBUAMOG"] * 2, ["ZFBFBFBUMAMXG", "ZFBFBFBUAMOG"]], False),
    "parameters averaged": ([["ZfbfbfbO"] * 2] * 2, True),
    "parameters averaged, not wrapped": ([["ZFBFBFBO"] * 2] * 2, True),
}


def train_otherwise(mode: str, folder: str) -> dict[str, Any]:
    """Two windows of three micro-steps, reduced and stepped as the mode says; runs on each rank."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    inner = TinyModel()
    wrapped = "reduced" not in mode and "not wrapped" not in mode
    model: Any = DistributedDataParallel(inner) if wrapped else inner
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-2, fused="fused" in mode)
    scaled = "scale" in mode or "overflow" in mode
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    options: dict[str, Any] = {} if wrapped else {"gradient_divisor": 2.0}
    with accumaudit.attach(
        model, optimizer, scaler=scaler, log_dir=folder, accumulation_steps=3, summary=False, **options
    ):
        for place, ids in enumerate(batches(12)[rank::2]):
            quiet = wrapped and (place % 3 < 2 or mode == "parameters averaged")
            with model.no_sync() if quiet else nullcontext():
                logits = model(ids)
                if place == 1 and rank == 1 and ("overflow" in mode or "unscale" in mode):
                    _overflow(inner, logits, everything="after" not in mode)
                scaler.scale(token_loss(logits, ids) / (3 * TOKENS)).backward()
            if place % 3 == 2:
                _finish(mode, inner, optimizer, scaler)
    flat = torch.cat([parameter.detach().flatten() for parameter in inner.parameters()])
    return {"sum": float(flat.double().sum()), "norm": float(flat.double().norm())}


def _overflow(model: TinyModel, logits: torch.Tensor, everything: bool) -> None:
    """Of everything below the logits, or of the head's bias alone, in the next backward."""
    if everything:
        logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
        return

    def once(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return torch.full_like(gradient, math.inf)

    handle = model.head.bias.register_hook(once)


def _finish(mode: str, model: TinyModel, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    if mode == "reduced after unscale":
        scaler.unscale_(optimizer)
    if "reduced" in mode:
        _reduce(mode, [p.grad for p in model.parameters() if p.grad is not None])
    if "fused" not in mode and scaler.is_enabled() and mode != "reduced after unscale":
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if "averaged" in mode:
        with torch.no_grad():
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter)
                parameter.div_(2)


def _reduce(mode: str, gradients: list[torch.Tensor]) -> None:
    if mode == "a buffer reduced":
        buffer = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(buffer)
        parts = (buffer / 2).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return
    waits = "without waiting" in mode
    if mode == "reduced after unscale":
        torch._foreach_clamp_max_(gradients, 1e5)
    works = [torch.distributed.all_reduce(gradient, async_op=waits) for gradient in gradients]
    for work in works if waits else []:
        work.wait()
    torch._foreach_div_(gradients, 2.0)


@pytest.mark.parametrize("mode", OTHERS)
def test_words_of_loops_that_scale_or_reduce_by_themselves(mode: str, pair: Pair, tmp_path: Path) -> None:
    words, equal = OTHERS[mode]
    ends = pair.call("tests.test_ddp_loops:train_otherwise", mode=mode, folder=str(tmp_path))
    files = sorted(tmp_path.glob("rank-00/*.jsonl"))
    records = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    updates = [[entry for entry in rank if entry["record"] == "update"] for rank in records]
    assert [[update["events"] for update in rank] for rank in updates] == words
    assert not [entry for rank in records for entry in rank if entry.get("kind") == "hook_error"]
    assert (ends[0] == ends[1]) is equal
    for of_ranks in zip(*updates, strict=True):
        if not any(update["optimizer_step_skipped"] for update in of_ranks):
            weights = [sum(update["loss_weight"]) * update["grad_rescale"] for update in of_ranks]
            assert sum(weights) / 2 == pytest.approx(1.0, abs=1e-5)
