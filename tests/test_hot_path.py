"""The training never waits for the hooks: no value is read, nothing is synchronised, nothing is reduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import accumaudit
from accumaudit import Audit
from accumaudit.hooks import digest, loss, probe
from accumaudit.hooks.track import Track
from tests.loops import TinyModel, batches, read_records, token_loss
from tests.waiting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Pair

UPDATES = 11
"""More than ten: the parameters are hashed at the first and at the tenth."""

Loop = Callable[[Path | None], None]


def attached(model: nn.Module, optimizer: Any, folder: Path | None, **options: Any) -> Audit:
    """An audit, or one that does nothing."""
    if folder is None:
        return Audit(None)
    return accumaudit.attach(model, optimizer, log_dir=folder, summary=False, **options)


def clipped(folder: Path | None) -> None:
    """Accumulated, clipped, scheduled; the loop reports tensors and runs an evaluation."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    with attached(model, optimizer, folder, scheduler=scheduler) as audit:
        for _ in range(UPDATES):
            total = torch.zeros(())
            for ids in batches(3):
                value = token_loss(model(ids), ids) / 3
                value.backward()
                total += value.detach()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            audit.report(loss=total)
        with torch.no_grad():
            model(batches(1)[0])


def several_terms(folder: Path | None) -> None:
    """Class weights, a loss a position, gradients changed by hand and cleared in place."""
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    weights = torch.linspace(0.5, 1.5, model(batches(1)[0]).shape[-1])
    with attached(model, optimizer, folder):
        for _ in range(UPDATES):
            for ids in batches(2):
                logits = model(ids)[:, :-1].flatten(0, 1)
                labels = ids[:, 1:].reshape(-1)
                first = nn.functional.cross_entropy(logits, labels, weight=weights)
                each = nn.functional.cross_entropy(logits, labels, reduction="none")
                (first + (each * (labels != 1)).mean()).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def scaled(folder: Path | None) -> None:
    """A gradient scaler, a fused optimizer, an average of the parameters, a rate that is a tensor."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    average = torch.optim.swa_utils.AveragedModel(model)
    with attached(model, optimizer, folder, scaler=scaler):
        for _ in range(UPDATES):
            for ids in batches(2):
                scaler.scale(token_loss(model(ids), ids) / 2).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update_parameters(model)


LOOPS: dict[str, Loop] = {"clipped": clipped, "several terms": several_terms, "scaled": scaled}


def waits_of(loop: Loop, folder: Path | None) -> Counter[str]:
    """What the loop waited for, after a first run in which torch sets up what it keeps."""
    torch.manual_seed(0)
    with counted() as waits:
        loop(folder)
    return waits.counts


@contextmanager
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on an accelerator: the hooks take no tensor to lie on the host."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cpu", property(lambda _tensor: False), raising=False)
        yield


@pytest.mark.parametrize("device", ["cpu", "elsewhere"])
@pytest.mark.parametrize("name", LOOPS)
def test_the_hooks_wait_for_nothing(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded loop reads, synchronises and reduces exactly what the bare one does."""
    loop = LOOPS[name]
    with elsewhere(monkeypatch) if device == "elsewhere" else nullcontext():
        loop(None)
        bare = waits_of(loop, None)
        recorded = waits_of(loop, tmp_path)
    assert recorded == bare
    updates = [record for record in read_records(tmp_path) if record["record"] == "update"]
    assert len(updates) == UPDATES
    assert updates[9]["param_digest"] is not None
    assert None not in updates[0]["valid_tokens"]


@pytest.mark.parametrize(
    ("name", "wait"),
    {
        "item": lambda tensor: tensor.item(),
        "tolist": lambda tensor: tensor.tolist(),
        "__bool__": lambda tensor: not tensor,
        "__float__": float,
        "__int__": int,
        "aten::_local_scalar_dense": float,
        "aten::equal": lambda tensor: torch.equal(tensor, tensor),
        "aten::nonzero": torch.nonzero,
        "aten::masked_select": lambda tensor: tensor.masked_select(tensor == 1),
        "aten::index": lambda tensor: tensor[tensor == 1],
        "synchronize": lambda _tensor: synchronise(),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hook_that_waits_is_noticed(
    name: str, wait: Callable[[Tensor], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters see what a hook does, in a backward too."""
    backward_ended = Track.backward_ended

    def waits(self: Track, backward: Any) -> None:
        backward_ended(self, backward)
        wait(torch.ones(1))

    clipped(None)
    bare = waits_of(clipped, None)
    monkeypatch.setattr(Track, "backward_ended", waits)
    recorded = waits_of(clipped, tmp_path)
    assert recorded[name] - bare[name] >= 3 * UPDATES


def synchronise() -> None:
    """Wait for a device, be it there or not."""
    with suppress(AssertionError, RuntimeError):
        torch.cuda.synchronize()


def reduced(folder: str | None, reduce_more: bool) -> dict[str, int]:
    """On each of two ranks: what a DDP loop waited for."""
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with counted() as waits, attached(model, optimizer, None if folder is None else Path(folder)):
        for _ in range(UPDATES):
            with model.no_sync():
                token_loss(model(batches(1)[0]), batches(1)[0]).backward()
            token_loss(model(batches(1)[0]), batches(1)[0]).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if reduce_more:
                distributed.all_reduce(torch.ones(1))
    return dict(waits.counts)


@pytest.mark.slow
def test_the_hooks_reduce_nothing(pair: Pair, tmp_path: Path) -> None:
    """Under DDP a recorded loop runs the collectives of the bare one; one more would be counted."""
    bare = pair.call("tests.test_hot_path:reduced", folder=None, reduce_more=False)
    recorded = pair.call("tests.test_hot_path:reduced", folder=str(tmp_path), reduce_more=False)
    assert recorded == bare
    more = pair.call("tests.test_hot_path:reduced", folder=None, reduce_more=True)
    assert all(rank["all_reduce"] == UPDATES for rank in more)


def test_what_is_read_on_the_host_is_small() -> None:
    """Only tensors that lie there, and few bytes of them."""
    assert digest.BYTES <= 1 << 16
    assert loss.COUNTED_LATER <= 1 << 14
    assert probe.KEPT <= 1 << 16
