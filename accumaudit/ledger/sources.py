"""Finds the runs below the given paths: which files belong to which run, and what each file holds."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["plain", "gzip", "zstd", "parquet"]

SUFFIXES: Final = (".jsonl.zst", ".jsonl.gz", ".jsonl", ".parquet")
MAGIC: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PAR1", "parquet"),
)
SEARCH_DEPTH: Final = 4
"""Folders below a given one in which runs are looked for."""

_RANK_FOLDER: Final = re.compile(r"rank-\d+")


class LedgerError(Exception):
    """The input cannot be audited; the text says what was seen, where, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of a run."""

    id: int
    path: Path
    """As it was given, for messages."""
    absolute: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """The files of one run."""

    run_id: str
    path: Path
    given: Path
    """The path on the command line that led here."""
    files: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    run: Path
    given: Path
    files: list[Path]


def find_runs(paths: Sequence[Path]) -> list[RunSource]:
    """Give the runs at or below `paths`, each file once, each run under a name of its own.

    Raises:
        LedgerError: a path does not exist, cannot be read or holds no log.
    """
    found = _files_by_run(paths)
    names = _distinct_names([one.run.resolve() for one in found])
    runs: list[RunSource] = []
    count = 0
    for one, name in zip(found, names, strict=True):
        sources = [
            Source(id=number, path=path, absolute=str(path.resolve()), kind=_kind(path))
            for number, path in enumerate(one.files, count + 1)
        ]
        count += len(sources)
        runs.append(RunSource(run_id=name, path=one.run, given=one.given, files=tuple(sources)))
    return runs


def unique(name: str, taken: Container[str]) -> str:
    """The name with the first number, from 2, that is not taken."""
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"


def _files_by_run(paths: Sequence[Path]) -> list[_Found]:
    seen: set[Path] = set()
    found: dict[Path, _Found] = {}
    for given in paths:
        for run, files in _runs_at(given):
            new = {path.resolve(): path for path in files}
            fresh = [path for resolved, path in new.items() if resolved not in seen]
            seen.update(new)
            if fresh:
                found.setdefault(run.resolve(), _Found(run, given, [])).files.extend(fresh)
    return list(found.values())


def _runs_at(path: Path) -> list[tuple[Path, list[Path]]]:
    """The runs that one given path names, as (path of the run, its files)."""
    try:
        str(path).encode()
        if not path.exists():
            raise LedgerError(f"{path}: no such file or folder; give the folder of a run, or of several")
        if path.is_file():
            return [(_run_of_file(path), [path])]
        if not path.is_dir():
            raise LedgerError(f"{path}: neither a file nor a folder; give the folder of a run")
        runs = list(_search(path, SEARCH_DEPTH))
    except OSError as error:
        name = error.filename or path
        raise LedgerError(f"{name}: cannot be read ({error.strerror}); check its permissions") from error
    except ValueError as error:  # a NUL, or bytes that are no UTF-8
        raise LedgerError(f"{str(path)!r}: not a usable path ({error}); rename it") from error
    if not runs:
        raise LedgerError(
            f"{path}: no log below this folder; a run holds rank-00/*.jsonl, as accumaudit.attach writes it"
        )
    return runs


def _run_of_file(path: Path) -> Path:
    """A rank's file stands for its run's folder; any other file is a run by itself."""
    if not _RANK_FOLDER.fullmatch(path.resolve().parent.name):
        return path
    return path.parent.parent if path.parent.name else path.resolve().parent.parent


def _search(folder: Path, depth: int) -> Iterator[tuple[Path, list[Path]]]:
    """Runs at or below a folder: one that holds rank folders or ledger files is a run itself."""
    folders, files = _entries(folder)
    for rank in folders:
        if _RANK_FOLDER.fullmatch(rank.name):
            files += _entries(rank)[1]
    if files:
        if _RANK_FOLDER.fullmatch(folder.resolve().name):
            folder = folder.resolve().parent
        yield folder, files
    elif depth:
        for inner in folders:
            if not inner.is_symlink():
                yield from _search(inner, depth - 1)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the ledger files in a folder, by name; hidden ones are passed over."""
    with os.scandir(folder) as scan:
        entries = sorted((e for e in scan if not e.name.startswith(".")), key=lambda entry: entry.name)
    folders = [folder / e.name for e in entries if e.is_dir()]
    return folders, [folder / e.name for e in entries if e.name.endswith(SUFFIXES) and e.is_file()]


def _kind(path: Path) -> Kind:
    """What a file holds, by its first bytes and not by its name."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError:
        head = b""  # it is reported when it is to be read in full
    return next((kind for magic, kind in MAGIC if head.startswith(magic)), "plain")


def _distinct_names(runs: Sequence[Path]) -> list[str]:
    """Each run's name, with as many of its parents before it as tell equal names apart."""
    names = [_name(run) for run in runs]
    for length in range(2, 1 + max((len(run.parts) for run in runs), default=0)):
        repeated = {name for name in names if names.count(name) > 1}
        if not repeated:
            break
        names = [
            "/".join([*run.parts[-length:-1], _name(run)]) if name in repeated else name
            for run, name in zip(runs, names, strict=True)
        ]
    return names


def _name(run: Path) -> str:
    suffix = next((suffix for suffix in SUFFIXES if run.name.endswith(suffix)), "")
    return run.name.removesuffix(suffix) or run.name or "run"
