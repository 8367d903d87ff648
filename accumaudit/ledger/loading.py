"""Loads the files of a ledger into DuckDB, every field with the type that the schema gives it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import duckdb

from accumaudit import importers
from accumaudit.ledger import columns, parsing, recovery
from accumaudit.ledger.derived import LISTS
from accumaudit.ledger.sources import Kind, Source

if TYPE_CHECKING:
    import pyarrow as pa

LINE_LIMITS: Final = (16 * 2**20, 512 * 2**20)
"""Bytes that a line may have: the first limit suits nearly all logs and costs less memory."""

PART: Final = 600 * 2**20
"""Bytes of JSON after which records go into a new table, so that those before can be compressed in memory."""

PLACES: Final = 2**40
"""Distance between the numbers of records in different tables."""

SMALL: Final = 4 * 2**20
"""Bytes of input below which threads cost more than they save; so do typed columns, a file."""

UNUSED_OPTIMIZERS: Final = ("join_order", "statistics_propagation")
"""Steps of planning that small input is not worth: they take a sixth of a rule's time, and save none."""

GATHERED: Final = (8, 64 * 2**20)
"""From so many files on, and up to so many bytes, the lines of all files are brought together first."""

PACKED: Final = 8
"""How many times as long JSON is as its compressed form, about."""

IMPORTED: Final = 100_000
"""Rows of foreign logs that are stored at once."""

UNPACKED: Final = 2
"""How many times as long JSON is as the same in columns, about."""

CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "checkpoint_threshold": "1TB",  # a checkpoint compresses the tables in memory: loading decides when
}

_OPTIONS: Final = """
    ignore_errors = true, hive_partitioning = false, compression = '%(compression)s',
    maximum_object_size = %(limit)d
"""
# With a column for each field, read_json takes milliseconds a file before it reads any; it parses but once.
JSON_SCAN: Final = f"""
    SELECT file_index, * FROM read_json(
        $1, format = 'newline_delimited', records = 'true', columns = {columns.COLUMNS}, {_OPTIONS})
"""
SMALL_JSON_SCAN: Final = f"""
    SELECT file_index, unnest(TRY(from_json(json, {columns.STRUCTURE})))
    FROM read_ndjson_objects($1, {_OPTIONS})
"""
# Columns are worked out for some lines of one file at a time, which for a few costs as much as for thousands.
GATHER: Final = f"""
    CREATE TEMP TABLE gathered AS SELECT file_index, json FROM read_ndjson_objects($1, {_OPTIONS})
"""
GATHERED_SCAN: Final = f"""
    SELECT file_index + len($1::VARCHAR[]) AS file_index, unnest(TRY(from_json(json, {columns.STRUCTURE})))
    FROM gathered
"""
PARQUET_SCAN: Final = """
    SELECT file_index, %(columns)s FROM read_parquet($1, hive_partitioning = false)
"""
ARROW_SCAN: Final = """
    SELECT file_index + len($1::VARCHAR[]) AS file_index, %(columns)s FROM imported
"""
STORE: Final = f"""
    SELECT {columns.STORED} FROM (
        SELECT *, {LISTS} FROM (
            SELECT ($2::BIGINT[])[file_index::BIGINT + 1] AS file_id, {columns.CLEANED}
            FROM (SELECT {columns.JUDGED} FROM (%s))))
"""
STORE_FILLED: Final = f"""
    SELECT ($2::BIGINT[])[file_index::BIGINT + 1] AS file_id, %(filled)s
    FROM (SELECT {columns.JUDGED.replace("%", "%%")} FROM (%(scan)s))
"""
EMPTY: Final = f"{STORE % f'SELECT len($1::VARCHAR[]) AS file_index, {columns.cast(())}'} LIMIT 0"


FILES: Final = f"""
    CREATE TABLE stored.files AS
    SELECT s.file_id, s.file, s.numbered, min(r.n) AS first_line, count(r.record) AS readable,
           count(r.n) FILTER (r.record IS NULL OR NOT r.lists_agree) AS unreadable,
           max(r.{columns.rare("schema")}) FILTER (r.record = 'run') AS schema
    FROM (SELECT unnest($1) AS file_id, unnest($2) AS file, unnest($3) AS numbered) s
    LEFT JOIN stored.records r USING (file_id)
    GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read, or not to its end."""

    source: Source
    why: str
    line: int | None = None


def connect(sources: Sequence[Source], memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """Open an empty database in memory, which installs nothing and spills to the temporary folder."""
    limit = {} if memory_limit is None else {"memory_limit": memory_limit}
    connection = duckdb.connect(":memory:", config={**CONFIG, **limit})
    folder = Path(tempfile.gettempdir()) / f"accumaudit-{uuid4().hex}"
    connection.execute("CREATE SCHEMA stored")
    connection.execute(f"SET temp_directory = {columns.quoted(str(folder))}")
    if is_tiny(sources):
        connection.execute("SET threads = 1")
        connection.execute(f"SET disabled_optimizers = '{','.join(UNUSED_OPTIMIZERS)}'")
    return connection


def size(sources: Iterable[Source]) -> int:
    """The bytes of the files, as they are."""
    return sum(map(_size, sources))


def is_tiny(sources: Iterable[Source]) -> bool:
    """Whether planning a query costs more than answering it."""
    return size(sources) < SMALL


def is_small(sources: Iterable[Source]) -> bool:
    """Whether memory is no matter."""
    return sum(map(_length, sources)) <= PART


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on the connection reaches its tables alone, and nobody can change that."""
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def load(
    connection: duckdb.DuckDBPyConnection,
    sources: Sequence[Source],
    on_read: Callable[[int], object] = lambda _: None,
) -> list[Failure]:
    """Create the table `stored.files` and the view `stored.records`; give the files that failed.

    The number `n` of a record grows in the order of reading, by one from line to line of a file.
    """
    loader = _Loader(connection, large=sum(map(_length, sources)) > PART)
    kinds: tuple[Kind, ...] = ("plain", "gzip", "zstd")
    for kind in kinds:
        for group in _groups([source for source in sources if source.kind == kind]):
            loader.read_together(group, kind)
            on_read(size(group))
    for source in sources:
        if source.kind == "parquet":
            loader.read_parquet(source)
            on_read(size([source]))
        elif source.kind == "zstd":
            loader.check_zstd(source)
        elif source.kind == "foreign":
            loader.read_foreign(source)
    loader.finish()
    parsing.run(
        connection,
        FILES,
        [
            [source.id for source in sources],
            [source.name for source in sources],
            [source.kind == "foreign" for source in sources],
        ],
    )
    return loader.failures


class _Loader:
    """Reads files together, and in ever smaller groups where one of them cannot be read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, large: bool) -> None:
        self.failures: list[Failure] = []
        self._connection = connection
        self._large = large
        self._parts = 0
        self._part: int | None = None
        """The table that takes further records of all fields; None until the first of them."""
        self._part_length = 0
        self._filled: frozenset[str] = frozenset()
        """The columns of the last table, where it has those of a log's records alone."""
        self._imported: list[pa.Table] = []
        self._imported_rows = 0
        self._imported_ids: list[int] = []

    def read_together(self, sources: Sequence[Source], kind: Kind) -> None:
        if not sources:
            return
        try:
            self._read_json([source.absolute for source in sources], sources, kind)
        except duckdb.Error as error:
            if len(sources) == 1:
                self._recover(sources[0], error)
                return
            half = len(sources) // 2
            self.read_together(sources[:half], kind)
            self.read_together(sources[half:], kind)

    def check_zstd(self, source: Source) -> None:
        if recovery.zstd_ends_early(source.path):
            self.failures.append(Failure(source, recovery.ENDS_EARLY))

    def read_parquet(self, source: Source) -> None:
        pattern = _pattern(source.absolute)
        try:
            described = self._connection.execute("DESCRIBE FROM read_parquet($1)", [pattern]).fetchall()
            present = {row[0] for row in described}
            if "record" not in present:
                self.failures.append(Failure(source, "no column `record`, so it is no ledger"))
                return
            self._insert(PARQUET_SCAN % {"columns": columns.cast(present)}, [pattern], [source])
        except duckdb.Error as error:
            self.failures.append(Failure(source, _first_line(error)))

    def read_foreign(self, source: Source) -> None:
        """Read a log of another program; small ones are stored together."""
        assert source.log is not None
        assert source.format is not None

        from accumaudit.importers import arrow

        def keep(table: pa.Table) -> None:
            self._imported.append(arrow.with_index(table, "file_index", len(self._imported_ids) - 1))
            self._imported_rows += table.num_rows
            if self._imported_rows >= IMPORTED:
                self._store_imported()
                self._imported_ids = [source.id]

        self._imported_ids.append(source.id)
        _, damaged = importers.read(source.log, source.format, keep)
        self.failures += [Failure(source, why, line) for line, why in damaged]

    def _store_imported(self) -> None:
        if self._imported:
            from accumaudit.importers import arrow

            table = arrow.joined(self._imported)
            self._connection.register("imported", table)
            self._insert_imported(frozenset(table.column_names))
            self._connection.unregister("imported")
            self._part_length += table.nbytes * UNPACKED
        self._imported, self._imported_rows, self._imported_ids = [], 0, []

    def _insert_imported(self, present: frozenset[str]) -> None:
        """Store rows in a table that has their columns alone."""
        scan = ARROW_SCAN % {"columns": columns.cast(present)}
        filled = columns.filled(present)
        if filled is None:
            self._insert_rows(scan, [], self._imported_ids)
            return
        self._make_room()
        if not self._parts:
            self._store_none()
        store = STORE_FILLED % {"filled": filled, "scan": scan}
        if present == self._filled:  # else the order of the tables would not be that of reading
            statement = f"INSERT INTO stored.records_{self._parts - 1} {store}"
        else:
            statement = f"CREATE TABLE stored.records_{self._parts} AS {store}"
            self._filled = present
            self._parts += 1
        self._connection.execute(statement, [[], self._imported_ids])

    def finish(self) -> None:
        """Compress the last records of many, and see all of them as one table."""
        self._store_imported()
        if not self._parts:
            self._store_none()
        self._compress()
        parts = (
            f"SELECT {PLACES * part} + rowid AS n, * FROM stored.records_{part}"
            for part in range(self._parts)
        )
        # A table of a log's records lacks the columns that the log does not fill.
        self._connection.execute(f"CREATE VIEW stored.records AS {' UNION ALL BY NAME '.join(parts)}")

    def _read_json(self, paths: Sequence[str], sources: Sequence[Source], kind: Kind) -> None:
        try:
            self._scan_json(paths, sources, kind, LINE_LIMITS[0])
        except duckdb.InvalidInputException as error:
            if "maximum_object_size" not in str(error):
                raise
            self._scan_json(paths, sources, kind, LINE_LIMITS[1])

    def _scan_json(self, paths: Sequence[str], sources: Sequence[Source], kind: Kind, limit: int) -> None:
        options = {"compression": "uncompressed" if kind == "plain" else kind, "limit": limit}
        patterns = [_pattern(path) for path in paths]
        length = sum(map(_length, sources))
        if len(sources) >= GATHERED[0] and length <= GATHERED[1]:
            self._connection.execute(GATHER % options, [patterns])
            try:
                self._insert(GATHERED_SCAN, [], sources)
            finally:
                self._connection.execute("DROP TABLE gathered")
        else:
            scan = JSON_SCAN if length > SMALL * len(sources) else SMALL_JSON_SCAN
            self._insert(scan % options, patterns, sources)

    def _insert(self, scan: str, patterns: Sequence[str], sources: Sequence[Source]) -> None:
        self._insert_rows(scan, patterns, [source.id for source in sources])
        self._part_length += sum(map(_length, sources))

    def _insert_rows(self, scan: str, patterns: Sequence[str], ids: Sequence[int]) -> None:
        self._make_room()
        store = STORE % scan
        if self._part is None:
            table = f"CREATE TABLE stored.records_{self._parts} AS {store}"
            parsing.run(self._connection, table, [patterns, ids])
            self._part = self._parts
            self._parts += 1
            self._filled = frozenset()
        else:
            parsing.run(self._connection, f"INSERT INTO stored.records_{self._part} {store}", [patterns, ids])

    def _make_room(self) -> None:
        if self._part_length > PART:
            self._compress()
            self._part, self._part_length = None, 0
            self._filled = frozenset()

    def _store_none(self) -> None:
        """A table without a row, from which the view has all columns."""
        parsing.run(self._connection, f"CREATE TABLE stored.records_{self._parts} AS {EMPTY}", [[], []])
        self._part = self._parts
        self._parts += 1

    def _compress(self) -> None:
        if self._large:
            self._connection.execute("CHECKPOINT")

    def _recover(self, source: Source, error: duckdb.Error) -> None:
        """Read a damaged file as far as it goes."""
        with recovery.readable_copy(source, LINE_LIMITS[-1]) as (copy, why):
            self.failures.append(Failure(source, why or _first_line(error)))
            if copy is None:
                return
            try:
                self._read_json([str(copy)], [source], "plain")
            except duckdb.Error as second:
                self.failures.append(Failure(source, _first_line(second)))


def _groups(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Files that are read by one statement: few enough that their records fit beside those before."""
    group: list[Source] = []
    room = PART
    for source in sources:
        length = _length(source)
        if group and length > room:
            yield group
            group, room = [], PART
        group.append(source)
        room -= length
    yield group


def _length(source: Source) -> int:
    """The bytes of a file as JSON, about."""
    return _size(source) * (1 if source.kind in ("plain", "foreign") else PACKED)


def _size(source: Source) -> int:
    try:
        return source.path.stat().st_size
    except OSError:
        return 0


def _pattern(path: str) -> str:
    """The path as a pattern that matches itself: DuckDB expands *, ? and [ in names."""
    if not re.search(r"[*?\[]", path):
        return path
    return re.sub(r"[*?\[]", r"[\g<0>]", path.replace("\\", "?"))


def _first_line(error: duckdb.Error) -> str:
    return str(error).strip().splitlines()[0]
