"""Learning rates as trainers compute them, each written down from the trainer's own formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

Schedule = Callable[[int], float]
"""The rate by the number of steps that the scheduler has made."""

Logged = list[tuple[int, float]]
"""Steps as a log counts them, and the rates beside them."""


def transformers_linear(peak: float, warmup: int, updates: int) -> Schedule:
    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step / max(1, warmup))
        return peak * max(0.0, (updates - step) / max(1, updates - warmup))

    return rate


def transformers_cosine(peak: float, warmup: int, updates: int) -> Schedule:
    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step / max(1, warmup))
        progress = (step - warmup) / max(1, updates - warmup)
        return peak * max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))

    return rate


def megatron_cosine(peak: float, warmup: int, updates: int, minimum: float) -> Schedule:
    def rate(step: int) -> float:
        if warmup > 0 and step <= warmup:
            return peak * step / warmup
        if step > updates:
            return minimum
        ratio = (step - warmup) / (updates - warmup)
        return minimum + 0.5 * (math.cos(math.pi * ratio) + 1.0) * (peak - minimum)

    return rate


def nanogpt(peak: float, warmup: int, updates: int, minimum: float) -> Schedule:
    def rate(iteration: int) -> float:
        if iteration < warmup:
            return peak * (iteration + 1) / (warmup + 1)
        if iteration > updates:
            return minimum
        ratio = (iteration - warmup) / (updates - warmup)
        return minimum + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (peak - minimum)

    return rate


def llmc_cosine(peak: float, warmup: int, updates: int) -> Schedule:
    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (updates - warmup))) * peak

    return rate


def deepspeed_logarithmic(peak: float, warmup: int, updates: int) -> Schedule:
    """WarmupDecayLR, whose warm-up is logarithmic by default."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * math.log(step + 1) / math.log(warmup)
        return peak * max(0.0, (updates - step) / max(1.0, updates - warmup))

    return rate


def fairseq_inverse_sqrt(peak: float, warmup: int) -> Schedule:
    def rate(step: int) -> float:
        return peak * step / warmup if step < warmup else peak * warmup**0.5 * step**-0.5

    return rate


def torch_polynomial(peak: float, updates: int, power: float) -> Schedule:
    def rate(step: int) -> float:
        return peak * float((1.0 - min(step, updates) / updates) ** power)

    return rate


def stable_then(
    fall: Callable[[float], float], peak: float, warmup: int, updates: int, decay: int
) -> Schedule:
    """WSD: a plateau, and a fall at its end."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * step / warmup
        if step < updates - decay:
            return peak
        return peak * fall(min(1.0, (step - updates + decay) / decay))

    return rate


def logged(
    schedule: Schedule,
    updates: int,
    *,
    every: int = 10,
    habit: int = 0,
    skips: Collection[int] = (),
    printed: Callable[[float], float] = float,
    behind: int = 0,
    after: int = 0,
) -> Logged:
    """A log of these attempts; the schedule stands still at those that are skipped.

    Args:
        habit: 1: the log writes the rate that was used, 0: the next one.
        printed: what is left of a rate in print.
        behind: steps that the schedule has lost before the log begins.
        after: attempts before the log begins.
    """
    position, rows = after - behind, []
    for attempt in range(after + 1, after + updates + 1):
        used = schedule(position)
        position += attempt not in skips
        if attempt % every == 0:
            rows.append((attempt, printed(used if habit else schedule(position))))
    return rows


def digits(count: int) -> Callable[[float], float]:
    """Print with so many digits."""
    return lambda rate: float(f"{rate:.{count - 1}e}")


def decimals(count: int) -> Callable[[float], float]:
    """Print with so many decimals."""
    return lambda rate: round(rate, count)
