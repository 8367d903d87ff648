"""Lines as they are read from the files of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line of a file, without its end."""

    number: int
    """From 1; blank lines count, and are not given."""
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Lines of one file that follow each other."""

    run: str
    """The run's folder below the one that is watched, with slashes; "." for that one itself."""
    file: str
    """The file, below the folder that is watched."""
    lines: tuple[Line, ...]
    again: bool = False
    """They were given before the service was started anew: they count no more, but are judged with others."""
    begins_anew: bool = False
    """The file was cut or replaced: what was read of it before is no more."""
