"""A ledger in Python: its tables and the rules' findings, as rows, Arrow or pandas.

    with accumaudit.Ledger.open("runs/first") as ledger:
        ledger.windows["total_weight"]
        ledger.findings.pandas()

Nothing here needs torch; pandas and pyarrow are imported when they are asked for.
"""

from __future__ import annotations

import importlib
import os
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

try:
    import duckdb
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "reading a ledger needs duckdb, which is not installed: pip install duckdb", name="duckdb"
    ) from None

from accumaudit.comparison import BYS, TOLERANCE
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.engine.rule import SEVERITIES, sql_reason
from accumaudit.importers.options import checked
from accumaudit.ledger.reader import LedgerError, NoLog, Options, Unreadable, read_ledger
from accumaudit.ledger.remote import place
from accumaudit.nearest import nearest

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from plotly.graph_objects import Figure

    from accumaudit import plotting
    from accumaudit.comparison import By, Comparison
    from accumaudit.engine.findings import AuditReport, RunReport
    from accumaudit.engine.ignoring import Ignore
    from accumaudit.postmortem import PostMortem

__all__ = ["Ledger", "LedgerError", "Table"]

AT_ONCE: Final = 1_000
"""Rows that are turned into Python at a time."""

SHOWN: Final = 10
"""Rows that a notebook shows of a table."""

ATTEMPT: Final = "run_id, launch, optimizer, attempt_id"


class Table:
    """Rows of a ledger, in their order. They are read when they are asked for, each time anew."""

    def __init__(self, ledger: Ledger, source: str, order: str = "") -> None:
        self._ledger = ledger
        self._source = source
        self._order = f" ORDER BY {order}" if order else ""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        cursor = self._cursor().execute(f"SELECT * FROM {self._source} LIMIT 0")
        return [column[0] for column in cursor.description]

    def arrow(self) -> pyarrow.Table:
        """The rows as a pyarrow.Table.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        _require("pyarrow", "arrow()")
        return self._cursor().sql(self._query()).to_arrow_table()

    def pandas(self) -> pandas.DataFrame:
        """The rows as a pandas.DataFrame; what is unknown is missing there too.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        _require("pandas", "pandas()")
        frame: pandas.DataFrame = self._cursor().sql(self._query()).df()
        return frame

    def plot(self, x: str, *ys: str) -> Figure:
        """Columns as charts above each other over the column `x`, as a plotly figure.

        Of very many rows the lowest and the highest value of each stretch are drawn.

        Raises:
            KeyError: there is no such column; the text names the nearest.
            ValueError: a column holds no numbers, or no column was named.
            ModuleNotFoundError: plotly is not installed.
        """
        from accumaudit import plotting

        return plotting.table_figure(self._cursor(), self._query(), x, ys)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One dict a row; what is unknown is None."""
        cursor = self._execute()
        names = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(AT_ONCE):
            for row in rows:
                yield dict(zip(names, row, strict=True))

    def __getitem__(self, column: str) -> list[Any]:
        """One column, as a list.

        Raises:
            KeyError: there is no such column; the text names the nearest.
        """
        columns = self.columns
        if column not in columns:
            raise KeyError(f"no column is called {column!r}{nearest(column, columns)}")
        quoted = column.replace('"', '""')
        return [value for (value,) in self._execute(f'"{quoted}"').fetchall()]

    def __len__(self) -> int:
        """The number of rows."""
        ((count,),) = self._cursor().execute(f"SELECT count(*) FROM {self._source}").fetchall()
        return int(count)

    def __bool__(self) -> bool:
        """Whether there is any row."""
        return len(self) > 0

    def _repr_html_(self) -> str:
        from accumaudit import notebook

        cursor = self._cursor().execute(f"{self._query()} LIMIT {SHOWN}")
        columns = [(column[0], str(column[1])) for column in cursor.description]
        return notebook.table(columns, cursor.fetchall(), len(self))

    def __repr__(self) -> str:
        rows = len(self)
        return f"<Table of {rows:,} row{'s' * (rows != 1)}: {', '.join(self.columns)}>"

    def _query(self, columns: str = "*") -> str:
        return f"SELECT {columns} FROM {self._source}{self._order}"

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        # One for each question, so that the rows of several tables can be asked for in turn.
        return self._ledger.connection.cursor()

    def _execute(self, columns: str = "*") -> duckdb.DuckDBPyConnection:
        return self._cursor().execute(self._query(columns))


class Ledger:
    """Runs that were read, as tables that Python can ask; close it, or use it in a with-statement."""

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        on_close: Callable[[], object] | None = None,
        options: Options | None = None,
    ) -> None:
        self._read = read_ledger(paths, options)
        self._paths = paths
        self._report: AuditReport | None = None
        self._closed = False
        # Also where nobody closes it.
        self._finish = weakref.finalize(self, on_close) if on_close is not None else None

    @classmethod
    def open(
        cls,
        *paths: str | os.PathLike[str],
        args: str | os.PathLike[str] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Ledger:
        """Read the runs at or below these paths: folders of ledgers, folders of runs, single files.

        A path may also be a URL that fsspec knows, such as `s3://bucket/runs`.

        Args:
            args: a file with the hyperparameters of the run, for logs that other programs wrote.
            columns: what the columns of a CSV or JSONL file are: `{"step": "iter", "learning_rate": "lr"}`.

        Raises:
            LedgerError: a path cannot be read; the text says why, and what to do.
            ValueError: `args` or `columns` cannot be used; the text says why.
        """
        if not paths:
            raise LedgerError("no path was given; give the folder that accumaudit.attach wrote")
        return cls([place(path) for path in paths], options=checked(args, columns or {}))

    @property
    def runs(self) -> Table:
        """A row for each run, launch and rank: what the run is, and what was declared."""
        return Table(self, "runs", "run_id, launch, rank")

    @property
    def updates(self) -> Table:
        """A row for each attempt of each optimizer on each rank, with every field of its record."""
        return Table(self, "updates", f"{ATTEMPT}, rank")

    @property
    def microbatches(self) -> Table:
        """A row for each micro-step that was kept."""
        return Table(self, "microbatches", f"{ATTEMPT}, rank, micro_step")

    @property
    def windows(self) -> Table:
        """A row for each attempt, over all ranks: total weight, distortion, who is missing."""
        return Table(self, "windows", ATTEMPT)

    @property
    def marks(self) -> Table:
        """A row for each mark: epochs, checkpoints, the end."""
        return Table(self, "marks", "run_id, launch, rank, seq, place")

    @property
    def findings(self) -> Table:
        """A row for each attempt (and rank, where it is about one) that a bundled rule found faulty.

        The rules run when the findings are first asked for. What another finding explains is left out.
        """
        self._judged()
        severities = ", ".join(f"'{severity}'" for severity in SEVERITIES)
        return Table(
            self, "findings", f"{ATTEMPT}, list_position([{severities}], severity), code, rank, message"
        )

    @property
    def unreadable(self) -> list[Unreadable]:
        """The lines that were left out, and why."""
        return list(self._read.unreadable)

    @property
    def no_logs(self) -> list[NoLog]:
        """The texts beside the runs that hold no record of a training, and what they look like."""
        return list(self._read.no_logs)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database in memory that holds the tables, and reaches nothing else."""
        self._require_open()
        return self._read.connection

    def sql(self, query: str) -> Table:
        """What a query over the tables gives; `DESCRIBE windows` lists the columns of one.

        Raises:
            ValueError: the query is not one that the tables can answer; the text says why.
        """
        if re.search(r"\bfindings\b", query, re.IGNORECASE):
            len(self.findings)
        try:
            statements = self.connection.extract_statements(query)
            if len(statements) != 1:
                raise ValueError(f"one query can be asked at a time; this is {len(statements)}")
            table = Table(self, f"({statements[0].query.rstrip().rstrip(';')}\n)")
            _ = table.columns
        except duckdb.Error as error:
            raise ValueError(f"the query cannot be answered: {sql_reason(error)}") from None
        return table

    def check(
        self,
        *,
        select: Collection[str] = (),
        ignore: Collection[str | Ignore] = (),
        params: Mapping[str, float] | None = None,
        rules: Sequence[str | os.PathLike[str]] = (),
    ) -> AuditReport:
        """Judge the runs, as `accumaudit check` does.

        Args:
            select: judge by these rules alone: names, codes, or the beginning of codes.
            ignore: leave these out; an `accumaudit.engine.ignoring.Ignore` leaves out the findings of some
                runs or updates alone, with a reason.
            params: thresholds, as in `{"ACC102.spread": 0.02}`.
            rules: folders of further rules.

        Raises:
            SelectionError: no rule has such a name, code or threshold.
            RuleError: a file in `rules` cannot be used; the text names file and line.
        """
        self._require_open()
        catalogue = load_rules(*map(Path, rules))
        return audit(self._read, catalogue, select=select, ignore=ignore, params=params)

    def plot(
        self, *fields: str, run: str | None = None, optimizer: int = 0, x: plotting.Axis = "update"
    ) -> Figure:
        """Charts of a run above each other, as a plotly figure, with a line where each finding begins.

        A peak is never lost: of a long run the lowest and the highest value of each stretch are drawn.

        Args:
            fields: what to draw: `loss`, `learning_rate`, `grad_norm_before` and others; without any,
                all that are known.
            run: the run's name; may be left out where there is one run.
            optimizer: its number.
            x: what to draw it over: updates, or the valid tokens of all updates so far.

        Raises:
            ValueError: there is no such run, optimizer or field, or the tokens are not known.
            ModuleNotFoundError: plotly is not installed.
        """
        from accumaudit import plotting

        return plotting.run_figure(self.connection, self._run(run), fields, optimizer, x)

    def post_mortem(self, run: str | None = None) -> PostMortem:
        """Why a run went wrong, and from which update on: what `accumaudit postmortem` tells, as objects.

        Args:
            run: the run's name; may be left out where there is one run.

        Raises:
            ValueError: there is no such run, or there are several and none is named.
        """
        from accumaudit.postmortem import post_mortems

        chosen = self._run(run)
        report = self.check()  # what is told is read from the last audit
        (told,) = post_mortems(self._read, replace(report, runs=(chosen,)))
        return told

    def compare(
        self, run: str, other: str, *, by: By | None = None, tolerance: float = TOLERANCE
    ) -> Comparison:
        """Where two runs first differ, and in what: what `accumaudit diff` tells, as an object.

        Args:
            run: the name of one run.
            other: the name of the other.
            by: what they are aligned by: `update`, `tokens` or `micro-step`; left out, what suits both.
            tolerance: relative differences up to this are none.

        Raises:
            ValueError: there is no such run, or no such way to align them.
            accumaudit.comparison.comparing.ComparisonError: they cannot be aligned so; the text says why.
        """
        from accumaudit.comparison.comparing import compare

        if by is not None and by not in BYS:
            raise ValueError(f"by is one of {', '.join(BYS)}, not {by!r}")
        names = [self._run(one).run_id for one in (run, other)]
        return compare(self._read, *names, by=by, tolerance=tolerance)

    def close(self) -> None:
        """Let go of the tables."""
        if not self._closed:
            self._closed = True
            self._read.close()
            if self._finish is not None:
                self._finish()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        from accumaudit import notebook

        report = self._report if self._closed else self._judged()
        return notebook.ledger([run_id for run_id, _ in self._read.runs], report, closed=self._closed)

    def __repr__(self) -> str:
        state = " (closed)" if self._closed else ""
        return f"<Ledger of {', '.join(run_id for run_id, _ in self._read.runs)}{state}>"

    def _judged(self) -> AuditReport:
        """The report of the bundled rules, whose findings are kept as a table."""
        if self._report is None:
            report = self.check()
            _keep_findings(self.connection)
            self._report = report
        return self._report

    def _run(self, name: str | None) -> RunReport:
        """The report of the run of this name, or of the only one."""
        self._require_open()
        runs = {one.run_id: one for one in self._judged().runs}
        if name is None and len(runs) == 1:
            (name,) = runs
        if name is None:
            raise ValueError(f"this ledger holds {len(runs)} runs: name one of {', '.join(runs)}")
        if name not in runs:
            raise ValueError(f"this ledger holds no run {name!r}{nearest(name, runs)}")
        return runs[name]

    def _require_open(self) -> None:
        if self._closed:
            names = ", ".join(map(str, self._paths))
            raise LedgerError(f"this ledger ({names}) is closed; open it again")


def _keep_findings(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep what the last audit reported as a table, which every cursor can read."""
    names = {rule.code: rule.name for rule in load_rules().values()}
    connection.execute(
        """
        CREATE TABLE findings AS
        SELECT f.run_id, f.launch, f.optimizer, f.attempt_id, f.rank, w.optimizer_update_id, f.code, n.name,
               $severities[f.severity + 1] AS severity, f.message, f.observed, f.expected
        FROM faults f
        JOIN (SELECT unnest($codes) AS code, unnest($names) AS name) n USING (code)
        LEFT JOIN windows w USING (run_id, launch, optimizer, attempt_id)
        WHERE f.cause IS NULL
        """,
        {"severities": list(SEVERITIES), "codes": list(names), "names": list(names.values())},
    )


def _require(module: str, what: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{what} needs {module}, which is not installed: pip install {module}; "
            "iterating over the table needs nothing more",
            name=module,
        ) from None
