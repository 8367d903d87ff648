"""Loops that differ in their forwards, losses and backwards, and what is recorded of each."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.loops import HEALTHY, TOKENS, VOCABULARY, Loop, Training, batches, token_loss


def preference_pairs(training: Training) -> None:
    chosen, rejected = batches(24)[:12], batches(24)[12:]
    for place, (yes, no) in enumerate(zip(chosen, rejected, strict=True), 1):
        margin = token_loss(training.model(no), no) - token_loss(training.model(yes), yes)
        (-functional.logsigmoid(margin) / 4).backward()
        if place % 4 == 0:
            training.step()


def two_backwards(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        (token_loss(logits, ids) / training.divisor).backward(retain_graph=True)
        (logits.square().mean() * 1e-3).backward()
        if place % 4 == 0:
            training.step()


def all_forwards_first(training: Training) -> None:
    for _ in range(3):
        losses = [token_loss(training.model(ids), ids) / (4 * TOKENS) for ids in batches(4)]
        torch.stack(losses).sum().backward()
        training.step()


def all_forwards_first_backward_each(training: Training) -> None:
    for _ in range(3):
        losses = [token_loss(training.model(ids), ids) / (2 * TOKENS) for ids in batches(2)]
        for loss in losses:
            loss.backward()
        training.step()


def method_called(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (training.model.compute_loss(ids) / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def evaluations(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        with torch.no_grad():
            training.loss(ids)
        with torch.inference_mode():
            training.loss(ids)
        training.loss(ids)  # with gradients on, and never used
        if place % 4 == 0:
            training.step()


def gradients_probed(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        loss = training.loss(ids)
        torch.autograd.grad(loss, list(training.model.parameters()), retain_graph=True)
        loss.backward()
        if place % 4 == 0:
            training.step()


def gradients_set_by_hand(training: Training) -> None:
    parameters = list(training.model.parameters())
    for ids in batches(3):
        gradients = torch.autograd.grad(training.loss(ids), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        training.optimizer.step()
        training.optimizer.zero_grad()


def gradient_penalty(training: Training) -> None:
    for ids in batches(3):
        loss = training.loss(ids)
        gradients = torch.autograd.grad(loss, list(training.model.hidden.parameters()), create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        (loss + penalty).backward(inputs=list(training.model.parameters()))
        training.optimizer.step()
        training.optimizer.zero_grad()


def exceptions(training: Training) -> None:
    done = 0
    for place, ids in enumerate(batches(16)):
        try:
            logits = training.model(ids.float() if place == 1 else ids)
            if place == 2:
                raise RuntimeError("between forward and loss")
            loss = token_loss(logits, ids.clamp(min=VOCABULARY) if place == 3 else ids) / training.divisor
        except (RuntimeError, IndexError):
            continue
        loss.backward()
        done += 1
        if done % 4 == 0:
            training.step()


def non_finite_skipped(training: Training) -> None:
    done = 0
    for place, ids in enumerate(batches(13)):
        loss = training.loss(ids) * (math.nan if place == 2 else 1.0)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        done += 1
        if done % 4 == 0:
            training.step()


def chunked(training: Training, backward_each: bool = False) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        targets = ids[:, 1:].reshape(-1)
        losses = []
        for part, target in zip(logits.chunk(3), targets.chunk(3), strict=True):
            loss = functional.cross_entropy(part, target, reduction="sum") / training.divisor
            losses.append(loss)
            if backward_each:
                loss.backward(retain_graph=True)
        if not backward_each:
            torch.stack(losses).sum().backward()
        if place % 4 == 0:
            training.step()


def chunked_backward_each(training: Training) -> None:
    chunked(training, backward_each=True)


def checkpointed_loss(reentrant: bool) -> Callable[[Training], None]:
    """The loss itself is recomputed in the backward."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            loss = checkpoint(token_loss, training.model(ids), ids, use_reentrant=reentrant)
            (loss / training.divisor).backward()
            if place % 4 == 0:
                training.step()

    return run


def masked_losses(training: Training) -> None:
    mask = torch.ones(2, 7)
    mask[0, :3] = 0
    for place, ids in enumerate(batches(12), 1):
        losses = token_loss(training.model(ids), ids, reduction="none").view(2, 7) * mask
        (losses.sum() / (mask.sum() * 4)).backward()
        if place % 4 == 0:
            training.step()


def class_weights_mean(training: Training) -> None:
    weight = torch.linspace(0.5, 1.5, VOCABULARY)
    for place, ids in enumerate(batches(12), 1):
        (token_loss(training.model(ids), ids, "mean", weight=weight) / 4).backward()
        if place % 4 == 0:
            training.step()


def label_smoothing(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (token_loss(training.model(ids), ids, label_smoothing=0.1) / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def soft_targets(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        soft = functional.one_hot(ids[:, 1:].reshape(-1), VOCABULARY).float()
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        (functional.cross_entropy(logits, soft, reduction="sum") / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def negative_log_likelihood(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = functional.log_softmax(training.model(ids)[:, :-1].reshape(-1, VOCABULARY), -1)
        (functional.nll_loss(logs, ids[:, 1:].reshape(-1), reduction="sum") / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def loss_module(training: Training) -> None:
    criterion = nn.CrossEntropyLoss()
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        loss = criterion(logits, ids[:, 1:].reshape(-1))
        loss /= 4  # in place, after the loss was seen
        loss.backward()
        if place % 4 == 0:
            training.step()


def linear_cross_entropy(training: Training) -> None:
    hidden = nn.Linear(16, 16)
    for place, ids in enumerate(batches(12), 1):
        states = hidden(training.model.embedding(ids))[:, :-1].reshape(-1, 16)
        weight = training.model.head.weight
        loss = functional.linear_cross_entropy(states, weight, ids[:, 1:].reshape(-1), reduction="sum")
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def two_terms(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        main = token_loss(logits, ids) / training.divisor
        ahead = functional.cross_entropy(logits[:, :-2].reshape(-1, VOCABULARY), ids[:, 2:].reshape(-1))
        (main + 0.3 * ahead / 4).backward()
        if place % 4 == 0:
            training.step()


def own_loss(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = torch.log_softmax(training.model(ids)[:, :-1], -1)
        loss = -logs.gather(-1, ids[:, 1:, None]).sum()
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def own_loss_declared(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = torch.log_softmax(training.model(ids)[:, :-1], -1)
        loss = -logs.gather(-1, ids[:, 1:, None]).sum()
        training.audit.observe_loss(loss, valid_tokens=TOKENS, reduction="sum")
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def zero_token_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        targets = ids[:, 1:].reshape(-1) if place % 4 else torch.full((TOKENS,), -100)
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        (functional.cross_entropy(logits, targets, reduction="sum") / (TOKENS * 3)).backward()
        if place % 4 == 0:
            training.step()


LOSSES = {
    "preference pairs": Loop(preference_pairs, ["ZFFBFFBFFBFFBCOS"] * 3, weights=[None, None, None]),
    "two backwards": Loop(two_backwards, ["ZFBBFBBFBBFBBCOS"] * 3),
    "all forwards first": Loop(all_forwards_first, ["ZFFFFBCOS"] * 3, [1, 1, 1], steps=1),
    "all forwards first, a backward each": Loop(
        all_forwards_first_backward_each, ["ZFFBBCOS"] * 3, [1, 1, 1], steps=1
    ),
    "a method called": Loop(method_called, ["ZBBBBCOS"] * 3),
    "evaluations": Loop(evaluations, HEALTHY),
    "gradients probed": Loop(gradients_probed, HEALTHY),
    "gradients set by hand": Loop(
        gradients_set_by_hand, ["ZMO"] * 3, [0, 0, 0], weights=[None, None, None], steps=1
    ),
    "gradient penalty": Loop(gradient_penalty, ["ZFBO"] * 3, [1, 1, 1], steps=1),
    "exceptions": Loop(exceptions, HEALTHY, leftover=1, codes={"ACC205"}),
    "non-finite skipped": Loop(non_finite_skipped, HEALTHY),
    "chunked": Loop(chunked, HEALTHY),
    "chunked, a backward each": Loop(chunked_backward_each, ["ZFBBBFBBBFBBBFBBBCOS"] * 3),
    "loss recomputed": Loop(checkpointed_loss(False), HEALTHY),
    "loss recomputed, reentrant": Loop(checkpointed_loss(True), HEALTHY),
    "masked losses": Loop(masked_losses, HEALTHY),
    "class weights": Loop(class_weights_mean, HEALTHY),
    "label smoothing": Loop(label_smoothing, HEALTHY),
    "soft targets": Loop(soft_targets, HEALTHY),
    "negative log likelihood": Loop(negative_log_likelihood, HEALTHY),
    "loss module, divided in place": Loop(loss_module, HEALTHY),
    "linear cross entropy": Loop(linear_cross_entropy, ["ZBBBBCOS"] * 3),
    "two terms": Loop(two_terms, HEALTHY),
    "own loss": Loop(own_loss, HEALTHY, weights=[None, None, None]),
    "own loss, declared": Loop(own_loss_declared, HEALTHY),
    "a micro-step without tokens": Loop(zero_token_micro_step, HEALTHY),
}
