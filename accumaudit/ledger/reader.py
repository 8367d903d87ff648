"""Reads ledgers: from paths to a locked database that holds the tables of rules/tables.sql."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import duckdb

from accumaudit import schedules
from accumaudit.importers import Options
from accumaudit.ledger import columns, lines, loading, parsing
from accumaudit.ledger.launches import place_records
from accumaudit.ledger.remote import Copies
from accumaudit.ledger.schema import SCHEMA_VERSION
from accumaudit.ledger.sources import LedgerError, NoLog, RunSource, Source, find_runs
from accumaudit.ledger.unreadable import Unreadable, find_unreadable
from accumaudit.rules import TABLES

__all__ = ["Ledger", "LedgerError", "NoLog", "Options", "Unreadable", "read_ledger"]

HOMES: Final = """
CREATE TABLE stored.homes AS
SELECT s.*, f.file, f.first_line, f.numbered FROM stored.segments s JOIN stored.files f USING (file_id)
"""
"""Whose the records are: a row for each stretch of a file."""


@dataclass(kw_only=True)
class Ledger:
    """Runs, loaded; `connection` holds their tables and can reach nothing else."""

    connection: duckdb.DuckDBPyConnection
    runs: list[tuple[str, str]]
    """(run_id, path), in the order in which they were given."""
    unreadable: list[Unreadable]
    sources: dict[str, Source]
    """The files by the name that the tables have for them."""
    no_logs: list[NoLog]
    """Text files beside them that hold no record."""
    copies: Copies
    """Of what lies elsewhere."""

    def locate(self, file: str, ordinals: Iterable[int]) -> dict[int, int]:
        """The numbers in their file of lines that the tables count without the blank ones.

        Reads the file once, up to the last of them; what cannot be found keeps its count.
        """
        wanted = set(ordinals)
        source = self.sources.get(file)
        if source is not None and source.kind == "foreign":
            return {number: number for number in wanted}
        found = lines.find_lines(source, wanted) if source else iter(())
        return {ordinal: ordinal for ordinal in wanted} | {ordinal: number for ordinal, number, _ in found}

    def close(self) -> None:
        """Let go of the tables, and of the copies that were read."""
        self.connection.close()
        self.copies.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ledger(
    places: Sequence[Path | str], options: Options | None = None, *, memory_limit: str | None = None
) -> Ledger:
    """Read the runs at or below `places`, paths and URLs: ledgers, and logs that other programs wrote.

    Args:
        places: where the runs lie.
        options: what is said of logs that other programs wrote.
        memory_limit: the memory that the database may take, `3GB`; it spills what does not fit.

    Raises:
        LedgerError: a place cannot be audited; the text says why, and what to do.
    """
    options = options or Options()
    copies = Copies(options)
    try:
        return _read([copies.local(place) for place in places], options, copies, memory_limit)
    except LedgerError as error:
        copies.close()
        raise LedgerError(copies.shown(str(error))) from error
    except BaseException:
        copies.close()
        raise


def _read(paths: Sequence[Path], options: Options, copies: Copies, memory_limit: str | None) -> Ledger:
    runs, no_logs = find_runs(paths, options, copies.shown)
    files = [source for run in runs for source in run.files]
    options.on_start("reading the records", loading.size(files))
    connection = loading.connect(files, memory_limit)
    try:
        unreadable = _load(connection, runs, files, options)
        named = _build_tables(connection, runs)
        loading.lock(connection)
    except BaseException:
        connection.close()
        raise
    return Ledger(
        connection=connection,
        runs=[(run_id, run.path) for run_id, run in named.items()],
        unreadable=unreadable,
        sources={source.name: source for source in files},
        no_logs=no_logs,
        copies=copies,
    )


def _load(
    connection: duckdb.DuckDBPyConnection,
    runs: Sequence[RunSource],
    files: Sequence[Source],
    options: Options,
) -> list[Unreadable]:
    failures = loading.load(connection, files, options.on_read)
    unreadable = find_unreadable(connection, runs, failures)
    _refuse_newer_schema(connection)
    _refuse_foreign(connection, runs, unreadable)
    return unreadable


def _build_tables(connection: duckdb.DuckDBPyConnection, runs: Sequence[RunSource]) -> dict[str, RunSource]:
    named = place_records(connection, runs)
    connection.execute(
        "CREATE TABLE stored.sources AS "
        "SELECT unnest($1) AS run_id, unnest($2) AS path, unnest($3) AS format",
        [list(named), [run.path for run in named.values()], [run.format for run in named.values()]],
    )
    connection.execute(HOMES)
    for kind in ("run", "mark"):
        parsing.run(connection, columns.table(kind))
    tables = TABLES.read_text(encoding="utf-8")
    files = [file for run in runs for file in run.files]
    if loading.is_small(files):
        # Quicker to ask, and the room is there.
        kept = "updates|duplicates|superseded" + (r"|stored\.updates" if loading.is_tiny(files) else "")
        tables = re.sub(rf"CREATE VIEW ({kept})\b", r"CREATE TABLE \1", tables)
    parsing.run(connection, tables)
    schedules.fill(connection)
    return named


def _refuse_newer_schema(connection: duckdb.DuckDBPyConnection) -> None:
    newer = connection.execute(
        "SELECT file, schema FROM stored.files WHERE schema > $1 ORDER BY first_line LIMIT 1",
        [SCHEMA_VERSION],
    ).fetchall()
    for file, version in newer:
        raise LedgerError(
            f"{file}: written in version {version} of the schema, of which this accumaudit reads "
            f"{SCHEMA_VERSION} and older; update accumaudit"
        )


def _refuse_foreign(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[RunSource], unreadable: Sequence[Unreadable]
) -> None:
    """Stop where a given path holds no record at all."""
    rows = connection.execute("SELECT file_id FROM stored.files WHERE readable > 0").fetchall()
    with_records = {file_id for (file_id,) in rows}
    for path in dict.fromkeys(run.given for run in runs):
        files = [source for run in runs if run.given == path for source in run.files]
        # A log that was recognised may still hold nothing but its heading.
        if any(source.kind == "foreign" or source.id in with_records for source in files):
            continue
        names = {source.name for source in files}
        bad = [one for one in unreadable if one.file in names]
        seen = "it is empty so far"
        if bad:
            seen = f"{bad[0].file}{f':{bad[0].line}' if bad[0].line else ''}: {bad[0].why}"
        raise LedgerError(f"{path}: no record of a ledger ({seen}); give what accumaudit.attach wrote")
