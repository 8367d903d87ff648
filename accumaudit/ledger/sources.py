"""Finds the runs below the given paths: which files belong to which run, and what each file holds."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from accumaudit import importers
from accumaudit.importers import Format, Log, Options

Kind = Literal["plain", "gzip", "zstd", "parquet", "foreign"]

SUFFIXES: Final = (".jsonl.zst", ".jsonl.gz", ".jsonl", ".parquet")
MAGIC: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PAR1", "parquet"),
)
NEVER_LOGS: Final = frozenset(
    f".{ending}"
    for ending in (
        *("arrow", "bin", "ckpt", "distcp", "h5", "npy", "npz", "onnx", "pkl", "pt", "pth", "safetensors"),
        *("jpg", "mp4", "png", "tar", "wav", "zip"),
    )
)
"""What lies beside logs, is large or many, and holds no record: weights, data, pictures."""

SEARCH_DEPTH: Final = 4
"""Folders below a given one in which runs are looked for."""

_RANK_FOLDER: Final = re.compile(r"rank-\d+")
_CHECKPOINT: Final = re.compile(r"checkpoint-\d+")


class LedgerError(Exception):
    """The input cannot be audited; the text says what was seen, where, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of a run."""

    id: int
    path: Path
    name: str
    """As messages call it."""
    absolute: str
    kind: Kind
    log: Log | None = None
    """Reads a foreign log."""
    format: Format | None = None
    """Of a foreign log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """The files of one run."""

    run_id: str
    path: str
    """As messages call it."""
    given: Path
    """The path on the command line that led here."""
    files: tuple[Source, ...]
    format: str = "ledger"
    """Or the name of the importer that reads it."""


@dataclass(frozen=True, slots=True)
class NoLog:
    """A file without any record of a training, and what it looks like."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    log: Log | None = None
    format: Format | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    run: Path
    given: Path
    files: list[_File]


def find_runs(
    paths: Sequence[Path], options: Options | None = None, shown: Callable[[str], str] = str
) -> tuple[list[RunSource], list[NoLog]]:
    """Give the runs at or below `paths`, each file once, each run under a name of its own.

    The text files without any record, which stand beside them, come second. Messages and tables call
    each path what `shown` makes of it.

    Raises:
        LedgerError: a path does not exist, cannot be read or holds no log.
    """
    search = _Search(options or Options())
    found = search.files_by_run(paths)
    names = _distinct_names([one.run.resolve() for one in found])
    runs: list[RunSource] = []
    count = 0
    for one, name in zip(found, names, strict=True):
        sources = [_source(file, number, shown) for number, file in enumerate(one.files, count + 1)]
        count += len(sources)
        format_ = one.files[0].format
        runs.append(
            RunSource(
                run_id=name,
                path=shown(str(one.run)),
                given=one.given,
                files=tuple(sources),
                format=format_.name if format_ else "ledger",
            )
        )
    return runs, [NoLog(shown(str(path)), why) for path, why in search.no_logs]


def _source(file: _File, number: int, shown: Callable[[str], str]) -> Source:
    return Source(
        id=number,
        path=file.path,
        name=shown(str(file.path)),
        absolute=str(file.path.resolve()),
        kind="foreign" if file.format else _kind(file.path),
        log=file.log,
        format=file.format,
    )


def unique(name: str, taken: Container[str]) -> str:
    """The name with the first number, from 2, that is not taken."""
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"


class _Search:
    """Looks into files and folders; what holds no record is kept aside."""

    def __init__(self, options: Options) -> None:
        self.no_logs: list[tuple[Path, str]] = []
        """Files that hold none, and what they look like."""
        self._options = options

    def files_by_run(self, paths: Sequence[Path]) -> list[_Found]:
        seen: set[Path] = set()
        found: dict[Path, _Found] = {}
        for given in paths:
            for run, files in self._runs_at(given):
                new = {file.path.resolve(): file for file in files}
                fresh = [file for resolved, file in new.items() if resolved not in seen]
                seen.update(new)
                if fresh:
                    found.setdefault(run.resolve(), _Found(run, given, [])).files.extend(fresh)
        return list(_without_copies(list(found.values())))

    def _runs_at(self, path: Path) -> list[tuple[Path, list[_File]]]:
        """The runs that one given path names, as (path of the run, its files)."""
        try:
            str(path).encode()
            if not path.exists():
                raise LedgerError(f"{path}: no such file or folder; give the folder of a run, or of several")
            if path.is_file():
                return [self._run_of_file(path)]
            if not path.is_dir():
                raise LedgerError(f"{path}: neither a file nor a folder; give the folder of a run")
            runs = list(self._search(path, SEARCH_DEPTH))
        except OSError as error:
            name = error.filename or path
            raise LedgerError(f"{name}: cannot be read ({error.strerror}); check its permissions") from error
        except ValueError as error:  # a NUL, or bytes that are no UTF-8
            raise LedgerError(f"{str(path)!r}: not a usable path ({error}); rename it") from error
        if not runs:
            raise LedgerError(self._nothing(path))
        return runs

    def _nothing(self, path: Path) -> str:
        seen = [(file, why) for file, why in self.no_logs if file.is_relative_to(path)]
        if seen:
            (file, why), more = seen[0], len(seen) - 1
            others = f"; {more:,} more" if more else ""
            return f"{path}: no record of a training below this folder ({file}: {why}{others})"
        return (
            f"{path}: no log below this folder; a run holds rank-00/*.jsonl, as accumaudit.attach writes it"
        )

    def _run_of_file(self, path: Path) -> tuple[Path, list[_File]]:
        """A rank's file stands for its run's folder; any other file is a run by itself."""
        if _RANK_FOLDER.fullmatch(path.resolve().parent.name):
            folder = path.parent.parent if path.parent.name else path.resolve().parent.parent
            return folder, [_File(path)]
        log = Log(path, self._options)
        recognised = importers.recognise(log)
        if recognised.format is not None:
            return path, [_File(path, log, recognised.format)]
        if recognised.is_ledger or path.name.endswith(SUFFIXES) or _kind(path) != "plain":
            return path, [_File(path)]
        if log.trouble:
            raise LedgerError(f"{path}: {log.trouble}; check its permissions")
        raise LedgerError(f"{path}: no record of a training ({recognised.looks_like})")

    def _search(self, folder: Path, depth: int) -> Iterator[tuple[Path, list[_File]]]:
        """Runs at or below a folder: one that holds rank folders or ledger files is a run itself."""
        folders, files = _entries(folder)
        ledger = [_File(path) for rank in folders if _is_rank(rank) for path in _ledger_files(rank)]
        if _is_rank(folder.resolve()):
            ledger += map(_File, _ledger_files(folder))
            folder, files = folder.resolve().parent, []
        foreign: dict[Path, list[_File]] = {}
        for path in files:
            if path.suffix.lower() not in NEVER_LOGS:
                self._sort(path, ledger, foreign)
        if ledger:
            yield folder, ledger
        yield from foreign.items()
        if depth and not ledger:
            for inner in folders:
                if not inner.is_symlink():
                    yield from self._search(inner, depth - 1)

    def _sort(self, path: Path, ledger: list[_File], foreign: dict[Path, list[_File]]) -> None:
        """Put a file where it belongs."""
        log = Log(path, self._options)
        recognised = importers.recognise(log)
        format_ = recognised.format
        if format_ is not None:
            run = format_.run_of(path) if format_.run_of else path
            foreign.setdefault(run, []).append(_File(path, log, format_))
        elif recognised.is_ledger or path.name.endswith(".parquet"):
            ledger.append(_File(path))
        elif path.name.endswith(SUFFIXES) and not log.head.strip():
            ledger.append(_File(path))  # it may be about to be written
        elif recognised.is_text:
            self.no_logs.append((path, recognised.looks_like))


def _without_copies(found: Sequence[_Found]) -> Iterator[_Found]:
    """Leave out the logs in checkpoints whose records all stand in a later one, or in that of the run."""
    wholes: dict[Path, _File] = {}
    for one in found:
        file = one.files[0]
        if file.format is not None and file.format.is_part is not None:
            home = _home(file.path)
            wholes[home] = max(file, wholes.get(home, file), key=_completeness)
    for one in found:
        file = one.files[0]
        whole = wholes.get(_home(file.path))
        if whole is None or whole is file or not _is_copy(file, whole):
            yield one


def _completeness(file: _File) -> tuple[int, bool]:
    return file.path.stat().st_size, not _in_checkpoint(file)


def _is_copy(file: _File, whole: _File) -> bool:
    if file.format is None or file.format.is_part is None or file.log is None or whole.log is None:
        return False
    return _in_checkpoint(file) and file.format.is_part(file.log, whole.log)


def _in_checkpoint(file: _File) -> bool:
    return _CHECKPOINT.fullmatch(file.path.resolve().parent.name) is not None


def _home(path: Path) -> Path:
    """The folder of a run, for a file in it or in one of its checkpoints."""
    folder = path.resolve().parent
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder


def _is_rank(folder: Path) -> bool:
    return _RANK_FOLDER.fullmatch(folder.name) is not None


def _ledger_files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder)[1] if path.name.endswith(SUFFIXES)]


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, by name; hidden ones are passed over."""
    with os.scandir(folder) as scan:
        entries = sorted((e for e in scan if not e.name.startswith(".")), key=lambda entry: entry.name)
    folders = [folder / e.name for e in entries if _is(e, os.DirEntry.is_dir)]
    return folders, [folder / e.name for e in entries if _is(e, os.DirEntry.is_file)]


def _is(entry: os.DirEntry[str], what: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether an entry is a folder, or a file; a link that leads in circles is neither."""
    try:
        return what(entry)
    except OSError:
        return False


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
        repeated = {name for name, count in Counter(names).items() if count > 1}
        if not repeated:
            break
        names = [
            "/".join([*run.parts[-length:-1], _name(run)]) if name in repeated else name
            for run, name in zip(runs, names, strict=True)
        ]
    return names


def _name(run: Path) -> str:
    if run.name in importers.FILE_NAMES and run.is_file():
        return f"{run.parent.name}/{run.name}"
    suffix = next((suffix for suffix in SUFFIXES if run.name.endswith(suffix)), "")
    return run.name.removesuffix(suffix) or run.name or "run"
