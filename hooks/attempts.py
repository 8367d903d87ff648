"""What a record says of the attempt: optimizer, scaler, clips, schedule. On the writer thread."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from accumaudit.hooks.digest import hexadecimal
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.window import Attempt, Clip, Window
from accumaudit.hooks.word import Reading, ratio


def skip_evidence(window: Window, attempt: Attempt, values: Shipment) -> str | None:
    """What says that the attempt left the parameters as they were; None where it was applied."""
    if window.scaling.skipped:
        return "scaler"
    if attempt.skipped_by is not None:
        return attempt.skipped_by
    if attempt.found_inf is not None:
        return "found_inf" if values.number(attempt.found_inf) else None
    before, after = values.number(attempt.state_step_before), values.number(attempt.state_step)
    counted = before is None or after is None or before != after
    return None if counted or attempt.gradient is None or _changed(attempt, values) else "state_step"


def is_unscaled(window: Window, reading: Reading, values: Shipment) -> bool | None:
    """Whether the gradients no longer carry the loss scale when they are used, or are used by nobody.

    None: some carry it and others do not, or it was not the scale of their backward.
    """
    attempt = window.attempt
    if attempt is None or attempt.event.letter == "X":
        return True
    if not reading.unscaled and attempt.grad_scale is None:
        return all(values.number(step.scale) == 1.0 for step in reading.kept)
    in_kernel = 1.0 if attempt.grad_scale is None else values.number(attempt.grad_scale)
    for step in reading.kept:
        divided_by = [values.number(scale) for scale in reading.unscaled.get(id(step), [])]
        if None in divided_by or in_kernel is None:
            return None
        if math.prod(scale for scale in divided_by if scale is not None) * in_kernel != values.number(
            step.scale
        ):
            return None
    return True


def optimizer_fields(
    window: Window, attempt: Attempt, reading: Reading, unscaled: bool | None, values: Shipment
) -> dict[str, Any]:
    """What the optimizer did with which gradients; norms and the probe's gradient without the loss scale."""
    rates = [values.number(rate) for rate in attempt.learning_rates]
    in_kernel = 1.0 if attempt.grad_scale is None else attempt.grad_scale
    last = next((clip for clip in reversed(window.clips) if clip.kind == "norm" and clip.complete), None)
    coefficient = _coefficient(window.clips[-1], values) if window.clips else None
    at_step = None if attempt.gradient is None else values.vector(attempt.gradient)
    return {
        "learning_rate": rates[0] if rates else None,
        "learning_rates": rates,
        "weight_decays": attempt.weight_decays,
        "optimizer_step_skipped": attempt.event.letter == "X",
        "grad_norm_before_clip": _divided(last.norm, 1.0 if unscaled is False else last.scale, values)
        if last
        else values.number(attempt.told_norm),
        "grad_norm_after_clip": _divided(attempt.norm, in_kernel, values),
        "grad_norm_before_scope": last.scope if last else None if attempt.told_norm is None else "global",
        "grad_norm_after_scope": attempt.norm_scope if attempt.norm is not None else None,
        "clips": [_clip_fields(clip, values) for clip in window.clips] or None,
        "optimizer_state_step": _whole(values.number(attempt.state_step)),
        "param_digest": _hexadecimal(attempt.digest, values),
        "param_digest_before": _hexadecimal(attempt.digest_before, values),
        "probe_parameter": attempt.probe_name,
        "probe_gradient": _probe_gradient(window, reading, unscaled, values),
        "probe_clip_coefficient": coefficient,
        "probe_nonfinite": None if at_step is None else not all(map(math.isfinite, at_step)),
        "probe_parameter_changed": _changed(attempt, values),
    }


def _clip_fields(clip: Clip, values: Shipment) -> dict[str, Any]:
    return {
        "micro_step": clip.micro_step,
        "kind": clip.kind,
        "limit": values.number(clip.limit),
        "norm": values.number(clip.norm),
        "coefficient": _coefficient(clip, values),
        "largest": None if clip.after is None else max(map(abs, values.vector(clip.after)), default=None),
        "complete": clip.complete,
    }


def _coefficient(clip: Clip, values: Shipment) -> float | None:
    if clip.before is None or clip.after is None:
        return None
    return ratio(values.vector(clip.before), values.vector(clip.after))


def _changed(attempt: Attempt, values: Shipment) -> bool | None:
    if attempt.parameter_after is None or not attempt.parameter_after.numel():
        return None
    return values.vector(attempt.parameter_before) != values.vector(attempt.parameter_after)


def _divided(value: Tensor | float | None, scale: Tensor | float | None, values: Shipment) -> float | None:
    number, divisor = values.number(value), values.number(scale)
    return None if number is None or not divisor else number / divisor


def _probe_gradient(
    window: Window, reading: Reading, unscaled: bool | None, values: Shipment
) -> list[float] | None:
    gradient = window.gradient if reading.reduced is None else reading.reduced
    bare = unscaled is False or reading.reduced is not None
    scale = 1.0 if bare else values.number(window.gradient_scale)
    return None if gradient is None or not scale else [x / scale for x in values.vector(gradient)]


def _hexadecimal(digest: Tensor | None, values: Shipment) -> str | None:
    return None if digest is None else hexadecimal(int(values.vector(digest)[0]))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def scaler_fields(window: Window, values: Shipment) -> dict[str, Any]:
    """What the gradient scaler did."""
    scaling = window.scaling
    return {
        "grad_scale": values.number(scaling.scale),
        "grad_scale_after": values.number(scaling.scale_after),
        "probe_unscale": None
        if scaling.before is None or scaling.after is None
        else ratio(values.vector(scaling.before), values.vector(scaling.after)),
    }


def average_fields(window: Window, values: Shipment) -> dict[str, Any]:
    """The moving average of the parameters."""
    updates, decay = window.ema or (None, None)
    return {"ema_updates": _whole(values.number(updates)), "ema_decay": decay}


def schedule_fields(window: Window, values: Shipment) -> dict[str, Any]:
    """Where the scheduler stands."""
    step, rate = window.schedule
    return {"scheduler_step": step, "scheduler_rate": values.number(rate)}
