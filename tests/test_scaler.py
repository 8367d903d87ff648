"""What is recorded of loss scaling: torch's scaler, fused optimizers, scales made by hand."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import accumaudit
from accumaudit import Audit
from accumaudit.hooks import optimizers
from accumaudit.hooks import track as tracks
from tests.loops import TOKENS, TinyModel, batches, read_records, token_loss, total_weight

SCALE = 1024.0
STEPS = 2


@dataclass
class Scaled:
    """What a loop with a scaler works on."""

    model: TinyModel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    audit: Audit
    overflow_at: tuple[int, ...] = (1,)

    def accumulate(self, update: int) -> None:
        """The backwards of one window; those of some updates overflow."""
        for place, ids in enumerate(batches(STEPS)):
            loss = token_loss(self.model(ids), ids) / (TOKENS * STEPS)
            if update in self.overflow_at and place == 0:
                loss = loss * math.inf
            self.scaler.scale(loss).backward()

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def with_unscale(run: Scaled) -> None:
    for update in range(3):
        run.accumulate(update)
        run.scaler.unscale_(run.optimizer)
        clip_grad_norm_(run.model.parameters(), 0.1)
        run.finish()


def without_unscale(run: Scaled) -> None:
    for update in range(3):
        run.accumulate(update)
        run.finish()


def keywords(run: Scaled) -> None:
    """Everything by keyword."""
    for update in range(3):
        for ids in batches(STEPS):
            loss = token_loss(run.model(ids), ids) / (TOKENS * STEPS)
            run.scaler.scale(outputs=loss * (math.inf if update == 1 else 1)).backward()
        run.scaler.unscale_(optimizer=run.optimizer)
        run.scaler.step(optimizer=run.optimizer)
        run.scaler.update(new_scale=None)
        run.optimizer.zero_grad()


def record(
    loop: Callable[[Scaled], None], folder: Path, *, fused: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """The update records of one loop."""
    run(loop, folder, fused=fused, **options)
    return [entry for entry in read_records(folder) if entry["record"] == "update"]


def run(
    loop: Callable[[Scaled], None],
    folder: Path,
    *,
    fused: bool = False,
    scaler: torch.amp.GradScaler | None = None,
    attached: bool = True,
    **options: Any,
) -> Scaled:
    """Train; with the hooks unless they are not attached."""
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE) if scaler is None else scaler
    audit = Audit(None)
    if attached:
        options = {"accumulation_steps": STEPS, "summary": False, "log_dir": folder, **options}
        audit = accumaudit.attach(model, optimizer, scaler=scaler, **options)
    trained = Scaled(model, optimizer, scaler, audit)
    with audit:
        loop(trained)
    return trained


@pytest.mark.parametrize(
    ("loop", "fused", "words", "evidence"),
    [
        (with_unscale, False, ["ZFBFBUCOG", "ZFBFBUCXG", "ZFBFBUCOG"], "scaler"),
        (without_unscale, False, ["ZFBFBUOG", "ZFBFBUXG", "ZFBFBUOG"], "scaler"),
        (keywords, False, ["ZFBFBUOG", "ZFBFBUXG", "ZFBFBUOG"], "scaler"),
        (with_unscale, True, ["ZFBFBUCOG", "ZFBFBUCXG", "ZFBFBUCOG"], "found_inf"),
        (without_unscale, True, ["ZFBFBOG", "ZFBFBXG", "ZFBFBOG"], "found_inf"),
    ],
)
def test_a_skip_is_told_from_an_update(
    tmp_path: Path, loop: Callable[[Scaled], None], fused: bool, words: list[str], evidence: str
) -> None:
    updates = record(loop, tmp_path, fused=fused)
    assert [update["events"] for update in updates] == words
    assert [update["optimizer_step_skipped"] for update in updates] == [False, True, False]
    assert [update["skip_evidence"] for update in updates] == [None, evidence, None]
    assert [update["optimizer_update_id"] for update in updates] == [1, 1, 2]
    assert [update["optimizer_state_step"] for update in updates] == [1, 1, 2]
    assert [update["grad_scale"] for update in updates] == [SCALE, SCALE, SCALE / 2]
    assert [update["grad_scale_after"] for update in updates] == [SCALE, SCALE / 2, SCALE / 2]
    assert updates[0]["loss_scale"] == [SCALE] * STEPS
    assert [total_weight(update) for update in (updates[0], updates[2])] == pytest.approx([1.0, 1.0])
    assert [update["grad_rescale"] for update in updates] == [1.0] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_norms_and_slices_are_without_the_scale(tmp_path: Path, fused: bool) -> None:
    """The same training without a scaler has the same norms and the same slice of the gradient."""
    scaled = record(without_unscale, tmp_path / "scaled", fused=fused)[0]
    bare = record(
        without_unscale,
        tmp_path / "bare",
        fused=fused,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
    )[0]
    assert bare["events"] == "ZFBFBO"
    assert bare["grad_scale"] is None
    assert scaled["grad_norm_after_clip"] == pytest.approx(bare["grad_norm_after_clip"], rel=1e-5)
    assert scaled["probe_gradient"] == pytest.approx(bare["probe_gradient"], rel=1e-5)


def test_the_probe_measures_what_unscaling_and_the_clip_really_did(tmp_path: Path) -> None:
    update = record(with_unscale, tmp_path)[0]
    assert update["probe_unscale"] == 1 / SCALE
    assert update["grad_norm_after_clip"] == pytest.approx(0.1, rel=1e-4)
    assert update["probe_clip_coefficient"] == pytest.approx(0.1 / update["grad_norm_before_clip"], rel=1e-4)


def test_the_probe_alone_sees_a_clip_of_scaled_gradients(tmp_path: Path) -> None:
    """A fused optimizer and no unscale: the limit is that of gradients 65,536 times too large."""

    def loop(run: Scaled) -> None:
        run.overflow_at = ()
        for update in range(2):
            run.accumulate(update)
            clip_grad_norm_(run.model.parameters(), 1.0)
            run.finish()

    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    update = record(loop, tmp_path, fused=True, scaler=scaler)[0]
    assert update["events"] == "ZFBFBCOG"
    assert update["grad_norm_after_clip"] == pytest.approx(1 / 65536, rel=1e-4)
    norm = update["grad_norm_before_clip"]
    assert update["clips"][0]["norm"] == pytest.approx(norm * 65536)
    assert update["probe_clip_coefficient"] == pytest.approx(1 / (65536 * norm), rel=1e-3)


def test_a_scaler_that_was_not_given_is_seen_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scaler = TinyModel(), torch.amp.GradScaler("cpu", init_scale=SCALE)
    optimizer = torch.optim.AdamW(model.parameters())
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        with_unscale(Scaled(model, optimizer, scaler, audit))
    words = [entry["events"] for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert words == ["ZFBFBUCOG", "ZFBFBUCXG", "ZFBFBUCOG"]


class HystereticScaler(torch.amp.GradScaler):
    """Falls only after a second overflow; each method calls its parent's."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=SCALE, backoff_factor=0.5)
        self.left = 2

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)

    def update(self, new_scale: Any = None) -> None:
        before = self.get_scale()
        super().update(new_scale)
        if self.get_scale() < before and self.left > 1:
            self.left -= 1
            super().update(before)


def test_methods_that_a_subclass_overrides_are_heard_once(tmp_path: Path) -> None:
    updates = record(with_unscale, tmp_path, scaler=HystereticScaler())
    assert [update["events"] for update in updates] == ["ZFBFBUCOG", "ZFBFBUCXG", "ZFBFBUCOG"]
    assert [update["grad_scale_after"] for update in updates] == [SCALE] * 3


def test_a_scale_that_nobody_takes_off_weighs(tmp_path: Path) -> None:
    """The loop scales the loss and steps the optimizer itself, past the scaler."""

    def loop(run: Scaled) -> None:
        run.overflow_at = ()
        run.accumulate(0)
        run.optimizer.step()

    (update,) = record(loop, tmp_path)
    assert total_weight(update) == pytest.approx(SCALE)


def test_a_scale_that_is_divided_out_by_hand_is_measured(tmp_path: Path) -> None:
    """With the scaler's own scale, and with one that the loop made."""

    def by_scaler(run: Scaled) -> None:
        run.overflow_at = ()
        run.accumulate(0)
        for parameter in run.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= run.scaler.get_scale()
        run.optimizer.step()

    def by_hand(run: Scaled) -> None:
        for ids in batches(STEPS):
            (token_loss(run.model(ids), ids) / (TOKENS * STEPS) * SCALE).backward()
        for parameter in run.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= SCALE
        run.optimizer.step()

    for loop, scale in ((by_scaler, SCALE), (by_hand, 1.0)):
        (update,) = record(loop, tmp_path / loop.__name__)
        assert update["events"] == "ZFBFBMO"
        assert update["loss_scale"] == [scale] * STEPS
        assert update["grad_rescale"] == 1 / SCALE
        assert total_weight(update) == pytest.approx(1.0)


def test_micro_steps_with_and_without_the_scale_are_told_apart(tmp_path: Path) -> None:
    def loop(run: Scaled) -> None:
        first, second = batches(2)
        run.scaler.scale(token_loss(run.model(first), first)).backward()
        token_loss(run.model(second), second).backward()
        run.finish()

    (update,) = record(loop, tmp_path)
    assert update["loss_scale"] == [SCALE, 1.0]


def test_a_loss_divided_after_it_was_scaled_still_carries_the_scale(tmp_path: Path) -> None:
    def loop(run: Scaled) -> None:
        for ids in batches(STEPS):
            (run.scaler.scale(token_loss(run.model(ids), ids)) / (TOKENS * STEPS)).backward()
        run.finish()

    (update,) = record(loop, tmp_path)
    assert update["loss_scale"] == [SCALE] * STEPS
    assert total_weight(update) == pytest.approx(1.0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("loop", [with_unscale, without_unscale])
def test_scaled_training_is_bitwise_the_same(
    tmp_path: Path, loop: Callable[[Scaled], None], fused: bool
) -> None:
    hooked = run(loop, tmp_path, fused=fused)
    bare = run(loop, tmp_path, fused=fused, attached=False)
    for ours, theirs in zip(hooked.model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert hooked.scaler.state_dict() == bare.scaler.state_dict()


def test_a_watched_scaler_is_copied_pickled_and_left_as_it_was(tmp_path: Path) -> None:
    before = {name: torch.amp.GradScaler.__dict__[name] for name in ("scale", "unscale_", "step", "update")}

    def loop(run: Scaled) -> None:
        with_unscale(run)
        assert copy.deepcopy(run.scaler).state_dict() == run.scaler.state_dict()
        assert b"accumaudit" not in pickle.dumps(run.scaler)

    trained = run(loop, tmp_path)
    assert vars(trained.scaler).keys() == vars(torch.amp.GradScaler("cpu")).keys()
    assert {name: torch.amp.GradScaler.__dict__[name] for name in before} == before


@pytest.mark.parametrize("fused", [False, True])
def test_the_counts_of_a_checkpoint_know_of_skips(tmp_path: Path, fused: bool) -> None:
    """Those of a fused optimizer are learnt by the writer alone, which is waited for."""
    states: list[dict[str, Any]] = []

    def loop(run: Scaled) -> None:
        run.overflow_at = (0, 2)
        for update in range(3):
            run.accumulate(update)
            run.finish()
            states.append(run.audit.state_dict())

    run(loop, tmp_path, fused=fused)
    assert [state["optimizers"][0]["updates"] for state in states] == [0, 1, 1]


class SkippingSgd(torch.optim.SGD):
    """Skips by itself, as the optimizers of some engines do: it counts its steps in the state."""

    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        return None


def test_an_optimizer_that_skips_by_itself_is_found_out(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = SkippingSgd(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for factor in (1.0, math.inf, 1.0):
            (ids,) = batches(1)
            (token_loss(model(ids), ids) / TOKENS * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBO", "ZFBX", "ZFBO"]
    assert [update["skip_evidence"] for update in updates] == [None, "state_step", None]
    assert [update["optimizer_update_id"] for update in updates] == [1, 1, 2]


def test_a_rate_of_zero_is_no_skip(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        for ids in batches(2):
            (token_loss(model(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["probe_parameter_changed"] for update in updates] == [False, False]
    assert [update["events"] for update in updates] == ["ZFBO", "ZFBO"]


def test_two_scalers_serve_an_optimizer_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TinyModel()
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    optimizers = [torch.optim.AdamW(body), torch.optim.AdamW(model.head.parameters())]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (64.0, 128.0)]
    ids = batches(1)[0]

    def train(place: int) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss: Tensor = token_loss(model(ids), ids) / TOKENS
        scalers[place].scale(loss).backward()
        scalers[place].step(optimizers[place])
        scalers[place].update()

    with accumaudit.attach(model, optimizers, log_dir=tmp_path, summary=False):
        for _ in range(2):
            train(0)
            train(1)
    records = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    for place, scale in ((0, 64.0), (1, 128.0)):
        own = [entry for entry in records if entry["optimizer"] == place]
        assert [entry["grad_scale"] for entry in own] == [scale, scale]
        assert [total_weight(entry) for entry in own] == pytest.approx([1.0, 1.0])
        assert all(entry["events"].count("G") == 1 for entry in own)


def test_a_fault_while_a_skip_is_read_costs_that_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later attempts of the same loop are recorded."""
    real, calls = optimizers.gradient_norm, iter(range(100))

    def norm(optimizer: torch.optim.Optimizer) -> Tensor | None:
        if next(calls) == 1:
            raise RuntimeError("broken on purpose")
        return real(optimizer)

    monkeypatch.setattr(tracks, "gradient_norm", norm)
    updates = record(without_unscale, tmp_path)
    assert [update["optimizer_update_id"] for update in updates] == [1, 2]
    assert [entry["kind"] for entry in read_records(tmp_path) if entry["record"] == "mark"] == [
        "hook_error",
        "close",
    ]
