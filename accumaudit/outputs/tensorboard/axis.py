"""One axis of a run: an event file that ends with an update, and goes on from there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accumaudit.outputs.tensorboard import tags
from accumaudit.outputs.tensorboard.entries import Entry, layout_event
from accumaudit.outputs.tensorboard.event_file import EventFile

TOGETHER: Final = 1_000
"""Events that are written at once: all of them or none."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was last written of a finding."""

    count: int
    """Faulty attempts; 0 where it was withdrawn."""
    step: int


class Axis:
    """The events of a run over updates or over tokens, each update once.

    What is there already is read back, so that a service that was started anew writes nothing twice.

    Args:
        folder: TensorBoard's run.
        started_at: when the run started, as in EventFile.
        over_tokens: steps are tokens, and a tag tells the update; else steps are updates.
    """

    def __init__(self, folder: Path, started_at: float | None = None, *, over_tokens: bool) -> None:
        self._file = EventFile(folder, started_at)
        self._over_tokens = over_tokens
        self._prefix = tags.OVER_TOKENS if over_tokens else ""
        self._load()

    def _load(self) -> None:
        self.step = self.update = -1
        self.time = 0.0
        """Of the last event."""
        self.launch = self.attempt = self.skipped = 0
        """Of the last update, or of what was skipped after it; the last counts the run's skips so far."""
        self.told: dict[str, Told] = {}
        """By the codes of rules."""
        self._described: set[str] = set()
        for event in self._file.events():
            self._note(event.step, event.wall_time, self._numbers(event))

    def _note(self, step: int, time: float, numbers: dict[str, float]) -> None:
        self._described.update(numbers)
        self.time = time
        if tags.ATTEMPT in numbers:
            self.step, self.update = step, self._update(step, numbers)
            self.launch, self.attempt = round(numbers[tags.LAUNCH]), round(numbers[tags.ATTEMPT])
            self.skipped = round(numbers.get(tags.SKIPPED, 0.0))
            return
        for tag, number in numbers.items():
            if tag.startswith(tags.FINDINGS):
                self.told[tag.removeprefix(tags.FINDINGS)] = Told(round(number), step)

    def _update(self, step: int, numbers: dict[str, float]) -> int:
        return round(numbers[tags.UPDATE]) if self._over_tokens else step

    def refresh(self) -> None:
        """Read again what is there, if somebody else has changed it."""
        if not self._file.is_as_left:
            self._load()

    def make_way(self, update: int) -> None:
        """Leave out this update and what follows it, where it is there; what was found stays."""
        if update <= self.update:
            self._file.keep(lambda event: self._is_before(event, update))
            self._load()

    def _is_before(self, event: Any, update: int) -> bool:
        numbers = self._numbers(event)
        return tags.ATTEMPT not in numbers or self._update(event.step, numbers) < update

    def write(self, entries: Iterable[Entry]) -> None:
        """Write events at the end."""
        remaining = iter(entries)
        while some := list(itertools.islice(remaining, TOGETHER)):
            self._write(some)

    def _write(self, entries: Sequence[Entry]) -> None:
        described = self._described.copy()
        events = []
        if not self._over_tokens and tags.LAYOUT not in described:
            events.append(layout_event(entries[0].time))
            described.add(tags.LAYOUT)
        for entry in entries:
            events.append(entry.event(described, self._prefix))
            described.update(entry.numbers)
        self._file.append(events)
        self._described = described
        for entry in entries:
            self._note(entry.step, entry.time, entry.numbers)

    def clear(self) -> None:
        """Leave nothing."""
        self._file.clear()
        self._load()

    def _numbers(self, event: Any) -> dict[str, float]:
        """The numbers of an event by their tags, without the prefix; a text or a layout is none, and 0."""
        values = ((value.tag.decode("utf-8", "replace"), value.simple_value) for value in event.summary.value)
        return {tag.removeprefix(self._prefix): number for tag, number in values}
