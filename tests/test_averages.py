"""Averages of the parameters, and collectives that the loop itself runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import accumaudit
from accumaudit import Audit
from tests.loops import TOKENS, TinyModel, batches, token_loss
from tests.recorded import updates, words

pytestmark = pytest.mark.usefixtures("no_hook_faults")


# averages


@pytest.mark.parametrize(
    ("average", "decay"),
    [
        (lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)), 0.99),
        (lambda model: AveragedModel(model), None),
        (lambda model: AveragedModel(model, avg_fn=lambda mean, new, _count: (mean + new) / 2), None),
    ],
)
def test_torch_s_averages_are_seen(
    tmp_path: Path, average: Callable[[nn.Module], AveragedModel], decay: float | None
) -> None:
    model = TinyModel()
    optimizer, averaged, another = torch.optim.AdamW(model.parameters()), average(model), nn.Linear(2, 2)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            averaged.update_parameters(model)
            AveragedModel(another).update_parameters(another)
            optimizer.zero_grad()
    assert words(tmp_path) == ["ZFBOE"] * 3
    assert [entry["ema_updates"] for entry in updates(tmp_path)] == [1, 2, 3]
    assert [entry["ema_decay"] for entry in updates(tmp_path)] == [decay] * 3


def test_the_loop_tells_of_its_own_average(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
            audit.ema_updated(decay=0.9)
    assert [entry["events"].replace("Z", "") for entry in updates(tmp_path)] == ["FBOE", "FBOE"]
    assert [(entry["ema_updates"], entry["ema_decay"]) for entry in updates(tmp_path)] == [(1, 0.9), (2, 0.9)]


def test_parameters_that_move_between_steps_are_told(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for place, ids in enumerate(batches(4)):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
            if place == 1:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.5)
    assert [entry["probe_parameter_moved"] for entry in updates(tmp_path)] == [None, False, True, False]


# collectives: the group is of this process alone


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def each_by_itself(model: nn.Module) -> None:
    for gradient in gradients(model):
        distributed.all_reduce(gradient)


def not_waited_for(model: nn.Module) -> None:
    for work in [distributed.all_reduce(tensor=g, async_op=True) for g in gradients(model)]:
        assert work is not None
        work.wait()


def through_one_buffer(model: nn.Module) -> None:
    """With noise in place of the other ranks' gradients, which this group does not have."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients(model)])
    distributed.all_reduce(flat)
    flat += torch.randn_like(flat)
    for gradient, part in zip(
        gradients(model), flat.split([gradient.numel() for gradient in gradients(model)]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))


def of_the_loss_alone(model: nn.Module) -> None:
    distributed.all_reduce(torch.ones(()))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("reduce", "letter"),
    [(each_by_itself, "A"), (not_waited_for, "A"), (through_one_buffer, "A"), (of_the_loss_alone, "")],
)
def test_a_reduction_of_the_loop_s_own_is_told(
    tmp_path: Path, reduce: Callable[[nn.Module], None], letter: str
) -> None:
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    folder = tmp_path / "run"
    seen: list[list[float]] = []
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False) as audit:
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            reduce(model)
            seen.append(_probed(model, audit))
            optimizer.step()
            optimizer.zero_grad()
    assert words(folder) == [f"ZFB{letter}O"] * 2
    assert [entry["grad_rescale"] for entry in updates(folder)] == [1.0, 1.0]
    assert [entry["probe_gradient"] for entry in updates(folder)] == seen


class Reducing(torch.optim.SGD):
    """Reduces the gradients inside its own step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                distributed.all_reduce(parameter.grad)
                parameter.grad.mul_(0.5)
        return super().step(closure)


@pytest.mark.usefixtures("group")
def test_what_an_optimizer_reduces_inside_its_step_belongs_to_it(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = Reducing(model.parameters(), lr=0.1)
    folder = tmp_path / "run"
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False):
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert words(folder) == ["ZFBO"] * 2
    assert [entry["grad_rescale"] for entry in updates(folder)] == [1.0, 1.0]


def _probed(model: nn.Module, audit: Audit) -> list[float]:
    """The polled slice as it is now."""
    assert audit._recorder is not None
    gradient = dict(model.named_parameters())[audit._recorder.tracks[0].probe.name].grad
    assert gradient is not None
    return [float(value) for value in gradient.reshape(-1)[:64]]
