"""Runs each rule once over all runs of a ledger and says what it found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import duckdb

from accumaudit.engine import evidence, ignoring, remarks
from accumaudit.engine.catalogue import Catalogue
from accumaudit.engine.findings import (
    BROKEN,
    FAILED,
    NOT_CHECKED,
    PASSED,
    AuditReport,
    FileWithoutLog,
    Finding,
    Ignored,
    RunReport,
    UnreadableLine,
    Verdict,
    fingerprint,
)
from accumaudit.engine.ignoring import Baseline, Ignore
from accumaudit.engine.rule import SEVERITIES, Rule, alternatives, sql_line, sql_reason
from accumaudit.importers import TITLES
from accumaudit.ledger import parsing
from accumaudit.nearest import nearest
from accumaudit.rules import FOLDER

if TYPE_CHECKING:
    from accumaudit.ledger.reader import Ledger

COLUMNS: Final = (
    "run_id",
    "launch",
    "optimizer",
    "attempt_id",
    "rank",
    "fault",
    "observed",
    "expected",
    "message",
)
"""What the query of a rule returns; `severity` may stand beside them."""

LASTING: Final = ("ACC603", "ACC605", "ACC607", "ACC609")
"""Disagreements that stay once they are there: their causes explain every later attempt too."""


class BrokenRuleError(Exception):
    """A rule whose query raised or returned something else than a verdict for each row."""


@dataclass(slots=True)
class Tally:
    """The rows of one rule in one run."""

    faults: int = 0
    clean: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Outcome:
    """What one rule returned: a tally for each run, or why it broke."""

    rule: Rule
    tallies: dict[str, Tally] = field(default_factory=dict)
    broken: str | None = None

    def judged_little(self, run_ids: list[str]) -> bool:
        """Whether a run is left without a judgement, so that a reason has to be found."""
        if self.broken is not None:
            return False
        tallies = [self.tallies.get(run_id, Tally()) for run_id in run_ids]
        return any(tally.faults + tally.clean == 0 for tally in tallies)


def audit(
    ledger: Ledger,
    catalogue: Catalogue,
    *,
    select: Collection[str] = (),
    ignore: Collection[str | Ignore] = (),
    params: Mapping[str, float] | None = None,
    baseline: Baseline | None = None,
) -> AuditReport:
    """Judge every run of the ledger by the selected rules.

    A text in `ignore` leaves a rule out; an `Ignore` leaves out some of its findings, with a reason, as the
    baseline does. What is ignored still explains others: its fault would come back under their names.
    """
    catalogue = catalogue.with_params(params or {})
    left_out = catalogue.matching(word for word in ignore if isinstance(word, str))
    ignored = {rule.code for rule in left_out}
    selected = [rule for rule in catalogue.matching(select or catalogue) if rule.code not in ignored]
    silent = [rule for rule in left_out if rule.explains]
    ignores = _Ignores(catalogue, [one for one in ignore if isinstance(one, Ignore)], baseline)
    connection = ledger.connection
    evidence.create(connection)
    run_ids = [run_id for run_id, _ in ledger.runs]
    outcomes = [_run(connection, rule, run_ids) for rule in (*selected, *silent)]
    judged = [outcome.rule for outcome in outcomes if outcome.broken is None]
    _explain(connection, judged)
    unused = ignores.apply(ledger, {rule.code for rule in judged} - ignored)
    outcomes = [outcome for outcome in outcomes if outcome.rule.code not in ignored]
    return _report(ledger, _Desk(ledger, outcomes, ignores), unused)


def _run(connection: duckdb.DuckDBPyConnection, rule: Rule, run_ids: list[str]) -> Outcome:
    try:
        if not rule.file.is_relative_to(FOLDER):  # the bundled rules have tests
            _check_columns(_ask(connection, rule, "SELECT *", "LIMIT 0").description)
        tallies = _tally(connection, rule)
        strange = set(tallies) - set(run_ids)
        if strange:
            raise BrokenRuleError(f"the query returns the run_id {strange.pop()!r}, which no run has")
        if any(tally.faults for tally in tallies.values()):
            _ask(connection, rule, "CREATE OR REPLACE TEMP TABLE judged AS SELECT *", "WHERE fault")
            own_severity = _check_columns(connection.execute("SELECT * FROM judged LIMIT 0").description)
            if own_severity:
                _check_severity(connection, rule)
            evidence.collect(connection, rule, own_severity=own_severity)
        return Outcome(rule, tallies=tallies)
    except duckdb.Error as error:
        return Outcome(rule, broken=f"{rule.file}:{sql_line(error)}: {sql_reason(error)}")
    except BrokenRuleError as error:
        return Outcome(rule, broken=f"{rule.file}: {error}")


def _ask(
    connection: duckdb.DuckDBPyConnection, rule: Rule, select: str, rest: str
) -> duckdb.DuckDBPyConnection:
    """Ask something of the rule's rows; what is not asked for is not computed, above all the messages.

    The query begins on the statement's first line: the lines in errors are the file's.
    """
    return parsing.run(connection, f"{select} FROM ({rule.query}\n) {rest}", dict(rule.params) or None)


def _tally(connection: duckdb.DuckDBPyConnection, rule: Rule) -> dict[str, Tally]:
    counts = "count(*) FILTER (fault), count(*) FILTER (NOT fault), count(*) FILTER (fault IS NULL)"
    rows = _ask(connection, rule, f"SELECT run_id, {counts}", "GROUP BY run_id").fetchall()
    return {run_id: Tally(faults, clean, unknown) for run_id, faults, clean, unknown in rows}


def _check_columns(described: Sequence[tuple[Any, ...]]) -> bool:
    """Whether the rows have a severity of their own."""
    kinds = {column[0]: str(column[1]).strip('"') for column in described}
    for name in COLUMNS:
        if name not in kinds:
            raise BrokenRuleError(f"the query returns no column `{name}`{nearest(name, kinds)}")
    for name in kinds:
        if name not in (*COLUMNS, "severity"):
            raise BrokenRuleError(f"the query returns the unknown column `{name}`{nearest(name, COLUMNS)}")
    if kinds["fault"] not in ("BOOLEAN", "NULL"):
        raise BrokenRuleError(f"the column `fault` is {kinds['fault']}, not BOOLEAN")
    return "severity" in kinds


def _check_severity(connection: duckdb.DuckDBPyConnection, rule: Rule) -> None:
    rows = connection.execute("SELECT DISTINCT severity FROM judged").fetchall()
    allowed = SEVERITIES[SEVERITIES.index(rule.severity) :]
    for (severity,) in rows:
        if severity is not None and severity not in allowed:
            raise BrokenRuleError(
                f"a row's severity is {severity!r}; under a rule of severity {rule.severity} "
                f"it is {' or '.join(allowed)}"
            )


def _explain(connection: duckdb.DuckDBPyConnection, rules: Iterable[Rule]) -> None:
    """Mark the rows that follow from another rule's.

    A row that is explained itself still explains others, so the order of the pairs is of no
    account; the catalogue refuses circles, so that the first cause is always reported.
    """
    by_code = {rule.code: rule for rule in rules}
    faulty = evidence.faulty_codes(connection)
    for cause in by_code.values():
        for code in cause.explains:
            effect = by_code.get(code)
            if effect and cause.code in faulty and code in faulty:
                evidence.mark_explained(connection, cause.code, code, _reach(cause, effect))


def _reach(cause: Rule, effect: Rule) -> str:
    if "run" in (cause.scope, effect.scope):
        return "run"
    return "later" if effect.code in LASTING else "attempt"


class _Ignores:
    """What is to be left out of the report: ignores by their places, and a baseline after them."""

    def __init__(self, catalogue: Catalogue, ignores: Sequence[Ignore], baseline: Baseline | None) -> None:
        self._ignores = ignores
        self._codes = [{rule.code for rule in catalogue.matching([one.rule])} for one in ignores]
        self._baseline = baseline

    def apply(self, ledger: Ledger, codes: Collection[str]) -> tuple[str, ...]:
        """Mark the rows that are left out; say what these runs and rules have no row for."""
        run_ids = [run_id for run_id, _ in ledger.runs]
        matched = set()
        for place, ignore in enumerate(self._ignores):
            count = evidence.mark_ignored(
                ledger.connection, place, self._codes[place], ignore.of(run_ids), ignore.span
            )
            if count or not self._codes[place] & {*codes}:
                matched.add(place)
        missed = self._apply_baseline(ledger, run_ids, codes) if self._baseline else ()
        return (*ignoring.unused(self._ignores, matched, run_ids), *missed)

    def _apply_baseline(
        self, ledger: Ledger, run_ids: Collection[str], codes: Collection[str]
    ) -> Iterator[str]:
        assert self._baseline is not None
        prints = set()
        for (code, run_id, ignored), found in evidence.findings(ledger).items():
            if ignored is None:
                print_ = fingerprint(run_id, code, found.finding(()))
                prints.add(print_)
                if self._baseline.holds(print_, found.severity):
                    evidence.mark_ignored(ledger.connection, len(self._ignores), [code], [run_id])
        return self._baseline.missed(prints, run_ids, codes)

    def why(self, place: int) -> tuple[str, str]:
        """The reason and the source of what has this place."""
        if place < len(self._ignores):
            return self._ignores[place].reason, self._ignores[place].source
        assert self._baseline is not None
        return ignoring.IN_BASELINE, self._baseline.source


def _report(ledger: Ledger, desk: _Desk, unused: tuple[str, ...]) -> AuditReport:
    facts = evidence.run_facts(ledger.connection)
    declared, holes = remarks.declared(ledger.connection), remarks.holes(ledger.connection)
    runs = []
    for run_id, path in ledger.runs:
        unreadable = [
            UnreadableLine(file=str(one.file), line=one.line, why=one.why)
            for one in ledger.unreadable
            if one.run_id == run_id
        ]
        fact = facts[run_id]
        verdicts = desk.verdicts(run_id, fact)
        runs.append(
            RunReport(
                run_id=run_id,
                path=path,
                format=fact.format,
                title=TITLES.get(fact.format, fact.format),
                runtime=fact.runtime,
                ranks=fact.ranks,
                world_size=fact.world_size,
                updates=fact.attempts - fact.skipped,
                attempts=fact.attempts,
                recorded=fact.recorded,
                recorded_ranks=fact.recorded_ranks,
                skipped=fact.skipped,
                verdicts=verdicts,
                unreadable=tuple(unreadable),
                remarks=(*declared[run_id], *holes[run_id]),
                holes=tuple(holes[run_id]),
            )
        )
    no_logs = tuple(FileWithoutLog(file=one.file, why=one.why) for one in ledger.no_logs)
    return AuditReport(runs=tuple(runs), no_logs=no_logs, unused=unused)


class _Desk:
    """Writes the verdicts of one audit."""

    def __init__(self, ledger: Ledger, outcomes: list[Outcome], ignores: _Ignores) -> None:
        run_ids = [run_id for run_id, _ in ledger.runs]
        self._outcomes = outcomes
        self._ignores = ignores
        self._findings: dict[evidence.Key, evidence.Found] = {}
        self._ignored: dict[evidence.Key, list[tuple[int, evidence.Found]]] = defaultdict(list)
        for (code, run_id, place), found in evidence.findings(ledger).items():
            if place is None:
                self._findings[code, run_id] = found
            else:
                self._ignored[code, run_id].append((place, found))
        self._explained = evidence.explained(ledger.connection)
        needs = {
            name
            for outcome in outcomes
            if outcome.judged_little(run_ids)
            for need in outcome.rule.needs
            for name in alternatives(need)
        }
        self._presence = evidence.Presence(ledger.connection, needs)

    def verdicts(self, run_id: str, fact: evidence.RunFacts) -> tuple[Verdict, ...]:
        """What each rule says of a run."""
        return tuple(self._verdict(outcome, run_id, fact) for outcome in self._outcomes)

    def _verdict(self, outcome: Outcome, run_id: str, fact: evidence.RunFacts) -> Verdict:
        """Exactly one of failed, passed, not checked and broken."""
        rule = outcome.rule
        if outcome.broken is not None:
            return _verdict(rule, BROKEN, reason=outcome.broken)
        tally = outcome.tallies.get(run_id, Tally())
        key = rule.code, run_id
        hidden = self._explained.get(key)
        judged = tally.faults + tally.clean - (hidden.rows if hidden else 0)
        ignored = self._left_out(key, fact)
        found = self._findings.get(key)
        if found:
            finding = found.finding(fact.ranks)
            return _verdict(rule, FAILED, judged, finding=finding, severity=found.severity, ignored=ignored)
        if ignored:
            reason = f"ignored: {'; '.join(dict.fromkeys(one.reason for one in ignored))}"
            return _verdict(rule, NOT_CHECKED, judged, reason=reason, ignored=ignored)
        if tally.faults:
            return _verdict(rule, NOT_CHECKED, tally.clean, reason=self._causes(rule, run_id, tally))
        if tally.clean:
            return _verdict(rule, PASSED, tally.clean)
        reason = self._presence.reason(rule, run_id, tally.unknown, TITLES.get(fact.format))
        return _verdict(rule, NOT_CHECKED, reason=reason)

    def _left_out(self, key: evidence.Key, fact: evidence.RunFacts) -> tuple[Ignored, ...]:
        return tuple(
            Ignored(reason=reason, source=source, severity=found.severity, finding=found.finding(fact.ranks))
            for place, found in sorted(self._ignored[key], key=lambda one: one[0])
            for reason, source in [self._ignores.why(place)]
        )

    def _causes(self, rule: Rule, run_id: str, tally: Tally) -> str:
        """Names the causes that are told: a cause may have one of its own."""
        reported: set[str] = set()
        waiting = {rule.code}
        while waiting:
            for cause in self._explained[waiting.pop(), run_id].causes:
                if (cause, run_id) in self._findings:
                    reported.add(cause)
                elif self._ignored[cause, run_id]:
                    reported.add(f"{cause} (ignored)")
                else:
                    waiting.add(cause)
        reason = f"a cause was found by {' and '.join(sorted(reported))}"
        return f"{reason}; {tally.clean} other rows are clean" if tally.clean else reason


def _verdict(
    rule: Rule,
    status: str,
    judged: int = 0,
    *,
    reason: str | None = None,
    finding: Finding | None = None,
    severity: str | None = None,
    ignored: tuple[Ignored, ...] = (),
) -> Verdict:
    return Verdict(
        code=rule.code,
        name=rule.name,
        severity=severity or rule.severity,
        status=status,
        judged=judged,
        reason=reason,
        finding=finding,
        summary=rule.summary,
        fix=rule.fix,
        ignored=ignored,
    )
