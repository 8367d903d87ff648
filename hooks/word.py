"""The transaction as a word: late letters settled, Z in its place, long words shortened."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul, sub
from typing import Final

from torch import Tensor

from accumaudit.hooks.probe import Change
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.window import Event, MicroStep

LONG: Final = 64
"""Micro-steps from which on a word is shortened."""

_REPEATED_GROUP: Final = re.compile(r"([^(){}]{1,12}?)\1{3,}")
_REPEATED_LETTER: Final = re.compile(r"([^(){}])\1{63,}")


@dataclass(slots=True)
class Reading:
    """What the events of a transaction say, once the late ones are settled."""

    word: str = ""
    kept: list[MicroStep] = field(default_factory=list)
    discarded: int = 0
    factors: dict[int, float | None] = field(default_factory=dict)
    """By id of a kept micro-step: what its gradients were multiplied by before the last backward;
    None where it is not known."""
    rescale: float | None = 1.0
    """The same after the last backward, for the whole window."""
    since_reduced: float | None = 1.0
    """The part of it that came after the loop's own reduction."""
    reduced: Tensor | None = None
    """The probe's slice after a collective of the loop on a copy of the gradients."""

    unscaled: dict[int, list[Tensor | float | None]] = field(default_factory=dict)
    """By id of a kept micro-step: the scales that its gradients were divided by."""

    def keep(self, micro_step: MicroStep) -> None:
        """Count a micro-step; its further backwards are part of it."""
        if micro_step not in self.kept:
            self.kept.append(micro_step)

    def forget(self) -> None:
        """The gradients were cleared: what was kept so far is discarded."""
        self.discarded += len(self.kept)
        self.kept, self.factors, self.unscaled, self.rescale, self.since_reduced = [], {}, {}, 1.0, 1.0

    def multiply(self, factor: float | None, last: bool) -> None:
        """The gradients were multiplied, after the last backward or between two micro-steps."""
        if not self.kept:
            self.rescale = None  # gradients of nobody knows what
        elif last:
            self.rescale = _product(self.rescale, factor)
            self.since_reduced = _product(self.since_reduced, factor)
        for micro_step in self.kept if not last else ():
            self.factors[id(micro_step)] = _product(self.factors.get(id(micro_step), 1.0), factor)


def _product(known: float | None, factor: float | None) -> float | None:
    return None if factor is None or known is None else known * factor


def read_events(events: Sequence[Event], values: Shipment) -> Reading:
    """Settle the events of one transaction, in order."""
    letters: list[str] = []
    opening: int | None = None  # where in `letters` the micro-step begins that has had no backward yet
    attempted = False
    used = {id(f) for event in events if event.micro_step is not None for f in event.micro_step.forwards}
    reading = Reading()
    for place, event in enumerate(events):
        letter, factor = _settle(event, values)
        if letter == "M" and factor is None and event.collective and event.change is not None:
            letter, reading.reduced = "A", event.change.after
        if letter == "A":
            reading.since_reduced = 1.0
        attempted = attempted or letter in ("O", "X")
        if event.letter == "?" and (attempted or not letter):
            continue  # of the next window, or nothing
        if letter == "Z":
            letters.insert(len(letters) if opening is None else opening, letter)
            opening = None if opening is None else opening + 1
            reading.forget()
        elif letter == "M":
            letters.append(letter)
            reading.multiply(factor, last=not any(e.micro_step is not None for e in events[place:]))
        elif event.forward is None:
            letters.extend(letter * event.times)
        elif id(event.forward) in used:
            opening = len(letters) if opening is None else opening
            letters.append(letter)
        if letter == "U":
            for micro_step in reading.kept:
                reading.unscaled.setdefault(id(micro_step), []).append(event.scale)
        if event.micro_step is not None:
            opening = None
            reading.keep(event.micro_step)
    reading.word = shorten("".join(letters), sum(event.micro_step is not None for event in events))
    return reading


def _settle(event: Event, values: Shipment) -> tuple[str, float | None]:
    if event.letter != "?" or event.change is None:
        return event.letter, None
    return settle_change(event.change, values)


def settle_change(change: Change, values: Shipment) -> tuple[str, float | None]:
    """Z, M with its factor (None: no single one), or nothing where the gradient is what it was."""
    after = values.vector(change.after)
    if not after:
        return "", None  # nothing of the parameter lies here
    before = None if change.before is None else values.vector(change.before)
    if not any(after):
        return ("", None) if before is not None and not any(before) else ("Z", None)
    if before is None or len(before) != len(after):
        return "M", None
    factor = ratio(before, after)
    if factor is None and list(map(repr, before)) == list(map(repr, after)):
        return "", None  # NaN is not equal to itself
    return ("", None) if factor == 1.0 else ("M", factor)


def ratio(before: Sequence[float], after: Sequence[float]) -> float | None:
    """The single factor from one slice to another, exactly 1.0 where nothing changed; None without one."""
    if not before:
        return None
    if before == after:
        return 1.0
    if not all(map(math.isfinite, before)) or not all(map(math.isfinite, after)):
        return None
    weight = math.fsum(map(mul, before, before))
    if weight == 0:
        return None
    factor = math.fsum(map(mul, before, after)) / weight
    largest = max(map(abs, before)) * abs(factor)
    off = max(map(abs, map(sub, after, [factor * x for x in before])))
    if off > 0.005 * largest or factor == 0:
        return None
    return 1.0 if abs(factor - 1) < 1e-6 else factor


def shorten(word: str, backwards: int) -> str:
    """Write a group that repeats out at both ends, with the copies between in braces and their number."""
    if len(word) < LONG:
        return word
    return (_REPEATED_GROUP if backwards >= LONG else _REPEATED_LETTER).sub(_braces, word)


def _braces(match: re.Match[str]) -> str:
    group, copies = match.group(1), len(match.group(0)) // len(match.group(1))
    return f"{group}{{{group}}}{copies - 2}{group}"
