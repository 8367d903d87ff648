"""Loads the files of a ledger into DuckDB, every field with the type that the schema gives it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import duckdb

from accumaudit.ledger import columns, recovery
from accumaudit.ledger.sources import Kind, Source

LINE_LIMITS: Final = (16 * 2**20, 512 * 2**20)
"""Bytes that a line may have: the first limit suits nearly all logs and costs less memory."""

GROUP: Final = 2**40
"""Distance between the numbers of records that are read by different statements."""

SMALL: Final = 4 * 2**20
"""Bytes of input below which threads cost more than they save."""

CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}

# With a column for each field, read_json takes milliseconds a file before it reads any.
JSON_SCAN: Final = f"""
    SELECT n, filename, unnest(from_json(json, {columns.STRUCTURE}))
    FROM (SELECT row_number() OVER () AS n, filename, json
          FROM read_ndjson_objects($1, ignore_errors = true, filename = true, hive_partitioning = false,
              compression = '%(compression)s', maximum_object_size = %(limit)d))
"""
PARQUET_SCAN: Final = """
    SELECT file_row_number AS n, filename, %(columns)s
    FROM read_parquet($1, filename = true, file_row_number = true, hive_partitioning = false)
"""
INSERT: Final = f"""
    INSERT INTO records BY NAME
    SELECT scan.n + %(offset)d AS n, f.file_id, {columns.SELECTED}
    FROM (SELECT *, {columns.LISTS_AGREE} AS lists_agree FROM (%(scan)s)) AS scan
    JOIN files f ON f.absolute = scan.filename
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read, or not to its end."""

    source: Source
    why: str


def connect(sources: Sequence[Source]) -> duckdb.DuckDBPyConnection:
    """Open an empty database in memory, which installs nothing and spills to the temporary folder."""
    connection = duckdb.connect(":memory:", config=CONFIG)
    folder = Path(tempfile.gettempdir()) / f"accumaudit-{uuid4().hex}"
    connection.execute(f"SET temp_directory = {columns.quoted(str(folder))}")
    if sum(_size(source) for source in sources) < SMALL:
        connection.execute("SET threads = 1")
    return connection


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From here on the connection reaches its tables alone, and nobody can change that."""
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def load(connection: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> list[Failure]:
    """Create the tables `files` and `records` from all sources; give the files that failed."""
    connection.execute("CREATE TABLE files (file_id BIGINT, absolute VARCHAR, file VARCHAR, first BIGINT)")
    connection.execute(
        "INSERT INTO files SELECT unnest($1), unnest($2), unnest($3), NULL",
        [[s.id for s in sources], [s.absolute for s in sources], [str(s.path) for s in sources]],
    )
    connection.execute(f"CREATE TABLE records (n BIGINT, file_id BIGINT, {columns.DEFINED})")
    loader = _Loader(connection)
    kinds: tuple[Kind, ...] = ("plain", "gzip", "zstd")
    for kind in kinds:
        loader.read_together([source for source in sources if source.kind == kind], kind)
    for source in sources:
        if source.kind == "parquet":
            loader.read_parquet(source)
        elif source.kind == "zstd":
            loader.check_zstd(source)
    connection.execute("""
        UPDATE files SET first = starts.first
        FROM (SELECT file_id, min(n) AS first FROM records GROUP BY file_id) AS starts
        WHERE files.file_id = starts.file_id
    """)
    return loader.failures


class _Loader:
    """Reads files together, and in ever smaller groups where one of them cannot be read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.failures: list[Failure] = []
        self._connection = connection
        self._groups = 0

    def read_together(self, sources: Sequence[Source], kind: Kind) -> None:
        if not sources:
            return
        try:
            self._read_json([source.absolute for source in sources], kind)
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
            self._insert(PARQUET_SCAN % {"columns": columns.cast(present)}, [pattern])
        except duckdb.Error as error:
            self.failures.append(Failure(source, _first_line(error)))

    def _read_json(self, paths: Sequence[str], kind: Kind) -> None:
        try:
            self._scan_json(paths, kind, LINE_LIMITS[0])
        except duckdb.InvalidInputException as error:
            if "maximum_object_size" not in str(error):
                raise
            self._scan_json(paths, kind, LINE_LIMITS[1])

    def _scan_json(self, paths: Sequence[str], kind: Kind, limit: int) -> None:
        compression = "uncompressed" if kind == "plain" else kind
        scan = JSON_SCAN % {"compression": compression, "limit": limit}
        self._insert(scan, [[_pattern(path) for path in paths]])

    def _insert(self, scan: str, parameters: list[object]) -> None:
        self._connection.execute(INSERT % {"scan": scan, "offset": self._groups * GROUP}, parameters)
        self._groups += 1

    def _recover(self, source: Source, error: duckdb.Error) -> None:
        """Read a damaged file as far as it goes."""
        with recovery.readable_copy(source, LINE_LIMITS[-1]) as (copy, why):
            self.failures.append(Failure(source, why or _first_line(error)))
            if copy is None:
                return
            renamed = "UPDATE files SET absolute = $1 WHERE file_id = $2"
            self._connection.execute(renamed, [str(copy), source.id])
            try:
                self._read_json([str(copy)], "plain")
            except duckdb.Error as second:
                self.failures.append(Failure(source, _first_line(second)))


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
