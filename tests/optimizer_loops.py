"""Loops with several optimizers, closures, averages and schedules, and what is recorded of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.loops import HEALTHY, Loop, TinyModel, Training, batches, plain, token_loss
from tests.scaled_loops import make_scaler, overflowing, step


def matrices_apart(model: TinyModel, rest: Callable[[Iterable[Tensor]], Optimizer]) -> list[Optimizer]:
    """Muon for the matrices, another for what is left."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), rest(others)]


muon_and_adamw = partial(matrices_apart, rest=partial(torch.optim.AdamW, lr=1e-2))
muon_and_fused = partial(matrices_apart, rest=partial(torch.optim.AdamW, lr=1e-2, fused=True))


def for_each_parameter(model: TinyModel) -> list[Optimizer]:
    return [torch.optim.AdamW([parameter], lr=1e-2) for parameter in model.parameters()]


def step_all(training: Training) -> None:
    """Every optimizer, then every schedule, then clear."""
    clip_grad_norm_(training.model.parameters(), 1.0)
    for optimizer in training.optimizers:
        optimizer.step()
    for scheduler in training.schedulers:
        scheduler.step()
    training.model.zero_grad()


def together(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            step_all(training)


def one_after_the_other(training: Training) -> None:
    """Step, schedule and clear one optimizer, then the next."""
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            for optimizer, scheduler in zip(training.optimizers, training.schedulers, strict=True):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def under_one_scaler(training: Training) -> None:
    """The scaler skips an optimizer by its own gradients; here the one that has the head's."""
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        loss = token_loss(overflowing(logits) if place == 6 else logits, ids) / training.divisor
        training.scaler.scale(loss).backward()
        if place % 4 == 0:
            scale = training.scaler.get_scale()
            for optimizer in training.optimizers:
                training.scaler.step(optimizer)
            training.scaler.update()
            if training.scaler.get_scale() >= scale:
                for scheduler in training.schedulers:
                    scheduler.step()
            training.model.zero_grad()


def one_of_them_overflows(training: Training) -> None:
    """The head's bias alone has an infinite gradient: its optimizer is skipped, and the other steps."""

    def once(gradient: Tensor) -> Tensor:
        handle.remove()
        return torch.full_like(gradient, math.inf)

    for place, ids in enumerate(batches(12), 1):
        if place == 6:
            handle = training.model.head.bias.register_hook(once)
        training.scaler.scale(training.loss(ids)).backward()
        if place % 4 == 0:
            for optimizer, scheduler in zip(training.optimizers, training.schedulers, strict=True):
                training.scaler.step(optimizer)
                if place != 8 or optimizer is training.optimizers[0]:
                    scheduler.step()
            training.scaler.update()
            training.model.zero_grad()


def taken_in_turn(training: Training) -> None:
    """Both backwards reach all parameters, and the optimizers step in turn."""
    for place, ids in enumerate(batches(8), 1):
        training.loss(ids).backward()
        if place % 2 == 0:
            optimizer = training.optimizers[place // 2 % 2]
            optimizer.step()
            training.model.zero_grad()


def inside_backward(training: Training) -> None:
    for optimizer in training.optimizers:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.register_post_accumulate_grad_hook(partial(step_and_clear, optimizer))
    for ids in batches(3):
        training.loss(ids).backward()
        for scheduler in training.schedulers:
            scheduler.step()


def step_and_clear(optimizer: Optimizer, _: Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


class Pair(TinyModel):
    """A generator and a discriminator, with the tokens of the tiny model."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 16)
        self.discriminator = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        judged: Tensor = self.discriminator(self.embedding(ids).mean(1))
        return judged


def adversaries(model: TinyModel) -> list[Optimizer]:
    assert isinstance(model, Pair)
    return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (model.discriminator, model.generator)]


def gan(training: Training) -> None:
    model = training.model
    assert isinstance(model, Pair)
    discriminator, generator = training.optimizers
    made_up, real = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    for ids in batches(3):
        discriminator.zero_grad()
        fake = model.discriminator(model.generator(torch.randn(2, 4)).detach())
        judged = torch.cat([model(ids), fake])
        functional.cross_entropy(judged, torch.cat([real, made_up])).backward()
        discriminator.step()
        generator.zero_grad()
        functional.cross_entropy(model.discriminator(model.generator(torch.randn(2, 4))), real).backward()
        generator.step()


def lbfgs(model: TinyModel) -> list[Optimizer]:
    return [torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)]


def by_closure(training: Training) -> None:
    def evaluate(ids: Tensor) -> float:
        training.optimizer.zero_grad()
        loss = training.loss(ids)
        loss.backward()
        return float(loss.detach())

    for ids in batches(3):
        training.optimizer.step(partial(evaluate, ids))
        training.scheduler.step()


class Climbing(torch.optim.SGD):
    """SAM, its own base: to the worst neighbour, the gradient there, back, and a step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        climbs = [0.01 * parameter.grad for parameter in parameters]
        torch._foreach_add_(parameters, climbs)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(parameters, climbs)
        return super().step()


def sam(training: Training) -> None:
    def evaluate(ids: Tensor) -> float:
        training.optimizer.zero_grad()
        training.loss(ids).backward()
        return 0.0

    for ids in batches(3):
        evaluate(ids)
        training.optimizer.step(partial(evaluate, ids))
        training.scheduler.step()


def averaged(update: Callable[[AveragedModel, Training, int], None]) -> Callable[[Training], None]:
    """A moving average, made when the hooks are there already."""

    def run(training: Training) -> None:
        average = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        for place, ids in enumerate(batches(12), 1):
            training.loss(ids).backward()
            if place % 4 == 0:
                training.step()
            update(average, training, place)

    return run


def after_each_update(average: AveragedModel, training: Training, place: int) -> None:
    if place % 4 == 0:
        average.update_parameters(training.model)


def after_each_micro_step(average: AveragedModel, training: Training, place: int) -> None:
    average.update_parameters(training.model)


def told_to_the_audit(_: AveragedModel, training: Training, place: int) -> None:
    if place % 4 == 0:
        training.audit.ema_updated(decay=0.99)


def on_a_skip(training: Training) -> None:
    average = AveragedModel(training.model)
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        loss = token_loss(overflowing(logits) if place == 6 else logits, ids) / training.divisor
        training.scaler.scale(loss).backward()
        if place % 4 == 0:
            if step(training):
                training.scheduler.step()
            average.update_parameters(training.model)
            training.optimizer.zero_grad()


def scheduler_made_late(training: Training) -> None:
    training.audit.scheduler = training.scheduler = schedules.LinearLR(training.optimizer)
    plain(training)


def state_loaded(training: Training) -> None:
    """Between two windows the loop goes back to the state of optimizer and schedule that it just saved."""
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.step()
        if place == 8:
            training.optimizer.load_state_dict(training.optimizer.state_dict())
            training.scheduler.load_state_dict(training.scheduler.state_dict())


def group_added(training: Training) -> None:
    """The head joins after the first window; it is trained from the second on."""
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.optimizer.step()
            training.model.zero_grad()
        if place == 4:
            training.optimizer.add_param_group({"params": training.model.head.parameters(), "lr": 1e-3})


def without_head(model: TinyModel) -> list[Optimizer]:
    head = {id(parameter) for parameter in model.head.parameters()}
    return [torch.optim.AdamW([p for p in model.parameters() if id(p) not in head], lr=1e-2)]


def by_loss(training: Training) -> None:
    """ReduceLROnPlateau is told the loss."""
    for place, ids in enumerate(batches(12), 1):
        loss = training.loss(ids)
        loss.backward()
        if place % 4 == 0:
            clip_grad_norm_(training.model.parameters(), 1.0)
            training.optimizer.step()
            training.scheduler.step(float(loss.detach()))
            training.optimizer.zero_grad()


def by_fraction(training: Training) -> None:
    """CosineAnnealingWarmRestarts is told how far the epoch is."""
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            clip_grad_norm_(training.model.parameters(), 1.0)
            training.optimizer.step()
            training.scheduler.step(place / 12)
            training.optimizer.zero_grad()


def momentum(model: TinyModel) -> list[Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)]


def climbing(model: TinyModel) -> list[Optimizer]:
    torch.optim.SGD(model.parameters())  # from now on torch runs hooks around SGD's own step too
    return [Climbing(model.parameters(), lr=0.1)]


def no_schedule(_: Optimizer) -> None:
    return None


def chained(optimizer: Optimizer) -> Any:
    return schedules.ChainedScheduler(
        [schedules.LinearLR(optimizer), schedules.ExponentialLR(optimizer, 0.9)]
    )


def sequential(optimizer: Optimizer) -> Any:
    parts = [schedules.LinearLR(optimizer, total_iters=1), schedules.CosineAnnealingLR(optimizer, 3)]
    return schedules.SequentialLR(optimizer, parts, milestones=[1])


def nested(optimizer: Optimizer) -> Any:
    return schedules.ChainedScheduler([sequential(optimizer), schedules.ExponentialLR(optimizer, 0.9)])


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "ConstantLR": schedules.ConstantLR,
    "LinearLR": schedules.LinearLR,
    "ExponentialLR": partial(schedules.ExponentialLR, gamma=0.9),
    "StepLR": partial(schedules.StepLR, step_size=2),
    "MultiStepLR": partial(schedules.MultiStepLR, milestones=[1, 2]),
    "MultiplicativeLR": partial(schedules.MultiplicativeLR, lr_lambda=lambda _: 0.9),
    "PolynomialLR": partial(schedules.PolynomialLR, total_iters=4, power=2.0),
    "CosineAnnealingLR": partial(schedules.CosineAnnealingLR, T_max=4),
    "CosineAnnealingWarmRestarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=2),
    "OneCycleLR": partial(schedules.OneCycleLR, max_lr=0.1, total_steps=4),
    "SWALR": partial(SWALR, swa_lr=0.05, anneal_epochs=2),
    "ChainedScheduler": chained,
    "SequentialLR": sequential,
    "SequentialLR in a ChainedScheduler": nested,
}

MICRO = "FBFBFBFB"
OF_SCHEDULES = {
    **{name: Loop(plain, HEALTHY, schedule=schedule) for name, schedule in SCHEDULES.items()},
    "CyclicLR": Loop(
        plain,
        HEALTHY,
        optimizers=momentum,
        schedule=partial(schedules.CyclicLR, base_lr=1e-3, max_lr=1e-2, step_size_up=2),
    ),
    "ReduceLROnPlateau": Loop(by_loss, HEALTHY, schedule=schedules.ReduceLROnPlateau),
    "CosineAnnealingWarmRestarts, by fractions": Loop(
        by_fraction, HEALTHY, schedule=partial(schedules.CosineAnnealingWarmRestarts, T_0=2)
    ),
    "scheduler made late": Loop(scheduler_made_late, HEALTHY, schedule=no_schedule),
    "state loaded": Loop(state_loaded, HEALTHY),
    "group added": Loop(group_added, [f"Z{MICRO}O"] * 3, optimizers=without_head, schedule=no_schedule),
}


def several(run: Callable[[Training], None], words: list[str], **more: Any) -> Loop:
    """A row of a loop with several optimizers: the words of the first, then of the second, and so on."""
    attempts = len(words)
    lists: dict[str, Any] = {"kept": [4] * attempts, "discarded": [0] * attempts, "weights": [1.0] * attempts}
    return Loop(run, words, **lists | more)


TWO = [*[f"Z{MICRO}COoS"] * 3, *[f"Z{MICRO}CoOS"] * 3]
PARAMETERS = len(list(TinyModel().parameters()))
ONE_EACH = [f"Z{MICRO}C{'o' * before}O{'o' * (PARAMETERS - 1 - before)}S" for before in range(PARAMETERS)]
BEFORE = (6, 5, 4, 2, 3, 1, 0)
"""How many of the parameters have their gradient before this one."""
INSIDE = [f"ZF{'o' * before}BO{'o' * (PARAMETERS - 1 - before)}S" for before in BEFORE]

OF_OPTIMIZERS = {
    "two optimizers": several(together, TWO, optimizers=muon_and_adamw),
    "two optimizers, one fused": several(together, TWO, optimizers=muon_and_fused),
    "one optimizer after the other": several(
        one_after_the_other, [*[f"Z{MICRO}OoS"] * 3, *[f"Z{MICRO}oOS"] * 3], optimizers=muon_and_adamw
    ),
    "two optimizers under one scaler": several(
        under_one_scaler,
        [
            *(f"Z{MICRO}UOoGS", f"Z{MICRO}UXoG", f"Z{MICRO}UOoGS"),
            *(f"Z{MICRO}oUOGS", f"Z{MICRO}oUXG", f"Z{MICRO}oUOGS"),
        ],
        optimizers=muon_and_adamw,
        scaler=make_scaler,
    ),
    "two optimizers under one scaler, one fused": several(
        under_one_scaler,
        [
            *(f"Z{MICRO}UOoGS", f"Z{MICRO}UXoG", f"Z{MICRO}UOoGS"),
            *(f"Z{MICRO}oOGS", f"Z{MICRO}oXG", f"Z{MICRO}oOGS"),
        ],
        optimizers=muon_and_fused,
        scaler=make_scaler,
    ),
    "one of two optimizers overflows": several(
        one_of_them_overflows,
        [*[f"Z{MICRO}UOoGS"] * 3, f"Z{MICRO}oUOGS", f"Z{MICRO}oUXG", f"Z{MICRO}oUOGS"],
        optimizers=muon_and_adamw,
        scaler=make_scaler,
    ),
    "two optimizers in turn": several(
        taken_in_turn,
        ["ZFBFBoZFBFBO", "ZFBFBoZFBFBO", "ZFBFBO", "ZFBFBoZFBFBO"],
        kept=[2] * 4,
        discarded=[2, 2, 0, 2],
        leftover=0,
        optimizers=muon_and_adamw,
        steps=2,
    ),
    "an optimizer for each parameter": several(
        together, [word for word in ONE_EACH for _ in range(3)], optimizers=for_each_parameter
    ),
    "inside backward": several(
        inside_backward,
        [word for word in INSIDE for _ in range(3)],
        kept=[1] * 3 * PARAMETERS,
        optimizers=for_each_parameter,
        steps=1,
    ),
    "adversaries": several(
        gan,
        ["ZFBO", "BoZFBO", "BoZFBO", "oZBOo", "ZBOo", "ZBO"],
        kept=[1] * 6,
        discarded=[0, 1, 1, 0, 0, 0],
        optimizers=adversaries,
        schedule=no_schedule,
        model=Pair,
        steps=1,
    ),
    "LBFGS": several(
        by_closure, ["(ZFBZFBZFB)OS"] * 3, kept=[1] * 3, discarded=[2] * 3, optimizers=lbfgs, steps=1
    ),
    "AdamW by closure": several(by_closure, ["(ZFB)OS"] * 3, kept=[1] * 3, steps=1),
    "SAM by closure": several(
        sam, ["ZFB(ZFB)OS"] * 3, kept=[1] * 3, discarded=[1] * 3, optimizers=climbing, steps=1
    ),
}
AVERAGES = {
    "average": Loop(averaged(after_each_update), [f"Z{MICRO}COES"] * 3),
    "average, told to the audit": Loop(averaged(told_to_the_audit), [f"Z{MICRO}COSE"] * 3),
    "average per micro-step": Loop(
        averaged(after_each_micro_step), ["ZFBEFBEFBEFBCOES"] * 3, codes={"ACC805"}
    ),
    "average on a skip": Loop(
        on_a_skip,
        [f"Z{MICRO}UOGES", f"Z{MICRO}UXGE", f"Z{MICRO}UOGES"],
        scaler=make_scaler,
        codes={"ACC805"},
    ),
}
SEVERAL = OF_SCHEDULES | OF_OPTIMIZERS | AVERAGES
