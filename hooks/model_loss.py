"""The loss that the attached model itself returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from accumaudit.hooks.inputs import differentiable
from accumaudit.hooks.loss import LossCall, Site


class LossSource:
    """Where the attached model's own loss and its labels are found, for source "model_loss"."""

    def __init__(self, module: nn.Module, labels: str | None, ignore_index: int, reduction: str) -> None:
        self._labels = labels
        self.is_declared = labels is not None
        self._ignore_index = ignore_index
        self._reduction = reduction
        self._signature = inspect.signature(module.forward) if labels is not None else None

    def call(
        self, output: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, LossCall] | None:
        """The scalar that the model returned, as a loss call; None where labels are not declared."""
        if self._signature is None or self._labels is None:
            return None
        named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        scalars = (tensor for tensor in differentiable(output) if tensor.numel() == 1)
        loss = named if isinstance(named, Tensor) else next(scalars, None)
        target = self._signature.bind(*args, **kwargs).arguments.get(self._labels)
        if loss is None or loss.grad_fn is None or loss.numel() != 1 or not isinstance(target, Tensor):
            return None
        return loss, LossCall(
            site=Site(None, 0),
            reduction=self._reduction,
            value=loss.detach().clone(),
            source="model_loss",
            target=target,
            ignore_index=self._ignore_index,
        )
