"""The loss weights of a transaction, term by term: the writer's arithmetic, in double precision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accumaudit.hooks.loss import LossCall, Site, TermSums, settle_call
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.window import MicroStep
from accumaudit.hooks.word import Reading

SIXTEEN_BIT = ("bfloat16", "float16")

Terms = Mapping[str, TermSums]
"""The sums of each term of a micro-step, the main one first."""


def terms_of(
    micro_step: MicroStep, coefficients: Mapping[str, float], unscaled: bool | None, values: Shipment
) -> Terms:
    """The sums of each term, without its coefficient and without the loss scale where that was undone."""
    scale = 1.0 if unscaled is False else values.number(micro_step.scale)
    terms: dict[str, TermSums] = {}
    main: Site | None = None
    for call in best_source(micro_step.calls) if scale else ():
        main = main or call.site
        name = "main" if call.site == main else call.site.name
        sums = settle_call(call, (scale or 1.0) / call.factor, values)
        sums.explained /= call.factor_before
        if name in terms:
            terms[name].add(sums)
        else:
            terms[name] = sums
    for name, factor in coefficients.items():
        if name in terms:
            terms[name].weight /= factor
            terms[name].weight_sq /= factor**2
    return terms


def best_source(calls: Sequence[LossCall]) -> list[LossCall]:
    """Declared calls name the main term; a model's own loss counts where nothing was measured."""
    declared = [call for call in calls if call.source == "declared"]
    measured = [call for call in calls if call.source == "measured"]
    if declared:
        return declared
    return measured or list(calls)


def main_tokens(steps: Sequence[MicroStep], values: Shipment) -> float | None:
    """Valid tokens of some micro-steps together; None where one is unknown."""
    mains = [next(iter(terms_of(step, {}, True, values).values()), None) for step in steps]
    known = [main.valid_tokens for main in mains if main is not None]
    return math.fsum(known) if len(known) == len(mains) else None


def weight_fields(
    reading: Reading, coefficients: Mapping[str, float], unscaled: bool | None, values: Shipment
) -> dict[str, Any]:
    """The record's fields about the loss.

    Args:
        reading: what the events say.
        coefficients: declared factor of each term, by name.
        unscaled: whether the gradients no longer carried the loss scale when they were used; None where
            that is not one answer for all, and no weight is known then.
        values: the values of tensors.
    """
    steps = [(step, terms_of(step, coefficients, unscaled, values)) for step in reading.kept]
    mains = [next(iter(terms.values()), None) for _, terms in steps]
    calls = [call for step in reading.kept for call in best_source(step.calls)]
    factors = [None if unscaled is None else reading.factors.get(id(step), 1.0) for step in reading.kept]
    dtype = next((call.dtype for call in calls if call.dtype), None)
    tokens = [None if main is None else main.valid_tokens for main in mains]
    return {
        "valid_tokens": tokens,
        "loss_weight": [_times(m, f, 1) for m, f in zip(mains, factors, strict=True)],
        "loss_weight_sq": [_times(m, f, 2) for m, f in zip(mains, factors, strict=True)],
        "weight_uniform": [None if main is None else main.uniform for main in mains],
        "weight_source": calls[0].source if calls else None,
        "weight_dtype": dtype,
        "loss_unobserved": _unobserved(steps, dtype, values),
        "loss": [_mean_loss(main) for main in mains],
        "loss_terms": _further_terms(steps, factors, coefficients),
        "loss_scale": [values.number(step.scale) for step in reading.kept],
        "local_valid_tokens": math.fsum(n for n in tokens if n is not None) if None not in tokens else None,
    }


def _further_terms(
    steps: Sequence[tuple[MicroStep, Terms]],
    factors: Sequence[float | None],
    coefficients: Mapping[str, float],
) -> list[dict[str, Any]] | None:
    found = [
        {
            "micro_step": place,
            "term": name,
            "declared": name in coefficients,
            "loss_weight": _times(sums, factor, 1),
            "loss_weight_sq": _times(sums, factor, 2),
            "valid_tokens": sums.valid_tokens,
            "loss": _mean_loss(sums),
        }
        for place, ((_, terms), factor) in enumerate(zip(steps, factors, strict=True), 1)
        for name, sums in list(terms.items())[1:]
    ]
    return found or None


def _times(sums: TermSums | None, factor: float | None, power: int) -> float | None:
    if sums is None or factor is None:
        return None
    return (sums.weight if power == 1 else sums.weight_sq) * float(factor**power)


def _mean_loss(sums: TermSums | None) -> float | None:
    return None if sums is None or sums.valid_tokens == 0 else sums.loss_sum / sums.valid_tokens


def _unobserved(
    steps: Sequence[tuple[MicroStep, Terms]], dtype: str | None, values: Shipment
) -> float | None:
    """The share of the root values that no call explains; rounding of 16-bit roots is none."""
    roots: list[float] = []
    explained = 0.0
    for step, terms in steps:
        for root in step.roots:
            value = values.number(root)
            if value is None:
                return None
            roots.append(value)
        explained += math.fsum(sums.explained for sums in terms.values())
    total = math.fsum(abs(root) for root in roots)
    if not roots or not math.isfinite(total) or not math.isfinite(explained):
        return None
    if total == 0:
        return 0.0 if explained == 0 else None
    share = abs(math.fsum(roots) - explained) / total
    return 0.0 if share < (0.01 if dtype in SIXTEEN_BIT else 1e-5) else share
