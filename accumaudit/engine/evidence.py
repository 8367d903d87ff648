"""The queries behind the verdicts: faulty rows, what explains them, where they stand, what is null."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import duckdb

from accumaudit.engine.findings import Example, Finding
from accumaudit.engine.rule import SEVERITIES, Rule, alternatives
from accumaudit.ledger.schema import MARK_FIELDS, NOUNS, RUN_FIELDS, UPDATE_FIELDS, Field

if TYPE_CHECKING:
    from accumaudit.ledger.reader import Ledger

EXAMPLES: Final = 3
"""Attempts of a finding that are shown as examples."""

Key = tuple[str, str]
"""A rule's code and a run_id."""

Share = tuple[str, str, int | None]
"""A rule's code, a run_id, and the place of the ignore that leaves the rows out; None for those reported."""

_TABLES: Final = {"runs": RUN_FIELDS, "updates": UPDATE_FIELDS, "marks": MARK_FIELDS}

# Faulty rows and the numbers of their updates. A foreign log is told by its own steps: its attempts.
_NUMBERED: Final = (
    "faults AS f LEFT JOIN windows AS w USING (run_id, launch, optimizer, attempt_id) "
    "LEFT JOIN stored.sources AS s USING (run_id)"
)
_NUMBER: Final = "if(s.format = 'ledger', w.optimizer_update_id, f.attempt_id)"

# Rows of a cause, and how a row of its effect is reached from them.
_CAUSES: Final = {
    "run": ("SELECT DISTINCT run_id", "TRUE"),
    "attempt": (
        "SELECT DISTINCT run_id, launch, optimizer, attempt_id",
        "(c.launch, c.optimizer, c.attempt_id) = (f.launch, f.optimizer, f.attempt_id)",
    ),
    "later": (
        "SELECT run_id, launch, optimizer, min(attempt_id) AS attempt_id",
        "(c.launch, c.optimizer) = (f.launch, f.optimizer) AND c.attempt_id <= f.attempt_id",
    ),
}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run is, apart from its verdicts."""

    format: str
    runtime: str | None = None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    recorded_ranks: tuple[int, ...] | None = None
    recorded: int = 0
    """Attempts with a record."""
    attempts: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Explained:
    """The rows of one rule in one run that others explain."""

    rows: int
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of one rule in one run that are reported, or left out by one ignore."""

    severity: str
    count: int
    first_update: int | None
    last_update: int | None
    ranks: tuple[int, ...]
    all_ranks: bool
    examples: tuple[Example, ...]

    def finding(self, ranks: tuple[int, ...]) -> Finding:
        """The finding, in a run of these ranks."""
        first = self.examples[0]
        return Finding(
            count=self.count,
            first_update=self.first_update,
            last_update=self.last_update,
            ranks=ranks if self.all_ranks else self.ranks,
            message=first.message,
            observed=first.observed,
            expected=first.expected,
            examples=self.examples,
        )


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the empty table of faulty rows, and the view of those that a report tells.

    Severity is an index, 0 the highest; ignored is the place of an ignore.
    """
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE faults (
            code VARCHAR, run_id VARCHAR, launch BIGINT, optimizer BIGINT, attempt_id BIGINT, rank BIGINT,
            observed DOUBLE, expected DOUBLE, message VARCHAR, severity UTINYINT, cause VARCHAR,
            ignored BIGINT
        )
        """
    )
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW reported AS FROM faults WHERE cause IS NULL AND ignored IS NULL"
    )


def collect(connection: duckdb.DuckDBPyConnection, rule: Rule, *, own_severity: bool) -> None:
    """Keep the faulty rows of the rule that has just run, the table `judged`."""
    severity = "coalesce(severity, $severity)" if own_severity else "$severity"
    connection.execute(
        f"""
        INSERT INTO faults
        SELECT $code, run_id, launch, optimizer, attempt_id, rank, observed, expected,
               coalesce(message, $summary), list_position($severities, {severity}) - 1, NULL, NULL
        FROM judged
        """,
        {
            "code": rule.code,
            "severity": rule.severity,
            "severities": list(SEVERITIES),
            "summary": rule.summary,
        },
    )


def faulty_codes(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """The rules that found something, explained or not."""
    return {code for (code,) in connection.execute("SELECT DISTINCT code FROM faults").fetchall()}


def mark_explained(connection: duckdb.DuckDBPyConnection, cause: str, effect: str, reach: str) -> None:
    """Note the cause on the rows of its effect; reach is run, attempt or later."""
    columns, condition = _CAUSES[reach]
    grouped = " GROUP BY run_id, launch, optimizer" if reach == "later" else ""
    connection.execute(
        f"""
        UPDATE faults AS f SET cause = $cause
        FROM ({columns} FROM faults WHERE code = $cause{grouped}) AS c
        WHERE f.code = $effect AND f.cause IS NULL AND c.run_id = f.run_id AND {condition}
        """,
        {"cause": cause, "effect": effect},
    )


def explained(connection: duckdb.DuckDBPyConnection) -> dict[Key, Explained]:
    """The rows that are not reported, counted, with their causes."""
    rows = connection.execute(
        """
        SELECT code, run_id, count(*), list(DISTINCT cause)
        FROM faults WHERE cause IS NOT NULL GROUP BY code, run_id
        """
    ).fetchall()
    return {(code, run_id): Explained(count, tuple(sorted(causes))) for code, run_id, count, causes in rows}


def mark_ignored(
    connection: duckdb.DuckDBPyConnection,
    place: int,
    codes: Iterable[str],
    run_ids: Iterable[str],
    span: tuple[int, int | None] | None = None,
) -> int:
    """Note an ignore on its rows that have none yet, and count all that it is about.

    A row that is ignored stays the cause of others.
    """
    first, last = span or (None, None)
    ((count,),) = connection.execute(
        f"""
        UPDATE faults SET ignored = coalesce(ignored, $place)
        WHERE list_contains($codes, code) AND list_contains($runs, run_id) AND (
            $first::BIGINT IS NULL OR rowid IN (
                SELECT f.rowid FROM {_NUMBERED}
                WHERE {_NUMBER} >= $first AND ($last::BIGINT IS NULL OR {_NUMBER} <= $last)
            )
        )
        """,
        {"place": place, "codes": list(codes), "runs": list(run_ids), "first": first, "last": last},
    ).fetchall()
    return int(count)


def findings(ledger: Ledger) -> dict[Share, Found]:
    """The rows that are reported, and those that each ignore leaves out, for each rule and run."""
    connection = ledger.connection
    examples = _located(_examples(connection), ledger)
    rows = connection.execute(
        f"""
        SELECT f.code, f.run_id, f.ignored, min(f.severity),
               count(DISTINCT {{'launch': f.launch, 'optimizer': f.optimizer, 'attempt': f.attempt_id}}),
               min({_NUMBER}), max({_NUMBER}),
               list_sort(list(DISTINCT f.rank) FILTER (f.rank IS NOT NULL)), bool_or(f.rank IS NULL)
        FROM {_NUMBERED} WHERE f.cause IS NULL GROUP BY f.code, f.run_id, f.ignored
        """
    ).fetchall()
    found = {}
    for code, run_id, ignored, severity, count, first, last, ranks, every in rows:
        shown = tuple(examples[code, run_id, ignored])
        found[code, run_id, ignored] = Found(
            SEVERITIES[severity], count, first, last, tuple(ranks or ()), every, shown
        )
    return found


Place = tuple[int | None, int | None, int | None, int | None]
"""A launch, an optimizer, an attempt, and the number of its update."""


def attempts_of_findings(connection: duckdb.DuckDBPyConnection) -> dict[Key, list[Place]]:
    """Every attempt in which a rule found a fault that is reported, for each rule and run."""
    found: dict[Key, list[Place]] = defaultdict(list)
    rows = connection.execute(
        f"""
        SELECT f.code, f.run_id, f.launch, f.optimizer, f.attempt_id, min({_NUMBER})
        FROM {_NUMBERED} WHERE f.cause IS NULL AND f.ignored IS NULL GROUP BY ALL ORDER BY ALL
        """
    ).fetchall()
    for code, run_id, launch, optimizer, attempt_id, update in rows:
        found[code, run_id].append((launch, optimizer, attempt_id, update))
    return found


def _examples(connection: duckdb.DuckDBPyConnection) -> dict[Share, list[Example]]:
    """The first attempts of each finding, the highest severity first, with their place in the files."""
    rows = connection.execute(
        """
        WITH attempts AS (
            SELECT * FROM faults WHERE cause IS NULL
            QUALIFY row_number() OVER (
                PARTITION BY code, run_id, ignored, launch, optimizer, attempt_id
                ORDER BY severity, rank NULLS FIRST
            ) = 1
        ), chosen AS (
            SELECT *, row_number() OVER (
                PARTITION BY code, run_id, ignored ORDER BY severity, launch, attempt_id, optimizer
            ) AS place
            FROM attempts QUALIFY place <= $examples
        )
        SELECT c.code, c.run_id, c.ignored,
               any_value(c.launch), any_value(c.optimizer), any_value(c.attempt_id),
               arg_min(u.optimizer_update_id, u.rank), any_value(c.rank),
               arg_min(u.file, u.rank), arg_min(u.line, u.rank),
               any_value(c.message), any_value(c.observed), any_value(c.expected)
        FROM chosen AS c LEFT JOIN updates AS u
            ON u.run_id = c.run_id AND u.launch = c.launch AND u.optimizer = c.optimizer
            AND u.attempt_id = c.attempt_id AND (u.rank = c.rank OR c.rank IS NULL)
        GROUP BY c.code, c.run_id, c.ignored, c.place
        ORDER BY c.code, c.run_id, c.ignored, c.place
        """,
        {"examples": EXAMPLES},
    ).fetchall()
    names = (
        "launch",
        "optimizer",
        "attempt_id",
        "optimizer_update_id",
        "rank",
        "file",
        "line",
        "message",
        "observed",
        "expected",
    )
    examples: dict[Share, list[Example]] = defaultdict(list)
    for code, run_id, ignored, *values in rows:
        examples[code, run_id, ignored].append(Example(**dict(zip(names, values, strict=True))))
    return examples


def _located(examples: Mapping[Share, list[Example]], ledger: Ledger) -> dict[Share, list[Example]]:
    """The tables count a file's lines without the blank ones; a person's editor counts all."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for example in itertools.chain.from_iterable(examples.values()):
        if example.file is not None and example.line is not None:
            wanted[example.file].add(example.line)
    numbers = {file: ledger.locate(file, ordinals) for file, ordinals in wanted.items()}

    def located(example: Example) -> Example:
        known = numbers.get(example.file or "", {})
        return replace(example, line=known.get(example.line or 0, example.line))

    return {key: [located(example) for example in found] for key, found in examples.items()}


# Where only every so many attempts were recorded, the ids count the rest. The close mark knows the last one.
_ATTEMPTS: Final = """
WITH counted AS (
    SELECT run_id, launch, optimizer, count(*) AS recorded, count(*) FILTER (NOT applied) AS skipped,
           max(recorded_every) AS every, max(attempt_id) AS last_attempt,
           arg_min(optimizer_update_id - (applied IS NOT FALSE)::BIGINT, attempt_id) AS done_before,
           last_attempt - (max(optimizer_update_id) - done_before) AS skipped_by_ids
    FROM windows GROUP BY ALL
), closed AS (
    SELECT c.run_id, c.launch, c.optimizer, max(m.attempt_id) AS attempts
    FROM counted c JOIN marks m ON m.run_id = c.run_id AND m.launch = c.launch AND m.kind = 'close'
                               AND coalesce(m.optimizer, c.optimizer) = c.optimizer
    GROUP BY ALL
)
SELECT run_id, sum(recorded)::BIGINT,
       sum(if(every IS NULL, recorded, greatest(last_attempt, coalesce(closed.attempts, 0))))::BIGINT,
       sum(if(every IS NULL, skipped, greatest(skipped, coalesce(skipped_by_ids, 0))))::BIGINT
FROM counted LEFT JOIN closed USING (run_id, launch, optimizer) GROUP BY run_id
"""
# A foreign log names its own steps, and the updates among them where it knows: what lies before its first
# record counts too where the run began with it.
_LOGGED: Final = """
WITH counted AS (
    SELECT run_id, launch, count(*) AS recorded, max(attempt_id) AS last_attempt,
           max(attempt_id) - max(optimizer_update_id) AS behind,
           arg_min(attempt_id - optimizer_update_id, attempt_id) AS behind_at_first,
           count(*) FILTER (NOT applied) AS seen
    FROM windows GROUP BY ALL
)
SELECT run_id, sum(recorded)::BIGINT,
       sum(last_attempt - coalesce(resumed_from_update, 0))::BIGINT,
       -- A number of updates that is wrong may be ahead of the attempts.
       sum(greatest(behind - if(resumed_from_update IS NULL, 0, behind_at_first), seen))::BIGINT
FROM counted
JOIN (SELECT run_id, launch, max(resumed_from_update) AS resumed_from_update
      FROM runs WHERE format <> 'ledger' GROUP BY run_id, launch) USING (run_id, launch)
GROUP BY run_id
"""
_DESCRIBED: Final = """
SELECT s.run_id, s.format, arg_max(r.runtime, r.launch), arg_max(r.world_size, r.launch),
       arg_max(r.recorded_ranks, r.launch)
FROM stored.sources s LEFT JOIN runs r USING (run_id) GROUP BY ALL
"""


def run_facts(connection: duckdb.DuckDBPyConnection) -> dict[str, RunFacts]:
    """Ranks, attempts and skips of each run, its format and runtime."""
    ranks: dict[str, list[int]] = defaultdict(list)
    written = "SELECT run_id, rank FROM runs UNION SELECT run_id, rank FROM updates ORDER BY ALL"
    for run_id, rank in connection.execute(written).fetchall():
        ranks[run_id].append(rank)
    counts = {
        run_id: counted
        for query in (_ATTEMPTS, _LOGGED)
        for run_id, *counted in connection.execute(query).fetchall()
    }
    found = {}
    for run_id, format_, runtime, world_size, recorded_ranks in connection.execute(_DESCRIBED).fetchall():
        recorded, attempts, skipped = counts.get(run_id, (0, 0, 0))
        found[run_id] = RunFacts(
            format=format_,
            runtime=runtime,
            world_size=world_size,
            ranks=tuple(ranks[run_id]),
            recorded_ranks=None if recorded_ranks is None else tuple(sorted(recorded_ranks)),
            recorded=recorded,
            attempts=attempts,
            skipped=skipped,
        )
    return found


class Presence:
    """How often each field of the record is there, for the reasons of "not checked"."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, fields: Iterable[str]) -> None:
        counted = set(fields)
        self._counts = {
            table: _present(connection, table, [one for one in known if one.name in counted])
            for table, known in _TABLES.items()
        }

    def reason(self, rule: Rule, run_id: str, unknown: int, title: str | None = None) -> str:
        """Why the rule judged nothing in this run.

        Args:
            unknown: the number of its rows.
            title: what a foreign log is called.
        """
        missing = [need for need in rule.needs if not self._somewhere(run_id, need)]
        if title is not None and run_id not in self._counts["updates"]:
            return f"{title} holds no updates"
        if missing and title is not None:
            name = alternatives(missing[0])[-1]  # an importer's own field stands last
            return f"{title} holds no {NOUNS.get(name, name.replace('_', ' '))}"
        if missing:
            return " and ".join(f"{_quoted(need)} was never {_verb(need)}" for need in missing)
        if not unknown:
            return rule.scope_is_empty
        total, present = self._counts["updates"].get(run_id, (0, {}))
        partly = [
            f"`{need}` is null in {total - present[need]} of {total} records"
            for need in rule.needs
            if present.get(need, total) < total
        ]
        if partly:
            return "; ".join(partly)
        if unknown == 1:
            return "one row was in scope, and the record does not decide it"
        return f"{unknown:,} rows were in scope, and the record decides none of them"

    def _somewhere(self, run_id: str, need: str) -> bool:
        """Whether one of the need's fields is there."""
        return any(
            counts.get(run_id, (0, {}))[1].get(name)
            for counts in self._counts.values()
            for name in alternatives(need)
        )


def _present(
    connection: duckdb.DuckDBPyConnection, table: str, fields: list[Field]
) -> dict[str, tuple[int, dict[str, int]]]:
    """For each run the table's rows, and for each field the number of rows in which it is not null."""
    columns = {column[0] for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description}
    counted = [field for field in fields if field.name in columns]
    sums = "".join(f", count(*) FILTER ({_is_present(field, columns)})" for field in counted)
    rows = connection.execute(f"SELECT run_id, count(*){sums} FROM {table} GROUP BY run_id").fetchall()
    names = [field.name for field in counted]
    return {run_id: (total, dict(zip(names, counts, strict=True))) for run_id, total, *counts in rows}


def _is_present(field: Field, columns: set[str]) -> str:
    test = f'"{field.name}" IS NOT NULL'
    if field.type.endswith("[]"):
        test = f'list_count("{field.name}") > 0'
    flag = f"{field.name}_nonfinite"
    return f'({test} OR "{flag}")' if flag in columns else test


def _quoted(need: str) -> str:
    return " or ".join(f"`{name}`" for name in alternatives(need))


def _verb(need: str) -> str:
    names = alternatives(need)
    writers = {field.writer for fields in _TABLES.values() for field in fields if field.name in names}
    return "declared or reported" if "loop" in writers else "recorded"
