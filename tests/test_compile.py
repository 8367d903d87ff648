"""torch.compile of the model, a micro-step or the step: recorded as far as it can be, never hindered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, _dynamo, nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import accumaudit
from accumaudit import Audit
from accumaudit.engine import check_paths
from accumaudit.hooks.modules import data_parallel
from accumaudit.hooks.reducers import reducer_of
from tests.loops import TOKENS, VOCABULARY, TinyModel, batches, read_records, token_loss, total_weight

NO_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler: the inductor cannot build"
)
BACKENDS = ["eager", pytest.param("inductor", marks=[pytest.mark.slow, NO_COMPILER])]
STEPS = 2
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # inductor's own


class LanguageModel(TinyModel):
    """Returns logits and, where it is given targets, their mean loss, as nanoGPT's model does."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


@dataclass
class Compiled:
    """What a test's loop works on, and what compiling it took."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    breaks: dict[str, int]
    graphs: int
    updates: list[dict[str, Any]]
    marks: list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _dynamo.reset()
    yield
    _dynamo.reset()


def train(
    folder: Path,
    loop: Callable[[nn.Module, torch.optim.Optimizer], None],
    *,
    backend: str | None = None,
    compiled_first: bool = True,
    attach_compiled: bool = True,
    hooks: bool = True,
    **options: Any,
) -> Compiled:
    """Run a loop with a model that is compiled before attach, or after it."""
    _dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run: Any = torch.compile(model, backend=backend) if backend and compiled_first else model
    audit = Audit(None)
    if hooks:
        options = {"log_dir": folder, "summary": False, "accumulation_steps": STEPS, **options}
        audit = accumaudit.attach(run if attach_compiled else model, optimizer, **options)
    if backend and not compiled_first:
        run = torch.compile(model, backend=backend)
    with audit:
        loop(run, optimizer)
    records = read_records(folder) if hooks else []
    return Compiled(
        model,
        optimizer,
        dict(counters["graph_break"]),
        counters["stats"]["unique_graphs"],
        [entry for entry in records if entry["record"] == "update"],
        [entry for entry in records if entry["record"] == "mark" and entry["kind"] != "close"],
    )


def loss_outside(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        for ids in batches(STEPS):
            (token_loss(model(ids)[0], ids) / TOKENS / STEPS).backward()
        optimizer.step()
        optimizer.zero_grad()


def loss_inside(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        for ids in batches(STEPS):
            (model(ids, targets=ids)[1] / STEPS).backward()
        optimizer.step()
        optimizer.zero_grad()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("compiled_first", "attach_compiled"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("loop", [loss_outside, loss_inside])
def test_a_compiled_model_is_recorded_and_left_whole(
    tmp_path: Path,
    backend: str,
    compiled_first: bool,
    attach_compiled: bool,
    loop: Callable[[nn.Module, torch.optim.Optimizer], None],
) -> None:
    """No break of the graph, at most one recompilation, and the same parameters, bit by bit."""
    bare = train(tmp_path, loop, backend=backend, hooks=False)
    hooked = train(
        tmp_path, loop, backend=backend, compiled_first=compiled_first, attach_compiled=attach_compiled
    )
    assert [update["events"] for update in hooked.updates] == ["ZFBFBO"] * 3
    assert hooked.marks == []
    assert equal(bare.model, hooked.model)
    assert hooked.breaks == bare.breaks == {}
    assert bare.graphs == 1
    assert hooked.graphs <= 2
    if loop is loss_outside or backend == "eager":
        assert [total_weight(update) for update in hooked.updates] == pytest.approx([1.0] * 3)
        assert {update["weight_source"] for update in hooked.updates} == {"measured"}
    else:
        assert [total_weight(update) for update in hooked.updates] == [None] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_inside_is_measured_at_the_model_s_output(tmp_path: Path, backend: str) -> None:
    """The weights are those of the same loop without a compiler."""
    plain = train(tmp_path / "plain", loss_inside)
    built = train(tmp_path / "compiled", loss_inside, backend=backend, labels="targets")
    source = "measured" if backend == "eager" else "model_loss"
    assert {update["weight_source"] for update in built.updates} == {source}
    for ours, theirs in zip(built.updates, plain.updates, strict=True):
        assert ours["loss_weight"] == pytest.approx(theirs["loss_weight"])
        assert ours["valid_tokens"] == theirs["valid_tokens"] == [16, 16]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["loss_unobserved"] == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("by_tail", "codes"), [(True, set()), (False, {"ACC101"})])
def test_a_compiled_loop_s_tail_is_judged(
    tmp_path: Path, backend: str, by_tail: bool, codes: set[str]
) -> None:
    """nanoGPT's way of accumulating, with an end of the data after every second window."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for window in (4, 2) * 3:
            for ids in batches(window):
                (model(ids, targets=ids)[1] / (window if by_tail else 4)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    train(tmp_path, loop, backend=backend, labels="targets", accumulation_steps=4)
    verdicts = check_paths([tmp_path]).runs[0].verdicts
    assert {verdict.code for verdict in verdicts if verdict.status == "failed"} == codes
    (judged,) = [verdict for verdict in verdicts if verdict.code == "ACC101"]
    assert judged.judged == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_micro_step_that_is_compiled_with_its_backward(tmp_path: Path, backend: str) -> None:
    """The compiler breaks at the backward by itself, and nowhere else because of the hooks."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def micro_step(ids: Tensor) -> None:
            (token_loss(model(ids)[0], ids) / TOKENS / STEPS).backward()

        whole = torch.compile(micro_step, backend=backend)
        for _ in range(3):
            for ids in batches(STEPS):
                whole(ids)
            optimizer.step()
            optimizer.zero_grad()

    bare, hooked = train(tmp_path, loop, hooks=False), train(tmp_path, loop)
    assert [update["events"] for update in hooked.updates] == ["ZBBO"] * 3
    assert (hooked.breaks, hooked.graphs) == (bare.breaks, bare.graphs)
    assert equal(bare.model, hooked.model)
    assert hooked.marks == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_that_is_compiled_is_said_to_be_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is kept of the windows that it used."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(6):
            for ids in batches(STEPS):
                (token_loss(model(ids)[0], ids) / TOKENS / STEPS).backward()
            step()
            optimizer.zero_grad()

    bare, hooked = train(tmp_path, loop, hooks=False), train(tmp_path, loop)
    assert equal(bare.model, hooked.model)
    assert (hooked.breaks, hooked.graphs) == (bare.breaks, bare.graphs)
    assert hooked.updates == []
    assert [mark["kind"] for mark in hooked.marks] == ["not_recorded"]
    assert "a step of AdamW was compiled, or captured in a CUDA graph" in caplog.text
    close = read_records(tmp_path)[-1]
    assert (close["kind"], close["leftover_microbatches"]) == ("close", 0)


def compiled(model: nn.Module) -> nn.Module:
    """What torch.compile makes of a module is one."""
    result: Any = torch.compile(model)
    assert isinstance(result, nn.Module)
    return result


def test_a_compiled_model_is_seen_through() -> None:
    """To its wrapper, whichever lies in the other."""
    model = nn.Linear(VOCABULARY, 2)
    assert reducer_of(compiled(model)).inner is model
    assert data_parallel(compiled(model)) is None
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = compiled(model)
    assert data_parallel(compiled(wrapper)) is wrapper
    assert reducer_of(compiled(wrapper)).inner is model
