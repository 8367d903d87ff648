"""The loss that the attached model itself returns, or the log-probabilities that it is made of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from accumaudit.hooks.inputs import differentiable
from accumaudit.hooks.loss import LossCall, Site


class LossSource:
    """Where the attached model's own loss and its labels are found, for source "model_loss".

    Args:
        module: the model.
        labels: its argument that holds them.
        ignore_index: the label that does not count.
        reduction: mean or sum.
        divisor: the argument by which the loss was divided, as a sum, in the calls that give it.
        shifts_labels: the first label of each row has no loss.
        log_probabilities: fields of its output that hold those of the labels, and which of them count.
    """

    def __init__(
        self,
        module: nn.Module,
        labels: str | None,
        ignore_index: int,
        reduction: str,
        *,
        divisor: str | None = None,
        shifts_labels: bool = False,
        log_probabilities: tuple[str, str] | None = None,
    ) -> None:
        self._labels = labels
        self._divisor = divisor
        self._shifts_labels = shifts_labels
        self._log_probabilities = log_probabilities
        self.is_declared = labels is not None or log_probabilities is not None
        self._ignore_index = ignore_index
        self._reduction = reduction
        self._signature = inspect.signature(module.forward) if labels is not None else None

    def call(
        self, output: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, LossCall] | None:
        """What the model returned, as a loss call; None where that is none, or labels are not declared."""
        return self._unreduced(output) or self._scalar(output, args, kwargs)

    def _unreduced(self, output: Any) -> tuple[Tensor, LossCall] | None:
        if self._log_probabilities is None:
            return None
        found, counted = (getattr(output, name, None) for name in self._log_probabilities)
        if not isinstance(found, Tensor) or not isinstance(counted, Tensor) or found.grad_fn is None:
            return None
        return found, LossCall(
            site=Site(None, 0),
            reduction="none",
            value=-found.detach(),
            source="model_loss",
            target=counted,
            ignore_index=False,
            negated=True,
        )

    def _scalar(
        self, output: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, LossCall] | None:
        if self._signature is None or self._labels is None:
            return None
        named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        scalars = (tensor for tensor in differentiable(output) if tensor.numel() == 1)
        loss = named if isinstance(named, Tensor) else next(scalars, None)
        target = self._signature.bind(*args, **kwargs).arguments.get(self._labels)
        if loss is None or loss.grad_fn is None or loss.numel() != 1:
            return None
        if not isinstance(target, Tensor) or target.is_floating_point():
            return None
        divisor = None if self._divisor is None else kwargs.get(self._divisor)
        return loss, LossCall(
            site=Site(None, 0),
            reduction=self._reduction if divisor is None else "sum",
            value=loss.detach().clone(),
            source="model_loss",
            target=target[..., 1:] if self._shifts_labels and target.dim() > 1 else target,
            ignore_index=self._ignore_index,
            divisor=divisor,
        )
