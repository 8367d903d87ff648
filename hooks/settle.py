"""Makes a record of what the hooks hold: all arithmetic, in double precision, on the writer thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from accumaudit.hooks.digest import hexadecimal
from accumaudit.hooks.loss import LossCall, TermSums, settle_call
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.window import Attempt, Clip, Forward, MicroStep, Window
from accumaudit.hooks.word import Reading, ratio, read_events

SIXTEEN_BIT = ("bfloat16", "float16")


class Settler:
    """Turns windows into records of one rank; lives on the writer thread.

    Args:
        launch: token of the launch.
        rank: global rank.
        coefficients: declared factor of each loss term, by name; the main term is "main".
    """

    def __init__(self, launch: str, rank: int, coefficients: Mapping[str, float]) -> None:
        self._who = {"launch": launch, "rank": rank}
        self.coefficients = coefficients
        self._after: tuple[int, Callable[[], None]] | None = None
        self._last_time: dict[int, float] = {}
        self.last: dict[str, Any] = {}
        """The last update record."""

    def after(self, attempts: int, action: Callable[[], None]) -> None:
        """Do something once, when the record of that attempt of this launch has been made."""
        self._after = (attempts, action)

    def mark(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A mark's record."""
        return {"record": "mark", **self._who, "kind": kind, **fields}

    def leftover(self, window: Window | None, values: Shipment) -> dict[str, Any]:
        """What the close mark says of micro-steps that no attempt used."""
        values.unload()
        if window is None:
            return {"leftover_microbatches": 0, "leftover_valid_tokens": 0.0}
        reading = read_events(window.events, values)
        terms = [self._main_term(step, values) for step in reading.kept]
        known = [sums.valid_tokens for sums in terms if sums is not None]
        return {
            "leftover_microbatches": len(reading.kept),
            "leftover_valid_tokens": math.fsum(known) if len(known) == len(terms) else None,
        }

    def update(self, optimizer: int, window: Window, values: Shipment) -> dict[str, Any] | None:
        """The record of one transaction."""
        values.unload()
        attempt = window.attempt
        if attempt is None:
            return None
        reading = read_events(window.events, values)
        record: dict[str, Any] = {"record": "update", **self._who, "optimizer": optimizer}
        record |= self._who_fields(optimizer, attempt)
        record |= {
            "microbatches": len(reading.kept),
            "discarded_microbatches": reading.discarded,
            "accumulation_steps": window.accumulation_steps,
            "events": reading.word,
        }
        record |= self._weight_fields(reading, values)
        record |= _data_fields(reading.kept, values)
        record |= {name: values.number(value) for name, value in window.reported.items()}
        record |= _optimizer_fields(window, attempt, reading, values)
        record |= _schedule_fields(window, values)
        self.last = record
        self._say_after(attempt.attempt_id)
        return record

    def _say_after(self, attempts: int) -> None:
        if self._after is not None and attempts >= self._after[0]:
            action = self._after[1]
            self._after = None
            action()

    def _who_fields(self, optimizer: int, attempt: Attempt) -> dict[str, Any]:
        since = self._last_time.get(optimizer)
        self._last_time[optimizer] = attempt.time
        return {
            "attempt_id": attempt.attempt_id,
            "optimizer_update_id": attempt.optimizer_update_id,
            "micro_step_id": attempt.micro_step_id,
            "epoch": attempt.epoch,
            "time": attempt.time,
            "window_seconds": None if since is None else attempt.time - since,
        }

    # loss weights

    def _terms(self, micro_step: MicroStep, values: Shipment) -> dict[str, TermSums]:
        """The sums of each term, the main one first."""
        scale = values.number(micro_step.scale) or 1.0
        terms: dict[str, TermSums] = {}
        main: tuple[str, int, int] | None = None
        for call in best_source(micro_step.calls):
            main = main or call.site
            name = "main" if call.site == main else f"{call.site[0].rpartition('/')[2]}:{call.site[1]}"
            sums = settle_call(call, scale, values)
            if name in terms:
                terms[name].add(sums)
            else:
                terms[name] = sums
        return {name: self._without_coefficient(name, sums) for name, sums in terms.items()}

    def _without_coefficient(self, name: str, sums: TermSums) -> TermSums:
        factor = self.coefficients.get(name, 1.0)
        sums.weight /= factor
        sums.weight_sq /= factor**2
        return sums

    def _main_term(self, micro_step: MicroStep, values: Shipment) -> TermSums | None:
        return next(iter(self._terms(micro_step, values).values()), None)

    def _weight_fields(self, reading: Reading, values: Shipment) -> dict[str, Any]:
        steps = [(step, self._terms(step, values)) for step in reading.kept]
        mains = [next(iter(terms.values()), None) for _, terms in steps]
        calls = [call for step in reading.kept for call in best_source(step.calls)]
        factors = [reading.factors.get(id(step), 1.0) for step in reading.kept]
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
            "loss_terms": self._further_terms(steps, factors),
            "loss_scale": [values.number(step.scale) for step in reading.kept],
            "local_valid_tokens": math.fsum(n for n in tokens if n is not None)
            if None not in tokens
            else None,
        }

    def _further_terms(
        self, steps: Sequence[tuple[MicroStep, Mapping[str, TermSums]]], factors: Sequence[float | None]
    ) -> list[dict[str, Any]] | None:
        found = [
            {
                "micro_step": place,
                "term": name,
                "declared": name in self.coefficients,
                "loss_weight": _times(sums, factor, 1),
                "loss_weight_sq": _times(sums, factor, 2),
                "valid_tokens": sums.valid_tokens,
                "loss": _mean_loss(sums),
            }
            for place, ((_, terms), factor) in enumerate(zip(steps, factors, strict=True), 1)
            for name, sums in list(terms.items())[1:]
        ]
        return found or None


def best_source(calls: Sequence[LossCall]) -> list[LossCall]:
    """Declared calls name the main term; a model's own loss counts where nothing was measured."""
    declared = [call for call in calls if call.source == "declared"]
    measured = [call for call in calls if call.source == "measured"]
    if declared:
        return declared
    return measured or list(calls)


def _times(sums: TermSums | None, factor: float | None, power: int) -> float | None:
    if sums is None or factor is None:
        return None
    return (sums.weight if power == 1 else sums.weight_sq) * float(factor**power)


def _mean_loss(sums: TermSums | None) -> float | None:
    return None if sums is None or sums.valid_tokens == 0 else sums.loss_sum / sums.valid_tokens


def _unobserved(
    steps: Sequence[tuple[MicroStep, Mapping[str, TermSums]]], dtype: str | None, values: Shipment
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


# data


def _data_fields(steps: Sequence[MicroStep], values: Shipment) -> dict[str, Any]:
    return {
        "samples": [_sum(f.samples for f in step.forwards) for step in steps],
        "input_positions": [_sum(f.input_positions for f in step.forwards) for step in steps],
        "attended_positions": [
            _sum(values.number(f.attended_positions) for f in step.forwards) for step in steps
        ],
        "masked_positions": [_masked_positions(step, values) for step in steps],
        "data_digest": [_digest(step.forwards, values) for step in steps],
    }


def _sum(counts: Any) -> int | None:
    known = list(counts)
    return int(sum(known)) if known and None not in known else None


def _masked_positions(step: MicroStep, values: Shipment) -> int | None:
    """Positions of samples without any valid token."""
    if step.scored_rows is None:
        return None
    return values.vector(step.scored_rows).count(False) * step.row_length


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _digest(forwards: Sequence[Forward], values: Shipment) -> str | None:
    total = 0
    for forward in forwards:
        if forward.digest is None:
            return None
        total = total * 31 + int(values.vector(forward.digest)[0])
    return hexadecimal(total) if forwards else None


# optimizer and schedule


def _optimizer_fields(window: Window, attempt: Attempt, reading: Reading, values: Shipment) -> dict[str, Any]:
    rates = [values.number(rate) for rate in attempt.learning_rates]
    complete = [clip for clip in window.clips if clip.kind == "norm" and clip.complete]
    coefficient = _coefficient(window.clips[-1], values) if window.clips else None
    at_step = None if attempt.gradient is None else values.vector(attempt.gradient)
    return {
        "learning_rate": rates[0] if rates else None,
        "learning_rates": rates,
        "weight_decays": attempt.weight_decays,
        "optimizer_step_skipped": False,
        "grad_norm_before_clip": values.number(complete[-1].norm) if complete else None,
        "grad_norm_after_clip": values.number(attempt.norm),
        "grad_norm_before_scope": attempt.norm_scope if complete else None,
        "grad_norm_after_scope": attempt.norm_scope if attempt.norm is not None else None,
        "clips": [_clip_fields(clip, values) for clip in window.clips] or None,
        "grad_rescale": reading.rescale,
        "optimizer_state_step": _whole(values.number(attempt.state_step)),
        "param_digest": None
        if attempt.digest is None
        else hexadecimal(int(values.vector(attempt.digest)[0])),
        "probe_parameter": attempt.probe_name,
        "probe_gradient": None if window.gradient is None else values.vector(window.gradient),
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
    if attempt.parameter_after is None:
        return None
    return _vector(attempt.parameter_before, values) != _vector(attempt.parameter_after, values)


def _vector(tensor: Tensor, values: Shipment) -> list[float]:
    return values.vector(tensor)


def _schedule_fields(window: Window, values: Shipment) -> dict[str, Any]:
    step, rate = window.schedule
    return {"scheduler_step": step, "scheduler_rate": values.number(rate)}
