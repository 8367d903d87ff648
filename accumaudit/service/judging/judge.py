"""Judges runs while they are written: the newest attempts again and again, the whole record at the end."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accumaudit.engine.catalogue import load_rules
from accumaudit.service.judging.cases import Cases, Judgement
from accumaudit.service.judging.newest import Newest
from accumaudit.service.judging.setup import Asked, Limits, Setup
from accumaudit.service.judging.thorough import Thorough
from accumaudit.service.judging.windows import Window
from accumaudit.service.lines import Chunk

__all__ = ["Asked", "Judge", "Judgement", "Limits"]


class Judge:
    """All runs below a folder. Logs of other programs are not followed.

    Args:
        root: the folder that is watched.
        asked: which rules, and how.
        limits: what may be spent.
        clock: seconds that only grow.

    Raises:
        RuleError: a rule file cannot be used.
        SelectionError: there is no such rule or parameter.
    """

    def __init__(
        self,
        root: Path,
        asked: Asked | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        asked = asked or Asked()
        catalogue = load_rules(*asked.rules).with_params(asked.params)
        catalogue.matching((*asked.select, *asked.ignore, *(one.rule for one in asked.ignores)))
        self._setup = Setup(
            root=root,
            asked=asked,
            limits=limits or Limits(),
            catalogue=catalogue,
            clock=clock,
            folder=Path(tempfile.gettempdir(), f"accumaudit-judge-{secrets.token_hex(8)}"),
        )
        # Where nobody calls close, as in a service that ends with an error.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._setup.folder, ignore_errors=True)
        self._windows: dict[str, Window] = {}
        self._moving: dict[str, None] = {}
        """Folders in which something is to be judged, now or soon."""
        self._restored: list[Judgement] = []
        self._grew = False
        """Lines were taken since there was room for all."""
        self._cases = Cases(self._setup)
        self._newest = Newest(self._setup, self._cases)
        self._thorough = Thorough(self._setup, self._cases)

    @property
    def judgements(self) -> int:
        """How often the rules were run."""
        return self._newest.judgements + self._thorough.judgements

    @property
    def failures(self) -> int:
        """How often they could not be run."""
        return self._newest.failures + self._thorough.failures

    @property
    def seconds(self) -> float:
        """CPU time of the rules."""
        return self._newest.seconds + self._thorough.seconds

    @property
    def troubles(self) -> dict[str, str]:
        """What cannot be judged, in sentences."""
        return self._newest.troubles

    @property
    def pids(self) -> list[int]:
        """The processes that judge."""
        return [pid for pid in (self._newest.pid, self._thorough.pid) if pid is not None]

    @property
    def idle(self) -> bool:
        """Nothing is being judged, and nothing could be by now."""
        return not (
            self._newest.busy
            or self._thorough.busy
            or any(self._windows[one].is_dirty for one in self._moving if not self._newest.is_paused(one))
        )

    def take(self, chunk: Chunk) -> None:
        """Keep new lines until they are judged."""
        folder = chunk.run
        window = self._windows.get(folder)
        if window is None:
            window = self._windows[folder] = Window(folder, self._setup.home(folder))
        window.take(chunk, self._setup.clock())
        if not chunk.again:
            for case in self._cases.in_folder(folder):
                case.final = case.final and case.name != window.runs[-1]
        self._moving[folder] = None
        self._grew = True

    def turn(self, now: float) -> list[Judgement]:
        """Go on without waiting: collect what was judged, and start what is due.

        Args:
            now: seconds since the epoch.
        """
        done = [*self._restored, *self._newest.collect(now), *self._thorough.collect(now)]
        self._restored.clear()
        while self._newest.unended:
            self._thorough.finish(self._newest.unended.pop())
        tick = self._setup.clock()
        for folder in list(self._moving):
            window = self._windows[folder]
            window.advance(tick, self._setup.limits.patience)
            if not window.moves and not self._newest.holds(folder):
                del self._moving[folder]
        if self._grew or done:
            self._shrink()
        self._thorough.start(self._windows, self._moving)
        self._newest.start(self._windows, [one for one in self._moving if not self._windows[one].is_behind])
        return done

    def finish(self, run: str) -> None:
        """A run of this name has ended: judge its whole record as `check` does."""
        folder = self._folder_of(run)
        if folder is not None and not self._windows[folder].finish():
            self._thorough.finish(folder)
        elif folder is not None:
            self._moving[folder] = None

    def forget(self, run: str) -> None:
        """Nothing is to be known of a run of this name any more."""
        folder = self._folder_of(run)
        self._cases.forget(run)
        if folder is not None and not self._cases.in_folder(folder):
            self._windows.pop(folder).forgotten = True
            self._moving.pop(folder, None)
            self._newest.forget(folder)

    def keep_from(self) -> dict[str, int]:
        """The first line of each file that is needed again after a restart, beside the file's first line."""
        found: dict[str, int] = {}
        for window in self._windows.values():
            found.update(window.keep_from())
        return found

    def saved(self, runs: Iterable[str]) -> dict[str, Any]:
        """What another process goes on from, as JSON by folder, for the folders of these runs.

        None where nothing is to be known of a folder any more.
        """
        saved: dict[str, Any] = {}
        for folder in dict.fromkeys(folder for run in runs for folder in self._folders_of(run)):
            window = self._windows.get(folder)
            cases = {case.name: case.saved() for case in self._cases.in_folder(folder)}
            ends = self._thorough.is_ending(folder) or (window is not None and window.ends)
            saved[folder] = None if window is None else {**window.saved(), "ends": ends, "cases": cases}
        return saved

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what was saved, before any line is taken; the next turn gives what was known."""
        for folder, one in saved.items():
            window = self._windows[folder] = Window(folder, self._setup.home(folder))
            window.restore(one)
            self._restored += self._cases.restore(folder, one["cases"])
            if one["ends"]:
                self._thorough.finish(folder)

    def _folder_of(self, run: str) -> str | None:
        """The folder of a run, where it is known."""
        return next((folder for folder in self._folders_of(run) if folder in self._windows), None)

    def _folders_of(self, run: str) -> list[str]:
        """The folder of a run; those that it may have where nothing was said of it, or not any more."""
        case = self._cases.get(run)
        return [case.folder] if case else self._setup.folders_of(run)

    def close(self) -> None:
        """End the processes; nothing stays behind."""
        self._newest.close()
        self._thorough.close()
        self._remove_folder()

    def _shrink(self) -> None:
        """Let all windows together have the room that there is."""
        self._grew = False
        limits, windows = self._setup.limits, list(self._windows.values())
        records = fair([window.records for window in windows], limits.records)
        size = fair([window.size for window in windows], limits.bytes)
        for window in windows:
            if window.records > records or window.size > size:
                window.shrink(records, size)
                if window.ends and not all(map(window.is_whole, window.runs)):
                    window.ends = False
                    self._thorough.finish(window.folder)


def fair(wanted: Sequence[int], room: int) -> int:
    """The most that each may have so that all together have no more than there is."""
    ordered = sorted(wanted)
    for place, one in enumerate(ordered):
        share = room // (len(ordered) - place)
        if one > share:
            return share
        room -= one
    return max(ordered, default=0)
