"""Frames of the code that called a hook."""

from __future__ import annotations

import sys
from types import FrameType


def calling_frame() -> FrameType | None:
    """The innermost frame outside the hooks: the same for what is called before and after one call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("accumaudit.hooks"):
        frame = frame.f_back
    return frame


def is_running(wanted: FrameType) -> bool:
    """Whether a frame is still on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def site_outside(package: str) -> tuple[object, int]:
    """Where the code that is no part of a package, nor of the hooks, has called it: code and place in it."""
    frame = calling_frame()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
