"""Makes a record of what the hooks hold: all arithmetic, in double precision, on the writer thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accumaudit.hooks.attempts import (
    average_fields,
    is_unscaled,
    optimizer_fields,
    scaler_fields,
    schedule_fields,
    skip_evidence,
)
from accumaudit.hooks.digest import hexadecimal
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.weights import main_tokens, weight_fields
from accumaudit.hooks.window import Attempt, Event, Forward, MicroStep, Window
from accumaudit.hooks.word import Reading, read_events
from accumaudit.ledger.sums import without_lists


class Settler:
    """Turns windows into records of one rank; lives on the writer thread.

    Args:
        launch: token of the launch.
        rank: global rank.
        coefficients: declared factor of each loss term, by name; the main term is "main".
        gradient_divisor: what the sum of the ranks' gradients is divided by, where that is known.
        microbatch_detail: full, or sums: of each window instead of each micro-step.
    """

    def __init__(
        self,
        launch: str,
        rank: int,
        coefficients: Mapping[str, float],
        gradient_divisor: float | None,
        microbatch_detail: str,
    ) -> None:
        self._who = {"launch": launch, "rank": rank}
        self.coefficients = coefficients
        self.gradient_divisor = gradient_divisor
        self._sums = microbatch_detail == "sums"
        self._late_skips: dict[int, int] = {}
        """Attempts that were found to be skipped when their record was made, by optimizer."""
        self._parameter: dict[int, tuple[str, list[float]]] = {}
        """The probe's parameter and its slice after the last step, by optimizer."""
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
        kept = read_events(_after_other_steps(window.events), values).kept
        return {"leftover_microbatches": len(kept), "leftover_valid_tokens": main_tokens(kept, values)}

    def late_skips(self, optimizer: int, window: Window, values: Shipment) -> int:
        """Attempts that the training thread took for applied and were none, the open window's among them."""
        attempt = window.attempt
        late = (
            attempt is not None
            and attempt.event.letter == "O"
            and skip_evidence(window, attempt, values) is not None
        )
        return self._late_skips.get(optimizer, 0) + late

    def update(self, optimizer: int, window: Window, values: Shipment) -> dict[str, Any] | None:
        """The record of one transaction."""
        values.unload()
        attempt = window.attempt
        if attempt is None:
            return None
        evidence = skip_evidence(window, attempt, values)
        if evidence is not None and attempt.event.letter == "O":
            attempt.event.letter = "X"
            self._late_skips[optimizer] = self._late_skips.get(optimizer, 0) + 1
        attempt.optimizer_update_id -= self._late_skips.get(optimizer, 0)
        record: dict[str, Any] = {"record": "update", **self._who, "optimizer": optimizer}
        record |= self._who_fields(optimizer, attempt)
        record["probe_parameter_moved"] = self._parameter_moved(optimizer, attempt, values)
        if not attempt.written:
            return None
        reading = read_events(window.events, values)
        record |= {
            "microbatches": len(reading.kept),
            "discarded_microbatches": reading.discarded + window.discarded,
            "accumulation_steps": window.accumulation_steps,
            "events": reading.word,
        }
        unscaled = is_unscaled(window, reading, values)
        record |= weight_fields(reading, self.coefficients, unscaled, values)
        record |= _data_fields(reading.kept, values)
        record |= {name: values.number(value) for name, value in window.reported.items()}
        record |= optimizer_fields(window, attempt, reading, unscaled, values)
        record["skip_evidence"] = evidence
        rescale, ratio = self._rescale(reading), attempt.divisor_ratio
        record["grad_rescale"] = None if rescale is None or ratio is None else rescale * ratio
        record |= scaler_fields(window, values) | average_fields(window, values)
        record |= schedule_fields(window, values)
        if self._sums:
            record = without_lists(record)
        self.last = record
        self._say_after(attempt.attempt_id)
        return record

    def _rescale(self, reading: Reading) -> float | None:
        """What multiplied the gradients, without the division that belongs to the loop's own reduction."""
        rescale, divisor = reading.rescale, self.gradient_divisor
        if "A" not in reading.word or rescale is None or divisor is None:
            return rescale
        for part in (reading.since_reduced, rescale):
            if part is not None and abs(part * divisor - 1) < 1e-6:
                return 1.0 if part == rescale else rescale / part
        return rescale

    def _parameter_moved(self, optimizer: int, attempt: Attempt, values: Shipment) -> bool | None:
        """Whether the probe's parameter is not what the step before left; None where that is not known."""
        known = self._parameter.get(optimizer)
        if attempt.parameter_after is not None:
            self._parameter[optimizer] = attempt.probe_name, values.vector(attempt.parameter_after)
        if known is None or known[0] != attempt.probe_name or not all(map(math.isfinite, known[1])):
            return None
        return values.vector(attempt.parameter_before) != known[1]

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


def _after_other_steps(events: Sequence[Event]) -> Sequence[Event]:
    """Gradients that another optimizer's step has used were not left over, though they came here too."""
    last = max((place for place, event in enumerate(events) if event.letter == "o"), default=-1)
    return events[last + 1 :]


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
    if step.scored is not None:
        scored, length = values.vector(step.scored), step.row_length
        rows = range(0, len(scored), length) if False in scored else ()
        return length * sum(True not in scored[row : row + length] for row in rows)
    if step.scored_rows is None:
        return None
    return values.vector(step.scored_rows).count(False) * step.row_length


def _digest(forwards: Sequence[Forward], values: Shipment) -> str | None:
    total = 0
    for forward in forwards:
        digest = values.number(forward.digest)
        if digest is None:
            return None
        total = total * 31 + int(digest)
    return hexadecimal(total) if forwards else None
