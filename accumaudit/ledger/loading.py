"""Loads the files of a ledger into DuckDB, every field with the type that the schema gives it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import duckdb

from accumaudit.ledger import columns, recovery
from accumaudit.ledger.derived import LISTS
from accumaudit.ledger.sources import Kind, Source

LINE_LIMITS: Final = (16 * 2**20, 512 * 2**20)
"""Bytes that a line may have: the first limit suits nearly all logs and costs less memory."""

PART: Final = 600 * 2**20
"""Bytes of JSON after which records go into a new table, so that those before can be compressed in memory."""

PLACES: Final = 2**40
"""Distance between the numbers of records in different tables."""

SMALL: Final = 4 * 2**20
"""Bytes of input below which threads cost more than they save; so do typed columns, a file."""

PACKED: Final = 8
"""How many times as long JSON is as its compressed form, about."""

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
PARQUET_SCAN: Final = """
    SELECT file_index, %(columns)s FROM read_parquet($1, hive_partitioning = false)
"""
STORE: Final = f"""
    SELECT {columns.STORED} FROM (
        SELECT *, {LISTS} FROM (
            SELECT ($2::BIGINT[])[file_index::BIGINT + 1] AS file_id, {columns.CLEANED}
            FROM (SELECT {columns.JUDGED} FROM (%s))))
"""
EMPTY: Final = f"{STORE % f'SELECT len($1::VARCHAR[]) AS file_index, {columns.cast(())}'} LIMIT 0"


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read, or not to its end."""

    source: Source
    why: str


def connect(sources: Sequence[Source]) -> duckdb.DuckDBPyConnection:
    """Open an empty database in memory, which installs nothing and spills to the temporary folder."""
    connection = duckdb.connect(":memory:", config=CONFIG)
    folder = Path(tempfile.gettempdir()) / f"accumaudit-{uuid4().hex}"
    connection.execute("CREATE SCHEMA stored")
    connection.execute(f"SET temp_directory = {columns.quoted(str(folder))}")
    if sum(_size(source) for source in sources) < SMALL:
        connection.execute("SET threads = 1")
    return connection


def is_small(sources: Iterable[Source]) -> bool:
    """Whether memory is no matter."""
    return sum(map(_length, sources)) <= PART


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on the connection reaches its tables alone, and nobody can change that."""
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def load(connection: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> list[Failure]:
    """Create the table `stored.files` and the view `stored.records`; give the files that failed.

    The number `n` of a record grows in the order of reading, by one from line to line of a file.
    """
    loader = _Loader(connection, large=sum(map(_length, sources)) > PART)
    kinds: tuple[Kind, ...] = ("plain", "gzip", "zstd")
    for kind in kinds:
        for group in _groups([source for source in sources if source.kind == kind]):
            loader.read_together(group, kind)
    for source in sources:
        if source.kind == "parquet":
            loader.read_parquet(source)
        elif source.kind == "zstd":
            loader.check_zstd(source)
    loader.finish()
    connection.execute(
        """
        CREATE TABLE stored.files AS
        SELECT s.file_id, s.file, min(r.n) AS first_line
        FROM (SELECT unnest($1) AS file_id, unnest($2) AS file) s LEFT JOIN stored.records r USING (file_id)
        GROUP BY ALL
        """,
        [[source.id for source in sources], [str(source.path) for source in sources]],
    )
    return loader.failures


class _Loader:
    """Reads files together, and in ever smaller groups where one of them cannot be read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, large: bool) -> None:
        self.failures: list[Failure] = []
        self._connection = connection
        self._large = large
        self._parts = 0
        self._begin_part()

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

    def finish(self) -> None:
        """Compress the last records of many, and see all of them as one table."""
        self._compress()
        parts = (
            f"SELECT {PLACES * part} + rowid AS n, * FROM stored.records_{part}"
            for part in range(self._parts)
        )
        self._connection.execute(f"CREATE VIEW stored.records AS {' UNION ALL '.join(parts)}")

    def _read_json(self, paths: Sequence[str], sources: Sequence[Source], kind: Kind) -> None:
        try:
            self._scan_json(paths, sources, kind, LINE_LIMITS[0])
        except duckdb.InvalidInputException as error:
            if "maximum_object_size" not in str(error):
                raise
            self._scan_json(paths, sources, kind, LINE_LIMITS[1])

    def _scan_json(self, paths: Sequence[str], sources: Sequence[Source], kind: Kind, limit: int) -> None:
        compression = "uncompressed" if kind == "plain" else kind
        scan = JSON_SCAN if sum(map(_length, sources)) > SMALL * len(sources) else SMALL_JSON_SCAN
        patterns = [_pattern(path) for path in paths]
        self._insert(scan % {"compression": compression, "limit": limit}, patterns, sources)

    def _insert(self, scan: str, patterns: Sequence[str], sources: Sequence[Source]) -> None:
        if self._part_length > PART:
            self._compress()
            self._begin_part()
        insert = f"INSERT INTO stored.records_{self._parts - 1} {STORE % scan}"
        self._connection.execute(insert, [patterns, [source.id for source in sources]])
        self._part_length += sum(map(_length, sources))

    def _begin_part(self) -> None:
        self._connection.execute(f"CREATE TABLE stored.records_{self._parts} AS {EMPTY}", [[], []])
        self._part_length = 0
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
    for source in sources:
        if group and sum(map(_length, [*group, source])) > PART:
            yield group
            group = []
        group.append(source)
    yield group


def _length(source: Source) -> int:
    """The bytes of a file as JSON, about."""
    return _size(source) * (1 if source.kind == "plain" else PACKED)


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
