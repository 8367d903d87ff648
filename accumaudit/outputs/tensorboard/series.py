"""The attempts of one optimizer of a run, over updates and over tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.tensorboard import tags
from accumaudit.outputs.tensorboard.axis import Axis
from accumaudit.outputs.tensorboard.entries import LARGEST_STEP, Entry

if TYPE_CHECKING:
    from accumaudit.service.snapshot import Point

SKIPS: Final = 10_000
"""Skipped attempts after the last update that are kept in mind."""


class Series:
    """Both axes of one optimizer.

    An update that is done again, after a resume, takes the place of itself and of those that followed it.
    """

    def __init__(self, updates: Path, tokens: Path, started_at: float | None = None) -> None:
        self.updates = Axis(updates, started_at, over_tokens=False)
        self._tokens = Axis(tokens, started_at, over_tokens=True)
        self._skips: list[Point] = []
        """What was skipped since the last update, each attempt once and in their order."""

    def clear(self) -> None:
        """Leave nothing of it."""
        self.updates.clear()
        self._tokens.clear()

    def take(self, points: Iterable[Point]) -> None:
        """Write the attempts that are not there yet."""
        self.updates.refresh()
        self._tokens.refresh()
        place = (self.updates.launch, self.updates.attempt)
        new = sorted((one for one in points if _place(one) > place), key=_place)
        told = {_place(one): one for one in (*self._skips, *new) if one.applied is False}
        skips = [told[place] for place in sorted(told)]
        found = _each_once([one for one in new if one.applied is not False])
        if found:
            # Over tokens first: what a crash leaves there alone makes way when the same updates come again.
            self._tokens.make_way(_step(found[0]))
            self._tokens.write(self._over_tokens(found))
            self.updates.make_way(_step(found[0]))
            self.updates.write(self._over_updates(found, skips))
            skips = [one for one in skips if _place(one) > _place(found[-1])]
        self._skips = skips[-SKIPS:]

    def finish(self) -> None:
        """Write what was skipped after the last update, as if at the next one, which was never made."""
        if not self._skips:
            return
        updates, newest = self.updates, self._skips[-1]
        numbers = {
            tags.LAUNCH: float(newest.launch),
            tags.ATTEMPT: float(newest.attempt_id),
            tags.SKIPPED: float(updates.skipped + len(self._skips)),
        }
        updates.write([Entry(max(updates.step, 0) + 1, newest.time or updates.time, numbers)])
        self._skips = []

    def _over_updates(self, points: Sequence[Point], skips: Sequence[Point]) -> Iterator[Entry]:
        last, skipped, time = self.updates, self.updates.skipped, self.updates.time
        launch, attempt, step = last.launch, last.attempt, last.step
        waiting = deque(skips)
        for point in points:
            told = 0
            while waiting and _place(waiting[0]) < _place(point):
                one = waiting.popleft()
                told += one.update_id is None or one.update_id < _step(point)
            if point.launch == launch and point.update_id is not None:
                # The numbers tell it, whether or not somebody was told of each attempt.
                skipped += max(point.attempt_id - attempt - (point.update_id - step), 0)
            else:
                skipped += told
            launch, attempt, step, time = point.launch, point.attempt_id, _step(point), point.time or time
            numbers = dict(tags.numbers(point, over_tokens=False))
            yield Entry(step, time, numbers | {tags.SKIPPED: float(skipped)})

    def _over_tokens(self, points: Sequence[Point]) -> Iterator[Entry]:
        step, time = self._tokens.step, self._tokens.time
        for point in points:
            tokens = -1.0 if point.tokens_so_far is None else point.tokens_so_far
            if -1.0 < tokens < LARGEST_STEP and int(tokens) > step:
                step, time = int(tokens), point.time or time
                numbers = dict(tags.numbers(point, over_tokens=True))
                yield Entry(step, time, numbers | {tags.UPDATE: float(_step(point))})


def _each_once(points: Sequence[Point]) -> list[Point]:
    """The points without those that were done again later on."""
    kept: list[Point] = []
    for point in reversed(points):
        if not kept or _step(point) < _step(kept[-1]):
            kept.append(point)
    return kept[::-1]


def _place(point: Point) -> tuple[int, int]:
    return point.launch, point.attempt_id


def _step(point: Point) -> int:
    """The number of the update; a log that has none counts attempts."""
    return point.attempt_id if point.update_id is None else point.update_id
