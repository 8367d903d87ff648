"""Follows the ledger files below a folder: polls, because network file systems announce nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accumaudit.service.discovery import Found, Search
from accumaudit.service.lines import Chunk
from accumaudit.service.places import Attention, Place
from accumaudit.service.tail import Tail

FORGET: Final = 24 * 3600.0
"""Seconds that the place in a file that is gone is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read, and how often; seconds, bytes and files."""

    file_bytes: int = 1 << 20
    """Of one file and turn."""
    turn_bytes: int = 64 << 20
    files: int = 50_000
    search_every: float = 2.0
    """From one search for new files to the next, at least."""
    search_share: float = 0.01
    """Of a core, at most, for searching."""
    search_slice: float = 0.1
    """Of one turn, for searching."""
    slowest_look: float = 10.0
    """Between two looks at a file that is silent."""
    rest_look: float = 30.0
    """Between two looks at a file that is at rest or gone."""


class Follower:
    """Gives the lines that are added to the ledger files below a folder, each once.

    Args:
        folder: the one that is watched; it may come later, go and come back.
        places: where another process of the service stopped, by file, as `changes` gave them.
        limits: how much is read, and how often.
        clock: seconds that never jump.

    Raises:
        ValueError: one of the places is none.
    """

    def __init__(
        self,
        folder: Path,
        places: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes = 0
        """Read, without those that are read again after a restart."""
        self.read_errors = 0
        self.files_left_out = 0
        """Beyond the limit, as the last search found them."""
        self._root = str(folder)
        self._limits = limits or Limits()
        self._clock = clock
        self._saved = {file: Place.of_json(place) for file, place in (places or {}).items()}
        self._offered: dict[str, Place | None] = {}
        self._tails = {file: Tail(_run_of(file), file, place) for file, place in self._saved.items()}
        self._turn = 0
        self._search: Search | None = None
        self._walk: Iterator[Found | None] = iter(())
        self._search_due = clock()
        self._search_seconds = 0.0
        self._left_out = 0
        self._unreadable: set[str] = set()
        """Folders; each is counted once."""
        self._searched = False
        self._trouble = ""
        """With the folder itself."""
        self._listings: dict[str, dict[int, str]] = {}
        """Names by inode of folders that were listed in this turn."""
        self._identities: dict[tuple[int, int], Tail] | None = None

    def turn(self) -> list[Chunk]:
        """Look for what is new; at most a turn's share of it."""
        now = self._clock()
        self._turn += 1
        self._listings.clear()
        self._identities = None
        self._search_on(now)
        due = [tail for tail in self._tails.values() if tail.due <= now]
        changed = [tail for tail in due if self._has_changed(tail, now)]
        changed.sort(key=lambda tail: tail.served)
        return list(self._read(changed, now))

    @property
    def behind_bytes(self) -> int:
        """Written and not yet read, as far as is known."""
        return sum(tail.behind for tail in self._tails.values() if tail.missing_since is None)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at the start has been read."""
        return self._searched and all(tail.settled for tail in self._tails.values())

    @property
    def trouble(self) -> str | None:
        """What keeps files from being read, the worst of it, in a sentence."""
        if self._trouble:
            return self._trouble
        failing = [tail for tail in self._tails.values() if tail.failures and tail.missing_since is None]
        if failing:
            one = failing[0]
            count = "a file cannot" if len(failing) == 1 else f"{len(failing):,} files cannot"
            return f"{count} be read ({one.file}: {one.why}); it is tried again"
        if self.files_left_out:
            return f"{self.files_left_out:,} files beyond {self._limits.files:,} are left out"
        return None

    @property
    def files_followed(self) -> int:
        """Files that are looked at often."""
        return len(self._tails) - self.files_at_rest

    @property
    def files_at_rest(self) -> int:
        """Files of runs that have ended."""
        return sum(tail.place.attention != "followed" for tail in self._tails.values())

    def keep_from(self, file: str, number: int) -> None:
        """Say which is the first line of a file that is needed again after a restart."""
        tail = self._tails.get(file)
        if tail is not None:
            tail.keep_from(number)

    def rest(self, run: str) -> None:
        """Look at a run's files seldom; one that is written again wakes."""
        self._attend(run, "at rest")

    def remove(self, run: str) -> None:
        """Forget a run: if one of its files is written again, it is read from its beginning."""
        self._attend(run, "removed")

    def changes(self) -> dict[str, Any]:
        """The places that `saved` was not told of, by file, as JSON; None where one is to be let go of."""
        self._offered = {
            file: tail.place
            for file, tail in self._tails.items()
            if tail.place is not self._saved.get(file) and (tail.place.offset or file in self._saved)
        }
        self._offered |= {file: None for file in self._saved if file not in self._tails}
        return {file: place and place.as_json() for file, place in self._offered.items()}

    def saved(self) -> None:
        """The last changes have been saved."""
        for file, place in self._offered.items():
            if place is None:
                self._saved.pop(file, None)
            else:
                self._saved[file] = place
        self._offered = {}

    def _attend(self, run: str, attention: Attention) -> None:
        for tail in self._tails.values():
            if tail.run == run and tail.place.attention != attention:
                tail.attend(attention)

    def _search_on(self, now: float) -> None:
        """Go on with the search for files, or begin another when it is time."""
        if self._search is None:
            if now < self._search_due:
                return
            self._search = Search(self._root)
            self._walk, self._search_seconds, self._left_out = self._search.files(), 0.0, 0
        began = self._clock()
        try:
            for found in self._walk:
                if found is not None:
                    self._meet(found, now)
                elif self._clock() - began > self._limits.search_slice:
                    self._search_seconds += self._clock() - began
                    return
            self._searched, self._trouble = True, ""
        except OSError as error:
            self.read_errors += 1
            self._trouble = f"{self._root}: cannot be read ({error.strerror}); it is tried again"
        self._search_seconds += self._clock() - began
        self.read_errors += len(self._search.unreadable - self._unreadable)
        self._unreadable = self._search.unreadable
        self.files_left_out = self._left_out
        self._search = None
        pause = max(self._limits.search_every, self._search_seconds / self._limits.search_share)
        self._search_due = now + pause

    def _meet(self, found: Found, now: float) -> None:
        """Take in a file that the search came upon."""
        tail = self._tails.get(found.file)
        if tail is not None:
            if tail.missing_since is not None:
                tail.due = 0.0
            return
        try:
            status = _status(f"{self._root}/{found.file}")
        except OSError:
            return  # it has gone, or the next search counts it
        identity = status.st_dev, status.st_ino
        if self._identities is None:
            self._identities = {one.place.identity: one for one in self._tails.values()}
        known = self._identities.get(identity) if status.st_ino else None  # some file systems have no inodes
        if known is not None and self._is_there(known, identity):
            return  # another name of a file that is followed
        if known is not None and known.run == found.run:
            self._rename(known, found.file)
        elif len(self._tails) < self._limits.files:
            place = Place(device=identity[0], inode=identity[1])
            tail = Tail(found.run, found.file, place, now)
            self._tails[found.file] = self._identities[identity] = tail
        else:
            self._left_out += 1

    def _is_there(self, tail: Tail, identity: tuple[int, int]) -> bool:
        try:
            status = _status(f"{self._root}/{tail.file}")
        except OSError:
            return False
        return identity == (status.st_dev, status.st_ino)

    def _rename(self, tail: Tail, file: str) -> None:
        del self._tails[tail.file]
        tail.renamed(file)
        self._tails[file] = tail

    def _has_changed(self, tail: Tail, now: float) -> bool:
        """Look at a file; whether there may be something to read."""
        try:
            status = _status(f"{self._root}/{tail.file}")
        except (FileNotFoundError, NotADirectoryError):
            return self._is_found_elsewhere(tail) or self._is_missing(tail, now)
        except OSError as error:
            self._put_off(tail, now, error)
            return False
        identity = status.st_dev, status.st_ino
        if tail.place.offset and identity != tail.place.identity and not tail.is_same(self._root):
            name = tail.file
            if self._is_found_elsewhere(tail):
                self._tails[name] = Tail(tail.run, name, changed_at=now)
                return True
        tail.missing_since = None
        tail.size = status.st_size
        signature = (*identity, status.st_size, status.st_mtime_ns)
        if signature == tail.signature and not tail.pending:
            self._schedule(tail, now)
            return False
        tail.signature = signature
        return True

    def _is_found_elsewhere(self, tail: Tail) -> bool:
        """Whether a file has only been renamed in its folder; it is followed under its new name then."""
        folder = tail.file.rpartition("/")[0]
        if folder not in self._listings:
            self._listings[folder] = _by_inode(f"{self._root}/{folder}")
        name = self._listings[folder].get(tail.place.inode) if tail.place.offset else None
        file = "/".join(filter(None, (folder, name)))
        if name is None or file in self._tails:
            return False
        self._rename(tail, file)
        return True

    def _is_missing(self, tail: Tail, now: float) -> bool:
        """Note that a file is gone; never that there is something to read."""
        if tail.missing_since is None:
            tail.missing_since = now
        tail.signature = ()
        tail.due = now + self._limits.rest_look
        if now - tail.missing_since > FORGET and not self._trouble:
            del self._tails[tail.file]
        return False

    def _put_off(self, tail: Tail, now: float, error: OSError) -> None:
        """A file cannot be read: try again, less and less often."""
        self.read_errors += 1
        tail.failures += 1
        tail.why = error.strerror or str(error)
        tail.signature = ()
        tail.due = now + min(2.0 ** min(tail.failures, 10), self._limits.rest_look)

    def _schedule(self, tail: Tail, now: float) -> None:
        """Look at a silent file less and less often, not at all of them in one turn."""
        if tail.place.attention == "followed":
            wait = min(0.25 * (now - tail.changed_at), self._limits.slowest_look)
        else:
            wait = self._limits.rest_look
        tail.due = now + wait * (0.5 + 0.5 * tail.spread)

    def _read(self, changed: Iterable[Tail], now: float) -> Iterator[Chunk]:
        """What has been added to these files, in turns where it is much."""
        left = self._limits.turn_bytes
        for tail in changed:
            if left <= 0:
                tail.signature = ()
                continue
            before = tail.place
            try:
                chunks, read = tail.read(self._root, min(left, self._limits.file_bytes))
            except OSError as error:
                self._put_off(tail, now, error)
                continue
            left -= read
            begins_anew = any(chunk.begins_anew for chunk in chunks)
            self.bytes += tail.place.offset - (0 if begins_anew else before.offset)
            tail.served, tail.failures, tail.due = self._turn, 0, now
            if tail.place is not before:
                tail.changed_at = now
            yield from chunks


def _run_of(file: str) -> str:
    """The folder that holds a file's rank folder."""
    return "/".join(file.split("/")[:-2]) or "."


def _status(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116 - a path object for each of 10,000 files costs more than the call


def _by_inode(folder: str) -> dict[int, str]:
    """The files in a folder, as far as it can be read."""
    try:
        with os.scandir(folder) as scan:
            names = {entry.inode(): entry.name for entry in scan if not entry.name.startswith(".")}
    except OSError:
        return {}
    names.pop(0, None)
    return names
