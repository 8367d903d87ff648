"""Local copies of logs that lie elsewhere: `s3://`, `gs://`, `hf://`, and whatever else fsspec reaches."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from accumaudit.importers import Options
from accumaudit.ledger.sources import NEVER_LOGS, SEARCH_DEPTH, LedgerError

AT_ONCE: Final = 8
"""Files that are fetched at the same time."""

PIECE: Final = 2**20
"""Bytes of a file that are fetched at a time."""

LONGEST_NAME: Final = 200
"""Characters of a file's name that its copy keeps."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(place: object) -> bool:
    """Whether a place lies elsewhere."""
    return isinstance(place, str) and _URL.match(place) is not None


def place(given: str | os.PathLike[str]) -> Path | str:
    """What was given, as a path, or as the URL that it is."""
    return given if isinstance(given, str) and is_url(given) else Path(given)


class Copies:
    """The copies of one audit; closing it removes them, and so does the end of the program."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._urls: dict[str, str] = {}
        self._root: Path | None = None
        self._remove: weakref.finalize[..., Any] | None = None

    def local(self, place: Path | str) -> Path:
        """A local path with the same files; what a path names is there already.

        Raises:
            LedgerError: the URL cannot be read; the text says why, and what to do.
        """
        if isinstance(place, Path):
            return place
        if not is_url(place):
            return Path(place)
        try:
            return self._fetch(place)
        except ImportError as error:
            raise LedgerError(
                f"{place}: reading it needs a package that is not installed ({error}): "
                "pip install 'accumaudit[remote]'"
            ) from None
        except LedgerError:
            raise
        except Exception as error:  # each service has errors of its own
            raise LedgerError(
                f"{place}: cannot be read ({_brief(error)}); check its name and your access"
            ) from None

    def shown(self, text: str) -> str:
        """The text with the URL in place of each copy's path."""
        for path in sorted(self._urls, key=len, reverse=True):
            text = text.replace(path, self._urls[path])
        return text

    def close(self) -> None:
        """Remove the copies."""
        if self._remove is not None:
            self._remove()

    def _fetch(self, url: str) -> Path:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        copy = self._folder().joinpath(url.partition("://")[0], *_safe(path))
        self._urls[str(copy)] = url.rstrip("/")
        files = dict(_files(system, path))
        (copy if path not in files else copy.parent).mkdir(parents=True, exist_ok=True)
        total = sum(files.values())
        free = shutil.disk_usage(self._folder()).free
        if total > free:
            raise LedgerError(
                f"{url}: {total:,} bytes lie there, and {free:,} are free for copies; give a folder below"
            )
        self._options.on_start(f"fetching {url}", total)
        copies = [copy.joinpath(*_below(path, file)) for file in files]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(partial(self._copy, system), files, copies))  # what a thread raised is raised here
        return copy

    def _copy(self, system: Any, file: str, copy: Path) -> None:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with system.open(file, "rb") as source, copy.open("wb") as target:
            while piece := source.read(PIECE):
                target.write(piece)
                self._options.on_read(len(piece))

    def _folder(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="accumaudit-")).resolve()
            self._remove = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        return self._root


def _files(system: Any, path: str) -> Iterator[tuple[str, int]]:
    """The files at or below a path that may be logs, and their sizes; hidden ones are passed over."""
    about = system.info(path)
    if about["type"] == "file":
        yield path, about.get("size") or 0
        return
    levels = SEARCH_DEPTH + 2  # the folder itself, and those of ranks
    for _, _, files in system.walk(path, maxdepth=levels, detail=True):
        for name, about in files.items():
            if name and not name.startswith(".") and PurePosixPath(name).suffix.lower() not in NEVER_LOGS:
                yield about["name"], about.get("size") or 0


def _below(folder: str, file: str) -> list[str]:
    """The way from a folder to a file below it; none where they are the same."""
    return _safe(file.strip("/").removeprefix(folder.strip("/")))


def _safe(path: str) -> list[str]:
    """The parts of a path, none of which leads out of its folder: a service lets names be anything."""
    parts = [re.sub(r"[\x00-\x1f\\]", "_", part)[:LONGEST_NAME] for part in path.split("/")]
    return ["_" if part in (".", "..") else part for part in parts if part]


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
