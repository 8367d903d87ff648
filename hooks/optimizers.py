"""What an optimizer holds: its parameters, their gradients, its count of steps, its rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from accumaudit.hooks.norms import total_norm
from accumaudit.hooks.shards import local


def optimizer_parameters(optimizer: Optimizer) -> list[Tensor]:
    """The trainable parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def state_step(optimizer: Optimizer, parameters: list[Tensor], keep: bool = False) -> Any:
    """The optimizer's own count of steps; a device tensor is kept as it is with `keep`, else unknown."""
    for parameter in parameters:
        step = optimizer.state.get(parameter, {}).get("step")
        if isinstance(step, Tensor):
            return step.detach().clone() if keep else int(step) if step.device.type == "cpu" else None
        if step is not None:
            return int(step)
    return None


def frozen_rate(rate: Any) -> float | Tensor:
    """A rate as it is now; it may be a tensor, which the loop changes in place."""
    return rate.detach().clone() if isinstance(rate, Tensor) else float(rate)


def plain_number(value: Any) -> float | None:
    """A number, and nothing else."""
    return float(value) if isinstance(value, (int, float)) else None


def own_copy(value: Any) -> Tensor | None:
    """A copy of what a scaler tells a fused optimizer; it is gone after the step."""
    return value.detach().clone() if isinstance(value, Tensor) else None


def gradient_norm(optimizer: Optimizer) -> Tensor | None:
    """The norm of all gradients that a step would use; None where there is none, or no dense one."""
    return total_norm([local(gradient) for p in _all_of(optimizer) if (gradient := p.grad) is not None])


def shard_norm(optimizer: Optimizer, copies: Callable[[Tensor], int]) -> Tensor | None:
    """This rank's share of it: the squares of the shares of a shard group add up to that of the whole.

    Args:
        optimizer: whose gradients are shards.
        copies: on how many ranks of the group the same gradient of a parameter lies.
    """
    shares = []
    for parameter in _all_of(optimizer):
        if parameter.grad is not None:
            share, ranks = local(parameter.grad), copies(parameter)
            shares.append(share if ranks == 1 else share.detach() / math.sqrt(ranks))
    if not shares and not any(local(parameter).numel() for parameter in _all_of(optimizer)):
        return torch.zeros(())  # parameters may be fewer than ranks
    return total_norm(shares)


def _all_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
