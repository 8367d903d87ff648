"""Features of torch that the hooks must neither hinder nor be hindered by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import accumaudit
from accumaudit.hooks import attaching
from accumaudit.hooks import digest as digests
from accumaudit.hooks import track as tracks
from accumaudit.hooks.session import session
from tests.loops import TOKENS, VOCABULARY, TinyModel, Training, batches, plain, token_loss
from tests.recorded import faults, updates


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean:torch.jit.TracerWarning")
def test_a_traced_graph_is_the_same_while_attached(tmp_path: Path) -> None:
    """Tracing a model and a loss records no operation of the hooks, and its own check passes."""
    model, ids = TinyModel(), batches(1)[0]
    optimizer = torch.optim.AdamW(model.parameters())

    def operations() -> list[str]:
        traced = torch.jit.trace(lambda logits: token_loss(logits, ids), (torch.randn(2, 8, VOCABULARY),))
        whole = torch.jit.trace(model, (ids,))
        return [node.kind() for graph in (traced.graph, whole.inlined_graph) for node in graph.nodes()]

    bare = operations()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        hooked = operations()
    assert hooked == bare
    assert faults(tmp_path) == []


def test_a_model_compiled_after_attach_compiles_whole(tmp_path: Path) -> None:
    """The hooks inside are no reason for a break of the graph."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for ids in batches(2):
            (token_loss(compiled(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [update["events"] for update in updates(tmp_path)] == ["ZFBO", "ZFBO"]
    assert faults(tmp_path) == []


def test_no_value_of_a_device_is_read_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device whose tensors have no values nothing raises but the writer's last step."""
    monkeypatch.setattr(attaching, "LAZY", frozenset())  # attach would not record it at all
    with torch.device("meta"):
        model = TinyModel()
        class_weights = torch.ones(VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    losses = [
        lambda logits, ids: token_loss(logits, ids),
        lambda logits, ids: token_loss(logits, ids, "mean", weight=class_weights),
        lambda logits, ids: token_loss(logits, ids, "none", weight=class_weights).sum(),
    ]
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        for place, batch in enumerate(batches(12)):
            ids = batch.to("meta")
            loss = losses[place % 3](model(ids), ids)
            audit.observe_loss(loss, valid_tokens=(ids > 0).sum())
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
            if place % 3 == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                audit.report(loss=loss, global_valid_tokens=(ids > 0).sum())
    assert [entry["kind"] for entry in faults(tmp_path)] == ["gap"]


@pytest.mark.parametrize("layout", ["coo", "csr", "nested"])
@pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant):UserWarning")
def test_inputs_of_any_layout_leave_the_forward_in_the_word(layout: str, tmp_path: Path) -> None:
    """What cannot be hashed is not, and costs nothing else."""
    dense = torch.eye(6)
    makers: dict[str, Callable[[], Tensor]] = {
        "coo": dense.to_sparse,
        "csr": dense.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor(list(dense.split(3)), layout=torch.jagged),
    }
    given = makers[layout]()

    class Model(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name of the base class
            return super().forward(input.values() if layout == "nested" else input.to_dense())

    model = Model(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        functional.cross_entropy(model(given), torch.arange(6)).backward()
        optimizer.step()
    assert [update["events"] for update in updates(tmp_path)] == ["ZFBO"]
    assert faults(tmp_path) == []


def test_sparse_gradients_are_looked_at(tmp_path: Path) -> None:
    """Gradients of an embedding's rows, multiplied when they are whole."""
    model = nn.Embedding(10 * VOCABULARY, VOCABULARY, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for place, ids in enumerate(batches(4), 1):
            token_loss(model(ids + 5 * VOCABULARY), ids).backward()
            if place % 2 == 0:
                assert model.weight.grad is not None
                model.weight.grad.mul_(1 / (2 * TOKENS))
                optimizer.step()
                optimizer.zero_grad()
    assert [update["events"] for update in updates(tmp_path)] == ["ZFBFBMO"] * 2
    assert [update["grad_rescale"] for update in updates(tmp_path)] == pytest.approx([1 / 28] * 2)
    assert all(update["probe_parameter_changed"] for update in updates(tmp_path))


def test_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    """A schedule and reports may be made of them."""
    float32: Any = np.float32
    int64: Any = np.int64
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float32(1 / (1 + step)))
    with accumaudit.attach(
        model, optimizer, scheduler, log_dir=tmp_path, accumulation_steps=int64(4), summary=False
    ) as audit:
        plain(Training(model, optimizer, scheduler, audit))
        audit.report(global_step=int64(3), loss=float32("nan"))
    assert [update["scheduler_rate"] for update in updates(tmp_path)] == pytest.approx([1 / 4, 1 / 6, 1 / 8])
    assert updates(tmp_path)[-1]["reported_global_step"] == 3
    assert updates(tmp_path)[-1]["reported_loss"] == "NaN"


def test_the_loss_that_a_model_returns_is_found_by_its_name(tmp_path: Path) -> None:
    """It need not come first."""

    class Model(TinyModel):
        def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
            assert labels is not None
            logits = super().forward(ids)
            logs = torch.log_softmax(logits[:, :-1], -1)
            return {"logits": logits, "loss": -logs.gather(-1, labels[..., None]).mean()}

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, labels="labels", summary=False):
        ids = batches(1)[0]
        model(ids, labels=ids[:, 1:])["loss"].backward()
        optimizer.step()
    (update,) = updates(tmp_path)
    assert (update["weight_source"], update["loss_weight"]) == ("model_loss", [1.0])


def test_memory_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards that are never used and steps of others fill no window; the word still counts the steps."""
    monkeypatch.setattr(tracks, "EVENTS", 100)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    ids = batches(1)[0]
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for _ in range(300):
            model(ids)
            other.step()
        assert len(session.recorders[0].tracks[0].window.events) <= 100 + 2 * tracks.RECENT
        token_loss(model(ids), ids).backward()
        optimizer.step()
    assert [update["events"] for update in updates(tmp_path)] == ["o{o}298oZFBO"]


def test_digests_keep_little_memory() -> None:
    """Tensors of many sizes share what is kept."""
    digests._odd_numbers.cache_clear()
    for length in range(1, 4000, 7):
        digests.digest(torch.zeros(length))
    assert digests._odd_numbers.cache_info().currsize <= 3
