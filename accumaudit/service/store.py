"""The state of the service on disk: what it has read and told, in one file that one service holds."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

APPLICATION: Final = 0x41434341
"""Marks a file of SQLite as this service's."""

VERSION: Final = 1
"""Of what the file holds."""

_TABLE: Final = "CREATE TABLE kept (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"
_KEEP: Final = "INSERT INTO kept VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_DROP: Final = "DELETE FROM kept WHERE kind = ? AND key = ?"


class StoreError(Exception):
    """The state cannot be read or written; the text says why, and what to do."""


def state_file(folder: Path) -> Path:
    """Where the state of the service that watches a folder lies, unless another place is named."""
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not home.is_absolute():
        home = Path.home() / ".local" / "state"
    name = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=8).hexdigest()
    return home / "accumaudit" / f"{name}.sqlite"


class Store:
    """JSON values by kind and key; those of one `save` are written together or not at all.

    Args:
        path: the file; it and its folder are made where they are not there.

    Raises:
        StoreError: the file is another program's, damaged, held by another service, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"{path}: the state cannot be written ({error.strerror}); name another file with --state"
            ) from error
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            raise StoreError(self._refusal(error)) from error
        except StoreError:
            self._connection.close()
            raise
        self._identity = _identity(path)

    def _open(self) -> None:
        """Take the file for this process alone, and make sure that it is whole and the service's own."""
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = TRUNCATE")
        run("BEGIN EXCLUSIVE")
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and not application:
            run(_TABLE)
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {VERSION}")
        elif application != APPLICATION:
            raise StoreError(
                f"{self.path}: not the state of this service but another program's file; "
                "name another with --state"
            )
        elif version != VERSION:
            raise StoreError(
                f"{self.path}: the state of another version of accumaudit (its format is {version}, "
                f"not {VERSION}); move the file away to begin anew, or name another with --state"
            )
        run("COMMIT")
        (found,) = run("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreError(self._damaged(found.splitlines()[-1]))

    def _refusal(self, error: sqlite3.Error) -> str:
        if "locked" in str(error):
            return (
                f"{self.path}: another service holds this state; end it, "
                "or give this one its own file with --state"
            )
        if isinstance(error, sqlite3.OperationalError):
            return f"{self.path}: the state cannot be written ({error}); name another file with --state"
        return self._damaged(str(error))

    def _damaged(self, why: str) -> str:
        return (
            f"{self.path}: the state is damaged ({why}); move the file away to begin anew: "
            "the logs are read again, and findings are told again"
        )

    def load(self) -> dict[str, dict[str, Any]]:
        """All values, by kind and key.

        Raises:
            StoreError: the file is damaged.
        """
        loaded: dict[str, dict[str, Any]] = {}
        try:
            for kind, key, value in self._connection.execute("SELECT kind, key, value FROM kept"):
                loaded.setdefault(kind, {})[key] = json.loads(value)
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(self._damaged(str(error))) from error
        return loaded

    def save(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep values by kind and key; None lets go of one. What is not named stays.

        Raises:
            StoreError: nothing was written; the same may be tried again.
        """
        kept, dropped = [], []
        for kind, values in changes.items():
            for key, value in values.items():
                if value is None:
                    dropped.append((kind, key))
                else:
                    kept.append((kind, key, json.dumps(value, separators=(",", ":"))))
        try:
            if _identity(self.path) != self._identity:
                raise StoreError(
                    f"{self.path}: the state was deleted or replaced; start the service anew, "
                    "or what it has told is told again then"
                )
            self._write(kept, dropped)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path}: the state cannot be written ({error}); it is tried again"
            ) from error

    def _write(self, kept: list[tuple[str, str, str]], dropped: list[tuple[str, str]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_KEEP, kept)
            self._connection.executemany(_DROP, dropped)
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file under this name, if there is one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
