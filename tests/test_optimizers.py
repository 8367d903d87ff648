"""Several optimizers in one loop, inside backward, inside each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import accumaudit
from accumaudit.hooks import track as tracks
from tests.loops import TOKENS, TinyModel, batches, token_loss, total_weight
from tests.recorded import marks, updates, words

pytestmark = pytest.mark.usefixtures("no_hook_faults")


@pytest.mark.parametrize("hooked_first", [True, False])
def test_an_optimizer_for_each_parameter_steps_inside_backward(tmp_path: Path, hooked_first: bool) -> None:
    """Whether the loop's own hooks on the parameters run before the recorder's or after them."""
    model = TinyModel()
    own = {id(parameter): torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        own[id(parameter)].step()
        own[id(parameter)].zero_grad()

    def hook() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)

    if hooked_first:
        hook()
    with accumaudit.attach(model, list(own.values()), log_dir=tmp_path, summary=False):
        if not hooked_first:
            hook()
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
    for place in range(len(own)):
        mine = updates(tmp_path, place)
        assert [entry["events"].replace("o", "") for entry in mine] == ["ZFBO"] * 3
        assert [entry["microbatches"] for entry in mine] == [1, 1, 1]
        assert [total_weight(entry) for entry in mine] == pytest.approx([1.0] * 3)
        assert [entry["optimizer_state_step"] for entry in mine] == [1, 2, 3]


def test_two_optimizers_share_a_backward(tmp_path: Path) -> None:
    model = TinyModel()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    rest = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    both: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest)]
    with accumaudit.attach(model, both, log_dir=tmp_path, summary=False):
        for _ in range(2):
            for ids in batches(2):
                (token_loss(model(ids), ids) / TOKENS / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()
    assert words(tmp_path, 0) == ["ZFBFBCOo"] * 2
    assert words(tmp_path, 1) == ["ZFBFBCoO"] * 2
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 4)
    assert [entry["clips"][0]["complete"] for entry in updates(tmp_path)] == [True] * 4


def test_a_scaler_that_skips_another_optimizer_has_used_its_gradients(tmp_path: Path) -> None:
    """So that what is cleared after it is no gradient lost inside a window."""
    model, scaler = TinyModel(), torch.amp.GradScaler("cpu", init_scale=64.0)
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    mine, other = torch.optim.AdamW(body), torch.optim.AdamW(model.head.parameters())
    with accumaudit.attach(model, mine, log_dir=tmp_path, summary=False):
        for optimizer, factor in ((other, math.inf), (mine, 1.0)):
            model.zero_grad()
            ids = batches(1)[0]
            scaler.scale(token_loss(model(ids), ids) / TOKENS * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert words(tmp_path) == ["ZFBoZFBUOG"]


class Twice(torch.optim.SGD):
    """Calls its parent's step, which has hooks of its own wherever a plain SGD was made before."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return super().step()


@pytest.mark.parametrize("with_closure", [False, True])
def test_a_step_inside_a_step_is_part_of_it(tmp_path: Path, with_closure: bool) -> None:
    model = TinyModel()
    torch.optim.SGD(model.parameters())
    optimizer = Twice(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(2):

            def backward(ids: Tensor = ids) -> None:
                (token_loss(model(ids), ids) / TOKENS).backward()

            if with_closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            optimizer.zero_grad()
    assert words(tmp_path) == (["(ZFB)O"] * 2 if with_closure else ["ZFBO"] * 2)
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 2]


def generator_and_critic(run: Callable[[nn.Module, nn.Module, list[torch.optim.Optimizer]], None]) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 2)
    run(generator, critic, [torch.optim.Adam(each.parameters()) for each in (generator, critic)])


def play(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Three rounds: the critic learns, then the generator, through the critic."""
    for_generator, for_critic = optimizers
    for _ in range(3):
        noise, real = torch.randn(6, 4), torch.randn(6, 4)
        for_critic.zero_grad()
        seen = critic(torch.cat([real, generator(noise).detach()]))
        functional.cross_entropy(seen, torch.tensor([1] * 6 + [0] * 6)).backward()
        for_critic.step()
        for_generator.zero_grad()
        functional.cross_entropy(critic(generator(noise)), torch.ones(6, dtype=torch.long)).backward()
        for_generator.step()


def test_both_sides_of_a_game_in_one_attach(tmp_path: Path) -> None:
    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        both = nn.ModuleList([generator, critic])
        with accumaudit.attach(both, optimizers, log_dir=tmp_path, summary=False, accumulation_steps=1):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert words(tmp_path, 0) == ["oZBOo", "ZBOo", "ZBO"]
    assert words(tmp_path, 1) == ["ZBO", "BoZBO", "BoZBO"]
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 6)


def test_both_sides_of_a_game_in_an_attach_each(tmp_path: Path) -> None:
    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        options: dict[str, Any] = {"summary": False, "accumulation_steps": 1}
        with (
            accumaudit.attach(generator, optimizers[0], log_dir=tmp_path / "generator", **options),
            accumaudit.attach(critic, optimizers[1], log_dir=tmp_path / "critic", **options),
        ):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert words(tmp_path / "generator") == ["oZFBOo", "ZFBOo", "ZFBO"]
    assert words(tmp_path / "critic") == ["ZFBO", "FBoZFBO", "FBoZFBO"]


def test_gradients_that_another_optimizer_used_are_not_left_over(tmp_path: Path) -> None:
    """The critic's, after the generator's last backward went through it."""

    def run(generator: nn.Module, critic: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        both = nn.ModuleList([generator, critic])
        with accumaudit.attach(both, optimizers, log_dir=tmp_path, summary=False, accumulation_steps=1):
            play(generator, critic, optimizers)

    generator_and_critic(run)
    assert [mark["leftover_microbatches"] for mark in marks(tmp_path, "close")] == [0, 0]


def test_losses_of_models_that_are_attached_apart_are_not_taken_for_each_others(tmp_path: Path) -> None:
    """One backward goes through both: what one loss weighs in which model is not known."""
    models = [TinyModel(), TinyModel()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    options: dict[str, Any] = {"summary": False, "accumulation_steps": 1}
    with (
        accumaudit.attach(models[0], optimizers[0], log_dir=tmp_path / "0", **options),
        accumaudit.attach(models[1], optimizers[1], log_dir=tmp_path / "1", **options),
    ):
        for ids in batches(2):
            first, second = (token_loss(model(ids), ids) / TOKENS for model in models)
            (first + second).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for folder in (tmp_path / "0", tmp_path / "1"):
        assert [entry["loss_weight"] for entry in updates(folder)] == [[None], [None]]


def test_an_optimizer_that_takes_the_place_of_the_attached_one_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it used up is counted, not kept."""
    monkeypatch.setattr(tracks, "DISCARDED", 8)
    model = TinyModel()
    attached, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with accumaudit.attach(model, attached, log_dir=tmp_path, summary=False) as audit:
        for place, ids in enumerate(batches(42)):
            (token_loss(model(ids), ids) / TOKENS).backward()
            (other if place < 41 else attached).step()
            model.zero_grad()
        assert audit._recorder is not None
        window = audit._recorder.tracks[0].window
        assert max(len(window.micro_steps), len(window.events) / 4) <= 9
    (update,) = updates(tmp_path)
    assert (update["microbatches"], update["discarded_microbatches"]) == (1, 41)
    (mark,) = marks(tmp_path, "not_recorded")
    assert "a SGD that is not attached steps parameters" in mark["name"]


class Around(torch.optim.Optimizer):
    """Steps another optimizer, of the same parameters, as lookahead and sharpness-aware ones do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("attached", ["inner", "outer"])
def test_an_optimizer_around_another_takes_nothing_from_it(tmp_path: Path, attached: str) -> None:
    model = TinyModel()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = Around(inner)
    optimizer = inner if attached == "inner" else outer
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(3):
            (token_loss(model(ids), ids) / TOKENS).backward()
            outer.step()
            outer.zero_grad()
    assert [entry["optimizer_update_id"] for entry in updates(tmp_path)] == [1, 2, 3]
    assert marks(tmp_path, "not_recorded") == []
