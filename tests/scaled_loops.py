"""Loops in mixed precision: losses scaled, by a scaler or by hand, and what is recorded of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from tests.loops import HEALTHY, TOKENS, Loop, TinyModel, Training, batches, plain, token_loss

Finish = Callable[[Training], None]

SCALE = 1024.0


def make_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=SCALE, growth_interval=2)


def overflowing(logits: Tensor) -> Tensor:
    """The gradient of these logits leaves the range of 16 bit; the loss itself does not."""
    logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
    return logits


def scaled(finish: Finish, overflows: tuple[int, ...] = ()) -> Callable[[Training], None]:
    """Three windows; micro-steps of these places, counted from 1 over all windows, overflow."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            logits = training.model(ids)
            loss = token_loss(overflowing(logits) if place in overflows else logits, ids) / training.divisor
            training.scaler.scale(loss).backward()
            if place % 4 == 0:
                finish(training)
                training.optimizer.zero_grad()

    return run


def step(training: Training) -> bool:
    """Step and update; whether the scaler did not skip."""
    scale = training.scaler.get_scale()
    training.scaler.step(training.optimizer)
    training.scaler.update()
    return training.scaler.get_scale() >= scale


def clip(training: Training, limit: float = 1.0) -> None:
    clip_grad_norm_(training.model.parameters(), limit)


def unscaled_and_clipped(training: Training) -> None:
    training.scaler.unscale_(training.optimizer)
    clip(training)
    if step(training):
        training.scheduler.step()


def schedule_not_held(training: Training) -> None:
    training.scaler.unscale_(training.optimizer)
    clip(training)
    step(training)
    training.scheduler.step()


def unscaled_by_the_step(training: Training) -> None:
    if step(training):
        training.scheduler.step()


def unscaled_and_not_clipped(training: Training) -> None:
    training.scaler.unscale_(training.optimizer)
    unscaled_by_the_step(training)


def norm_logged(training: Training) -> None:
    training.scaler.unscale_(training.optimizer)
    clip(training, math.inf)
    unscaled_by_the_step(training)


def clipped_before_unscale(training: Training) -> None:
    clip(training)
    unscaled_by_the_step(training)


def clipped_on_both_sides(training: Training) -> None:
    clip(training, 10 * SCALE)
    unscaled_and_clipped(training)


def scaler_passed_by(training: Training) -> None:
    training.optimizer.step()
    training.scheduler.step()


def unscaled_by_hand(training: Training) -> None:
    """Some loops use a scaler for its scale alone."""
    for parameter in training.model.parameters():
        assert parameter.grad is not None
        parameter.grad /= training.scaler.get_scale()
    training.optimizer.step()
    training.scheduler.step()


def scale_set_by_hand(training: Training) -> None:
    training.scaler.step(training.optimizer)
    training.scaler.update(training.scaler.get_scale() / 2)
    training.scheduler.step()


def updated_before_the_step(training: Training) -> None:
    training.scaler.unscale_(training.optimizer)
    clip(training)
    training.scaler.update()
    training.optimizer.step()
    training.scheduler.step()


def hysteresis(training: Training) -> None:
    """The first overflow leaves the scale where it is."""
    before = state_step(training.optimizer)
    training.scaler.step(training.optimizer)
    if state_step(training.optimizer) > before:
        training.scaler.update()
        training.scheduler.step()
    else:
        training.scaler.update(training.scaler.get_scale())


def state_step(optimizer: Optimizer) -> int:
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def skipped_by_the_loop(training: Training) -> None:
    """The loop looks at the norm and leaves the window out; the scaler is updated all the same."""
    training.scaler.unscale_(training.optimizer)
    norm = clip_grad_norm_(training.model.parameters(), 1.0)
    if norm.isfinite():
        training.scaler.step(training.optimizer)
        training.scheduler.step()
    training.scaler.update()


def unscaled_per_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(8), 1):
        training.scaler.scale(training.loss(ids)).backward()
        training.scaler.unscale_(training.optimizer)
        training.scaler.update()
        if place % 4 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()


def unscaled_after_the_first(training: Training) -> None:
    for place, ids in enumerate(batches(8), 1):
        training.scaler.scale(training.loss(ids)).backward()
        if place % 4 == 1:
            training.scaler.unscale_(training.optimizer)
        if place % 4 == 0:
            step(training)
            training.optimizer.zero_grad()


def last_not_scaled(training: Training) -> None:
    for place, ids in enumerate(batches(8), 1):
        loss = training.loss(ids)
        (loss if place % 4 == 0 else training.scaler.scale(loss)).backward()
        if place % 4 == 0:
            step(training)
            training.optimizer.zero_grad()


def scale_restored_inside(training: Training) -> None:
    for place, ids in enumerate(batches(8), 1):
        training.scaler.scale(training.loss(ids)).backward()
        if place == 6:
            training.scaler.load_state_dict(training.scaler.state_dict() | {"scale": SCALE / 4})
        if place % 4 == 0:
            step(training)
            training.optimizer.zero_grad()


def clipped_per_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(8), 1):
        training.scaler.scale(training.loss(ids)).backward()
        clip(training, SCALE)
        if place % 4 == 0:
            step(training)
            training.optimizer.zero_grad()


def losses_scaled_as_a_list(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        halves = [token_loss(training.model(half), half) / training.divisor for half in ids.chunk(2)]
        torch.autograd.backward(training.scaler.scale(halves))
        if place % 4 == 0:
            unscaled_and_clipped(training)
            training.optimizer.zero_grad()


def window_summed_then_scaled(training: Training) -> None:
    for _ in range(3):
        losses = [token_loss(training.model(ids), ids) / (4 * TOKENS) for ids in batches(4)]
        training.scaler.scale(torch.stack(losses).sum()).backward()
        unscaled_and_clipped(training)
        training.optimizer.zero_grad()


def under_autocast(dtype: torch.dtype) -> Callable[[Training], None]:
    """The forward in 16 bit, the loss in 32."""

    def forward() -> AbstractContextManager[None]:
        return torch.autocast("cpu", dtype)

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            with forward():
                logits = training.model(ids)
            loss = token_loss(logits.float(), ids) / training.divisor
            training.scaler.scale(loss).backward()
            if place % 4 == 0:
                unscaled_and_clipped(training)
                training.optimizer.zero_grad()

    return run


def fused(model: TinyModel) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)]


def foreach(model: TinyModel) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)]


def momentum(model: TinyModel) -> list[Optimizer]:
    """Its state holds no count of steps."""
    return [torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)]


MICRO = "FBFBFBFB"
CLIPPED = [f"Z{MICRO}UCOGS"] * 3
ONE_SKIPPED = [f"Z{MICRO}UCOGS", f"Z{MICRO}UCXG", f"Z{MICRO}UCOGS"]
IN_KERNEL = [f"Z{MICRO}OGS", f"Z{MICRO}XG", f"Z{MICRO}OGS"]
OVERFLOW = scaled(unscaled_and_clipped, overflows=(6,))
SCALED = {
    "scaler": Loop(scaled(unscaled_and_clipped), CLIPPED, scaler=make_scaler),
    "scaler switched off": Loop(plain, HEALTHY),
    "scaler switched off, all its calls": Loop(scaled(unscaled_and_clipped), HEALTHY),
    "an overflow": Loop(OVERFLOW, ONE_SKIPPED, scaler=make_scaler),
    "an overflow, fused": Loop(OVERFLOW, ONE_SKIPPED, scaler=make_scaler, optimizers=fused),
    "an overflow, foreach": Loop(OVERFLOW, ONE_SKIPPED, scaler=make_scaler, optimizers=foreach),
    "an overflow, without a count of steps": Loop(
        OVERFLOW, ONE_SKIPPED, scaler=make_scaler, optimizers=momentum
    ),
    "the first two overflow": Loop(
        scaled(unscaled_and_clipped, overflows=(2, 7)),
        [f"Z{MICRO}UCXG"] * 2 + CLIPPED[:1],
        scaler=make_scaler,
    ),
    "an overflow, the schedule not held": Loop(
        scaled(schedule_not_held, overflows=(6,)),
        [f"Z{MICRO}UCOGS", f"Z{MICRO}UCXGS", f"Z{MICRO}UCOGS"],
        scaler=make_scaler,
        codes={"ACC302"},
    ),
    "unscaled by the step": Loop(
        scaled(unscaled_by_the_step, overflows=(6,)),
        [f"Z{MICRO}UOGS", f"Z{MICRO}UXG", f"Z{MICRO}UOGS"],
        scaler=make_scaler,
    ),
    "unscaled in the kernel": Loop(
        scaled(unscaled_by_the_step, overflows=(6,)), IN_KERNEL, scaler=make_scaler, optimizers=fused
    ),
    "unscaled and not clipped": Loop(
        scaled(unscaled_and_not_clipped), [f"Z{MICRO}UOGS"] * 3, scaler=make_scaler
    ),
    "norm logged under a scaler": Loop(scaled(norm_logged), [f"Z{MICRO}UOGS"] * 3, scaler=make_scaler),
    "clipped before unscale": Loop(
        scaled(clipped_before_unscale), [f"Z{MICRO}CUOGS"] * 3, scaler=make_scaler, codes={"ACC402"}
    ),
    "clipped before unscale, in the kernel": Loop(
        scaled(clipped_before_unscale),
        [f"Z{MICRO}COGS"] * 3,
        scaler=make_scaler,
        optimizers=fused,
        codes={"ACC402"},
    ),
    "clipped on both sides of unscale": Loop(
        scaled(clipped_on_both_sides), [f"Z{MICRO}CUCOGS"] * 3, scaler=make_scaler, codes={"ACC402"}
    ),
    "the scaler passed by": Loop(
        scaled(scaler_passed_by),
        [f"Z{MICRO}OS"] * 3,
        weights=[SCALE] * 3,
        scaler=make_scaler,
        codes={"ACC703"},
    ),
    "unscaled by hand": Loop(scaled(unscaled_by_hand), [f"Z{MICRO}MOS"] * 3, scaler=make_scaler),
    "scale set by hand": Loop(scaled(scale_set_by_hand), [f"Z{MICRO}UOGS"] * 3, scaler=make_scaler),
    "updated before the step": Loop(
        scaled(updated_before_the_step), [f"Z{MICRO}UCGOS"] * 3, scaler=make_scaler, codes={"ACC703"}
    ),
    "hysteresis": Loop(
        scaled(hysteresis, overflows=(6,)),
        [f"Z{MICRO}UOGS", f"Z{MICRO}UXG", f"Z{MICRO}UOGS"],
        scaler=make_scaler,
    ),
    "an overflow, left out by the loop": Loop(
        scaled(skipped_by_the_loop, overflows=(6,)),
        [f"Z{MICRO}UCOGS", f"Z{MICRO}UCGZ{MICRO}UCOGS"],
        [4, 4],
        [0, 4],
        [1.0, 1.0],
        scaler=make_scaler,
    ),
    "unscaled per micro-step": Loop(
        unscaled_per_micro_step,
        ["ZFBUGFBUGFBUGFBUGO"] * 2,
        [4, 4],
        [0, 0],
        [None, None],
        scaler=make_scaler,
        codes={"ACC702", "ACC703"},
    ),
    "unscaled after the first micro-step": Loop(
        unscaled_after_the_first,
        ["ZFBUFBFBFBOG"] * 2,
        [4, 4],
        [0, 0],
        [None, None],
        scaler=make_scaler,
        codes={"ACC702"},
    ),
    "the last micro-step not scaled": Loop(
        last_not_scaled,
        [f"Z{MICRO}UOG"] * 2,
        [4, 4],
        [0, 0],
        [None, None],
        scaler=make_scaler,
        codes={"ACC706"},
    ),
    "the scale restored inside a window": Loop(
        scale_restored_inside,
        [f"Z{MICRO}UOG"] * 2,
        [4, 4],
        [0, 0],
        [1.0, None],
        scaler=make_scaler,
        codes={"ACC701"},
    ),
    "clipped per micro-step, under a scaler": Loop(
        clipped_per_micro_step,
        ["ZFBCFBCFBCFBCUOG"] * 2,
        [4, 4],
        [0, 0],
        [1.0, 1.0],
        scaler=make_scaler,
        codes={"ACC401"},
    ),
    "losses scaled as a list": Loop(losses_scaled_as_a_list, ["ZFFBFFBFFBFFBUCOGS"] * 3, scaler=make_scaler),
    "a window summed, then scaled": Loop(
        window_summed_then_scaled, ["ZFFFFBUCOGS"] * 3, [1, 1, 1], scaler=make_scaler, steps=1
    ),
    "half precision": Loop(under_autocast(torch.float16), CLIPPED, scaler=make_scaler),
    "bfloat16 without a scaler": Loop(under_autocast(torch.bfloat16), HEALTHY),
}
