"""Tells a restart in the same file from a second process that writes into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from accumaudit.importers.reading.log import LogError

AHEAD: Final = 128
"""Records after a step back that are looked at."""

LEAP: Final = 1.5
"""Intervals above which a step forward leaves records out."""

Row = TypeVar("Row")


def with_restarts(
    rows: Iterable[Row], step_of: Callable[[Row], int | None]
) -> Iterator[tuple[Row, int | None]]:
    """Give each row, and where a run starts again before it: after how many updates, 0 for anew.

    Steps that go back are a restart if the log then does again what it had done, one record after the other.
    Of two writers the one behind goes back, and the one in front then goes on from where it was.

    Args:
        rows: the records of a log, in its order.
        step_of: the step of a row; None where it is no update.

    Raises:
        LogError: the rows ended early.
    """
    failures: list[LogError] = []
    source = until_failure(rows, failures)
    ahead = deque(islice(source, AHEAD))
    course = _Course()
    while ahead:
        row = ahead.popleft()
        ahead.extend(islice(source, 1))
        step = step_of(row)
        resumed = None
        if step is not None:
            if course.goes_back(step):
                following = (after for one in ahead if (after := step_of(one)) is not None)
                if course.restarts([step, *following]):
                    resumed = course.start_again(step)
            course.follow(step)
        yield row, resumed
    for failure in failures:
        raise failure


def until_failure(rows: Iterable[Row], failures: list[LogError]) -> Iterator[Row]:
    """Give the rows; what ends them early is kept until those before were given on."""
    try:
        yield from rows
    except LogError as error:
        failures.append(error)


class _Course:
    """The steps of a run, as they follow each other."""

    def __init__(self) -> None:
        self._first = self._last = self._highest = -1
        self._interval: int | None = None
        """From one record to the next."""
        self._lag: int | None = None
        """How far a second writer was behind, at most; None where there is none."""

    def goes_back(self, step: int) -> bool:
        return step <= self._last

    def start_again(self, step: int) -> int:
        """Begin with this step; give the number of updates done before it."""
        done = 0 if step <= self._first else max(step - (self._interval or 1), 0)
        if not done:
            self._first = step
        self._last = self._highest = -1
        self._lag = None
        return done

    def follow(self, step: int) -> None:
        if self._first < 0:
            self._first = step
        elif 0 <= self._last < step:
            # Between the records of two writers lie distances of all kinds.
            wide = self._lag is not None and self._interval is not None and step - self._last > self._interval
            self._interval = self._interval if wide else step - self._last
        elif self._last >= 0:
            self._lag = max(self._lag or 0, self._last - step)
        self._last = step
        self._highest = max(self._highest, step)

    def restarts(self, steps: Sequence[int]) -> bool:
        """Whether a run starts again with the first of these steps, which is no step forward."""
        back = self._last - steps[0]
        if self._lag is not None and back <= self._lag + (self._interval or 0):
            return False
        if self._is_second_writer(steps):
            return False
        return back > 0 or steps[0] <= self._first

    def _is_second_writer(self, steps: Sequence[int]) -> bool:
        """Whether the writer in front left records out, or what is new comes in turns, each twice."""
        before, interval, highest = steps[0], self._interval, self._highest
        fresh: int | None = None  # where the writer in front went on, after the last turn
        repeats, turned = 0, True
        for step in steps[1:]:
            if step == before == self._last and fresh is None:
                continue  # a third writer, which is where the two are
            if step <= before:
                if highest == self._highest:
                    return False  # two are behind, or one began again more than once
                repeats += step == fresh
                turned = True
                if repeats > 1:
                    return True
            elif step > highest:
                if fresh is None and interval is not None and step - before > LEAP * interval:
                    return True
                fresh = step if turned else fresh
                highest, turned = step, False
            elif fresh is None:
                interval = step - before
            before = step
        return False
