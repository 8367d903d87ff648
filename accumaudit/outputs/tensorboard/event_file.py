"""The one event file that accumaudit has in a folder; what else lies there is left alone."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from accumaudit import event_format

SUFFIX: Final = ".accumaudit"
"""How the names of its files end."""

WRITER: Final = "accumaudit.outputs.tensorboard"
"""Stands in the first event, so that the file is not taken for the log of a training."""

_NAME: Final = re.compile(r"events\.out\.tfevents\.(\d{1,18})" + re.escape(SUFFIX))
_PIECE: Final = 2**20
_STARTED: Final = "the run started at "
_VERSION: Final = "brain.Event:2"


RESTART: Final = 60.0
"""Seconds by which ranks of one run may start apart. A run that started later is another with its name."""


class EventFile:
    """Events in their order, at the end of which more can be written.

    Args:
        folder: TensorBoard's run.
        started_at: when the run started; events of a run that started before are removed.
    """

    def __init__(self, folder: Path, started_at: float | None = None) -> None:
        self._folder = folder
        self._given = self._started_at = started_at
        self._path: Path | None = None
        self._size = 0
        self._whole = True
        """All of what was read last was sound."""

    def events(self) -> Iterator[Any]:
        """The sound events that are there, without those that begin the file; a torn end is cut off."""
        self._path = self._newest()
        if self._path is None:
            return
        try:
            yield from self._read(self._path)
        except _AnotherRunError:
            self.clear()
            return
        if not self._whole:
            self.keep(lambda _: True)
        self._size = self._path.stat().st_size

    @property
    def is_as_left(self) -> bool:
        """Whether nobody else has changed the file, or removed it."""
        try:
            return self._path is None or self._path.stat().st_size == self._size
        except OSError:
            return False

    def append(self, events: Sequence[Any]) -> None:
        """Write events at the end, all of them or none."""
        if not events:
            return
        content = b"".join(map(_framed, events))
        if self._path is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path = self._next()
            self._size = 0
        if not self._size:
            content = self._beginning(events[0].wall_time) + content
        try:
            with self._path.open("ab") as file:
                file.write(content)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self._path, self._size)
            raise
        self._size += len(content)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Leave out all other events: in another file, whose later name tells readers that it is news."""
        old = self._newest()
        if old is None:
            return
        new = self._next()
        part = self._folder / (SUFFIX + ".part")
        try:
            with part.open("wb") as file:
                begun = False
                for event in self._read(old):
                    if not begun:
                        file.write(self._beginning(event.wall_time))
                        begun = True
                    if wanted(event):
                        file.write(_framed(event))
            part.replace(new)
        finally:
            part.unlink(missing_ok=True)
        self._path, self._size = new, new.stat().st_size
        self._retire([one for one in self._own() if one != new])

    def clear(self) -> None:
        """Leave nothing."""
        self._retire(self._own())
        self._path, self._size, self._started_at = None, 0, self._given

    def _retire(self, files: Sequence[Path]) -> None:
        """Empty the last: a reader of TensorBoard looks for no other where the file that it reads is gone."""
        for path in files[:-1]:
            path.unlink(missing_ok=True)
        for path in files[-1:]:
            os.truncate(path, 0)

    def _read(self, path: Path) -> Iterator[Any]:
        self._whole = True
        parse = event_format.message("Event").FromString
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(_PIECE), b"")
            try:
                for number, content in event_format.unframed(pieces, self._damage):
                    try:
                        event: Any = parse(content)
                    except Exception:  # DecodeError, which has another home in each version
                        self._damage(number, "")
                        continue
                    if event.HasField("session"):
                        self._meet(event.session.message)
                    if event.HasField("summary"):
                        yield event
            except event_format.DamageError:
                self._whole = False

    def _meet(self, message: str) -> None:
        """Look at when the run of the file started; since then an earlier rank may have come to light."""
        try:
            before = float(message.removeprefix(_STARTED))
        except ValueError:  # nobody knew
            return
        if self._started_at is not None and self._started_at > before + RESTART:
            raise _AnotherRunError
        self._started_at = before

    def _damage(self, _number: int, _why: str) -> None:
        self._whole = False

    def _beginning(self, wall_time: float) -> bytes:
        """The version, and a session that takes the place of what a reader has of an earlier file."""
        event = event_format.message("Event")
        version: Any = event(wall_time=wall_time, file_version=_VERSION)
        version.source.writer = WRITER
        session: Any = event(wall_time=wall_time)
        session.session.status = event_format.SESSION_START
        if self._started_at is not None:
            session.session.message = f"{_STARTED}{self._started_at!r}"
        return _framed(version) + _framed(session)

    def _own(self) -> list[Path]:
        try:
            found = list(self._folder.iterdir())
        except FileNotFoundError:
            return []
        own = [one for one in found if _NAME.fullmatch(one.name) and one.is_file()]
        return sorted(own, key=_number)

    def _newest(self) -> Path | None:
        """What is empty is no file any more: readers stand behind its beginning."""
        return next((one for one in reversed(self._own()) if one.stat().st_size), None)

    def _next(self) -> Path:
        """A name that stands behind all others, whatever the clock says."""
        number = max(int(time.time()), *(_number(path) + 1 for path in self._own()), 0)
        return self._folder / f"events.out.tfevents.{number:010d}{SUFFIX}"


class _AnotherRunError(Exception):
    """The file is of a run that started earlier."""


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _framed(event: Any) -> bytes:
    return event_format.framed(event.SerializeToString())
