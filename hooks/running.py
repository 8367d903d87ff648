"""The forwards of the attached model that run now."""

from __future__ import annotations

import threading
from types import FrameType

from accumaudit.hooks.window import Forward


class Running(threading.local):
    """The forwards that have begun and not ended in this thread, the outermost first.

    No hook tells that a forward was left by a KeyboardInterrupt, so each keeps the frame that it runs
    in: one whose frame is no longer on the stack has ended.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[FrameType, Forward | None]] = []

    def begin(self, caller: FrameType) -> bool:
        """A forward begins in this frame; whether it lies in no other."""
        if self._stack:
            alive = _outwards(caller)
            self._stack = [entry for entry in self._stack if entry[0] in alive]
        self._stack.append((caller, None))
        return len(self._stack) == 1

    def note(self, forward: Forward) -> None:
        """What is recorded of the forward that began last."""
        self._stack[-1] = (self._stack[-1][0], forward)

    def end(self) -> Forward | None:
        """The forward that began last has ended; what was recorded of it."""
        return self._stack.pop()[1] if self._stack else None


def _outwards(frame: FrameType | None) -> set[FrameType]:
    found = set()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found
