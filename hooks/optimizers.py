"""What an optimizer holds: its parameters, their gradients, its count of steps, its rates."""

from __future__ import annotations

from typing import Any

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
    """The norm of all gradients that a step would use, of the local parts of those that are distributed.

    None where there is none, or no dense one.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return total_norm([local(gradient) for p in parameters if (gradient := p.grad) is not None])
