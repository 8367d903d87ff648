"""The loss weight: how much every position of a loss call counts in the gradient.

A call is remembered when it is made and counts when its gradient arrives. With g the gradient at its
output, the weight of position t is g for a sum, g/n for a mean and g_t where nothing was reduced;
with class weights c it is g*c_t or g*c_t/sum(c).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from accumaudit.hooks.shipment import Shipment

REDUCTIONS: Final = {0: "none", 1: "mean", 2: "sum"}

COUNTED_LATER: Final = 2048
"""Labels on the CPU up to which the writer counts the valid ones."""


class Site(NamedTuple):
    """Where a loss was called: code, and the instruction in it. The line is looked up when it is named."""

    code: CodeType | None
    instruction: int

    @property
    def name(self) -> str:
        """The file's name and the line."""
        if self.code is None:
            return "model"
        lines = self.code.co_lines()
        line = next((line for start, end, line in lines if start <= self.instruction < end), None)
        return f"{self.code.co_filename.rpartition('/')[2]}:{line or self.code.co_firstlineno}"


@dataclass(slots=True, eq=False)
class LossCall:
    """One call of a loss function; `arrive` fills in what its gradient tells."""

    site: Site
    """The caller: calls of one site in a micro-step are chunks of one term."""
    reduction: str
    value: Tensor
    """What the call returned, before anything could change it in place."""
    source: str = "measured"
    target: Tensor | None = None
    class_weights: Tensor | None = None
    ignore_index: int = -100
    valid_tokens: Tensor | float | None = None
    dtype: str = ""
    valid: Tensor | None = None
    """Which positions have a valid label; kept until the micro-step's samples are known."""
    uncounted: Tensor | None = None
    """The same where the writer is to count them."""
    numbers: dict[str, Tensor] = field(default_factory=dict)
    divisor: Tensor | float | None = None
    """What a sum was divided by inside the call."""
    negated: bool = False
    """The value is minus what the call returned, which were logarithms of probabilities."""
    factor: float = 1.0
    """What the gradient was multiplied by after it had arrived here."""
    factor_before: float = 1.0
    """What it had been multiplied by on its way from the root to here, beside the training's own doing."""

    def arrived(self, gradient: Tensor) -> LossCall:
        """What the call's gradient tells; the call may be differentiated again."""
        found = LossCall(
            self.site,
            self.reduction,
            self.value,
            self.source,
            self.target,
            self.class_weights,
            self.ignore_index,
            self.valid_tokens,
            divisor=self.divisor,
            negated=self.negated,
        )
        plain = -gradient.detach() if self.negated else gradient.detach()
        found.arrive(plain if plain.shape == self.value.shape else plain.reshape(self.value.shape))
        return found

    def arrive(self, gradient: Tensor) -> None:
        """Note the gradient at the output; the arithmetic that can wait is left to the writer."""
        self.dtype = str(gradient.dtype).removeprefix("torch.")
        self.valid = valid = self._valid_positions()
        if self.reduction == "none":
            self._arrive_unreduced(gradient)
        else:
            self.numbers["gradient"] = gradient.clone()
            if valid is None:
                pass
            elif self.class_weights is not None:
                self._weigh_classes(self.class_weights, valid)
            elif valid.is_cpu and valid.numel() <= COUNTED_LATER:
                self.uncounted = valid
            else:
                self.valid_tokens = torch.count_nonzero(valid)
        self.target = self.class_weights = None

    def _valid_positions(self) -> Tensor | None:
        if self.target is None or self.target.is_floating_point():
            return None  # soft targets: every row counts
        return self.target != self.ignore_index

    def _weigh_classes(self, class_weights: Tensor, valid: Tensor) -> None:
        if self.target is None:
            return
        weights = class_weights.detach()[self.target.masked_fill(~valid, 0).long()]
        counted = valid & (weights != 0)
        kept = torch.where(counted, weights, 0)
        self.numbers["class_sum"] = kept.sum()
        self.numbers["class_sum_sq"] = kept.square().sum()
        self._note_extremes(weights, counted)
        self.valid_tokens = self.numbers["class_sum"] if self.reduction == "mean" else counted.sum()

    def _arrive_unreduced(self, gradient: Tensor) -> None:
        weights = gradient
        if self.class_weights is not None and self.target is not None and self.valid is not None:
            weights = gradient * self.class_weights.detach()[self.target.masked_fill(~self.valid, 0).long()]
        counted = weights != 0 if self.valid is None else (weights != 0) & self.valid
        kept = torch.where(counted, weights, 0)
        self.numbers["weight"] = kept.sum(dtype=torch.float32)
        self.numbers["weight_sq"] = kept.square().sum(dtype=torch.float32)
        self.numbers["loss_sum"] = torch.where(counted, self.value, 0).sum(dtype=torch.float32)
        self.numbers["explained"] = torch.where(counted, self.value * gradient, 0).sum(dtype=torch.float32)
        self.valid_tokens = counted.sum()
        self.valid = counted
        self.value = self.numbers["loss_sum"]  # no longer one number a position
        self._note_extremes(weights, counted)

    def _note_extremes(self, weights: Tensor, counted: Tensor) -> None:
        if not weights.numel():
            return
        self.numbers["low"] = torch.where(counted, weights, torch.inf).min()
        self.numbers["high"] = torch.where(counted, weights, -torch.inf).max()

    def tensors(self) -> list[object]:
        """Everything that may be a tensor and that the writer needs."""
        found: list[object] = [*self.numbers.values(), self.valid_tokens, self.uncounted, self.divisor]
        if self.reduction != "none":
            found.append(self.value)
        return found

    def tokens(self, values: Shipment) -> float:
        """Valid positions, or the sum of their class weights under mean."""
        if self.uncounted is not None:
            return float(values.vector(self.uncounted).count(True))
        return float(values.number(self.valid_tokens) or 0.0)


@dataclass(slots=True)
class TermSums:
    """The sums of one term of a micro-step, unscaled."""

    valid_tokens: float = 0.0
    weight: float = 0.0
    weight_sq: float = 0.0
    uniform: bool | None = True
    """None where weights change sign."""
    loss_sum: float = 0.0
    explained: float = 0.0
    """What the term adds to the root value of backward."""

    def add(self, other: TermSums) -> None:
        """Chunks of one term, or terms of one micro-step, together."""
        opposite = self.weight * other.weight < 0
        self.valid_tokens += other.valid_tokens
        self.weight += other.weight
        self.weight_sq += other.weight_sq
        self.loss_sum += other.loss_sum
        self.explained += other.explained
        if self.uniform is None or other.uniform is None or opposite:
            self.uniform = None
        else:
            self.uniform = self.uniform and other.uniform


def settle_call(call: LossCall, scale: float, values: Shipment) -> TermSums:
    """The sums of one call, in double precision."""
    numbers = {name: float(values.number(tensor) or 0.0) for name, tensor in call.numbers.items()}
    tokens = call.tokens(values)
    if call.reduction == "none":
        return TermSums(
            valid_tokens=tokens,
            weight=numbers["weight"] / scale,
            weight_sq=numbers["weight_sq"] / scale**2,
            uniform=_uniform(numbers, tokens),
            loss_sum=numbers["loss_sum"],
            explained=numbers["explained"],
        )
    gradient = numbers["gradient"]
    weight = gradient / scale
    mean_value = float(values.number(call.value) or 0.0)
    total, total_sq = numbers.get("class_sum", tokens), numbers.get("class_sum_sq", tokens)
    if tokens == 0 or total == 0:
        return TermSums(explained=0.0)
    if call.reduction == "mean":
        sums = TermSums(
            weight=weight, weight_sq=weight**2 * total_sq / total**2, loss_sum=mean_value * tokens
        )
    else:
        divisor = values.number(call.divisor) or 1.0
        weight /= divisor
        sums = TermSums(weight=weight * total, weight_sq=weight**2 * total_sq, loss_sum=mean_value * divisor)
    sums.valid_tokens = tokens
    sums.uniform = _uniform(numbers, tokens)
    sums.explained = gradient * mean_value
    return sums


def _uniform(numbers: dict[str, float], tokens: float) -> bool | None:
    if "low" not in numbers or tokens == 0:
        return True
    low, high = numbers["low"], numbers["high"]
    if low < 0 < high:
        return None
    return abs(high - low) <= 1e-6 * max(abs(low), abs(high))


def remember(
    output: Tensor,
    _input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    *_rest: Any,
) -> LossCall:
    """A call of `cross_entropy_loss` or `nll_loss_nd`, whose arguments these are."""
    call = LossCall(
        site=call_site(),
        reduction=REDUCTIONS.get(reduction, str(reduction)),
        value=output.detach().clone(),
        target=target,
        class_weights=weight,
        ignore_index=ignore_index,
    )
    if target.is_floating_point():
        call.valid_tokens = float(target.numel() // max(1, target.shape[1 if target.dim() > 1 else 0]))
    return call


def call_site() -> Site:
    """The first caller outside torch and the hooks."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("torch.", "accumaudit.hooks")
    ):
        frame = frame.f_back
    return Site(frame.f_code, frame.f_lasti)
