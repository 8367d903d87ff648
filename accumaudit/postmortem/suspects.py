"""The findings of a run as suspects, ordered by when they began, what proves them and what they can do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import duckdb

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import FAILED, RunReport, Verdict
from accumaudit.engine.rule import SEVERITIES
from accumaudit.outputs.advice import own_fix
from accumaudit.outputs.words import number
from accumaudit.postmortem.model import Harm, Moment, Role, Suspect
from accumaudit.postmortem.roles import ON_SKIPS, role

NEAR: Final = (50, 0.05)
"""A fault is new at an onset where it began so many updates before it, or that share of those before."""

_ROWS: Final = """
WITH rows AS (
    SELECT f.code, f.launch, coalesce(f.optimizer, 0) AS optimizer, f.attempt_id, f.observed, f.expected,
           if($foreign, w.attempt_id, w.optimizer_update_id) AS number, w.applied, w.valid_tokens,
           w.attempt_id IS NOT NULL AS recorded, if($several, w.micro_step_id, NULL) AS micro_step
    FROM reported f LEFT JOIN windows w USING (run_id, launch, optimizer, attempt_id)
    WHERE f.run_id = $run
),
attempts AS (
    SELECT code, launch, optimizer, attempt_id, any_value(number) AS number, bool_or(recorded) AS recorded,
           any_value(if(applied IS FALSE, 0, valid_tokens)) AS tokens,
           NOT $foreign AND bool_or(applied IS FALSE) AS skipped, any_value(micro_step) AS micro_step
    FROM rows GROUP BY ALL
),
placed AS (
    SELECT *, {'launch': launch, 'attempt_id': attempt_id, 'optimizer': optimizer, 'number': number,
               'skipped': skipped, 'micro_step': micro_step} AS moment,
           {'launch': launch, 'step': coalesce(micro_step, attempt_id), 'optimizer': optimizer} AS place
    FROM attempts
),
sizes AS (
    SELECT code, min(observed) AS lowest, max(observed) AS highest,
           min(expected) AS least, max(expected) AS most
    FROM rows GROUP BY code
)
SELECT code, count(*) FILTER (recorded) AS attempts, sum(tokens) AS tokens,
       arg_min(moment, place) FILTER (attempt_id IS NOT NULL) AS first,
       arg_max(moment, place) FILTER (attempt_id IS NOT NULL) AS last,
       any_value(lowest), any_value(highest), any_value(least), any_value(most)
FROM placed JOIN sizes USING (code) GROUP BY code
"""
_TOTALS: Final = """
SELECT count(*), sum(if(applied IS FALSE, 0, valid_tokens)) FROM windows WHERE run_id = $1
"""
_FOLLOWING: Final = """
SELECT DISTINCT cause, code FROM faults WHERE run_id = $1 AND cause IS NOT NULL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class _Reach:
    """Where a finding lies, and how large it is."""

    attempts: int
    tokens: float | None
    first: Moment | None
    last: Moment | None
    size: str | None


def suspects(connection: duckdb.DuckDBPyConnection, run: RunReport, framework: str) -> list[Suspect]:
    """Every finding of a run that has just been audited, in no order and without its lead."""
    reaches = _reaches(connection, run)
    of_attempts, of_tokens = connection.execute(_TOTALS, [run.run_id]).fetchall()[0]
    following: dict[str, list[str]] = defaultdict(list)
    for cause, code in connection.execute(_FOLLOWING, [run.run_id]).fetchall():
        following[cause].append(code)
    rules = load_rules()
    found = []
    for verdict in run.with_status(FAILED):
        reach = reaches[verdict.code]
        is_whole = verdict.code in rules and rules[verdict.code].scope == "run"
        harm = Harm(
            attempts=0 if is_whole else reach.attempts,
            of_attempts=of_attempts,
            tokens=None if is_whole else reach.tokens,
            of_tokens=of_tokens,
            size=reach.size,
        )
        found.append(
            Suspect(
                verdict=verdict,
                role=role(verdict.code),
                first=reach.first,
                last=reach.last,
                lead=None,
                harm=harm,
                own_fix=own_fix(verdict, framework),
                follows=_all_that_follow(verdict, following, run),
            )
        )
    return found


def _reaches(connection: duckdb.DuckDBPyConnection, run: RunReport) -> dict[str, _Reach]:
    asked = {"run": run.run_id, "foreign": run.is_foreign, "several": has_several_optimizers(connection, run)}
    rows = connection.execute(_ROWS, asked).fetchall()
    return {
        code: _Reach(attempts, tokens, _moment(first), _moment(last), _size(*sizes))
        for code, attempts, tokens, first, last, *sizes in rows
    }


def has_several_optimizers(connection: duckdb.DuckDBPyConnection, run: RunReport) -> bool:
    """Whether attempts of a run are numbered by several optimizers, each of which counts its own."""
    query = "SELECT count(DISTINCT optimizer) > 1 FROM windows WHERE run_id = $1"
    return bool(connection.execute(query, [run.run_id]).fetchall()[0][0])


def _moment(row: dict[str, Any] | None) -> Moment | None:
    return None if row is None or row["attempt_id"] is None else Moment(**row)


def _size(lowest: float | None, highest: float | None, least: float | None, most: float | None) -> str | None:
    """What was measured over all rows, beside what was expected."""
    if lowest is None or highest is None or least is None or most is None:
        return None
    return f"measured {_span(lowest, highest)}, expected {_span(least, most)}"


def _span(low: float, high: float) -> str:
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _all_that_follow(verdict: Verdict, following: dict[str, list[str]], run: RunReport) -> tuple[str, ...]:
    """The rules whose rows this one explains, through any number of steps, and that are not told."""
    told = {one.code for one in run.with_status(FAILED)}
    found: set[str] = set()
    waiting = [verdict.code]
    while waiting:
        new = set(following[waiting.pop()]) - found
        found |= new
        waiting += new
    return tuple(sorted(found - told))


def first_symptom(found: Iterable[Suspect]) -> Suspect | None:
    """From where on the training itself looks wrong: the earliest symptom above a note."""
    return min(
        (one for one in found if one.role == "symptom" and is_serious(one) and one.first is not None),
        key=_when,
        default=None,
    )


def first_wrong(found: Iterable[Suspect]) -> Suspect | None:
    """What has the earliest attempt of all errors and warnings about the training; of several, the strongest.

    Faults that mislead readers or cost time are none of these.
    """
    about_training = (one for one in found if one.role in ("cause", "symptom") and is_serious(one))
    return min(
        (one for one in about_training if one.first is not None),
        key=lambda one: (
            *_when(one),
            one.verdict.code in ON_SKIPS,
            one.role != "cause",
            _proof(one),
            one.verdict.code,
        ),
        default=None,
    )


def ranked(found: Iterable[Suspect], onset: Suspect | None) -> list[Suspect]:
    """What may be a cause, the strongest suspect first.

    What began before the onset stands before what began after it, a fault before a note, a fault that began
    shortly before the onset or with its launch before one that the run had long lived with, and proof before
    indication; then time decides.
    """
    causes = [with_lead(one, onset) for one in found if one.role == "cause"]
    return sorted(causes, key=lambda one: _rank(one, onset))


def in_time(found: Iterable[Suspect], role: Role, onset: Suspect | None) -> list[Suspect]:
    """The findings of a role by their first attempts, those about the whole run last."""
    chosen = [with_lead(one, onset) for one in found if one.role == role]
    return sorted(chosen, key=lambda one: (*_when(one), _proof(one), one.verdict.code))


def with_lead(one: Suspect, onset: Suspect | None) -> Suspect:
    """The suspect with the distance from its first update to the onset's."""
    if onset is None or onset.first is None or one.first is None:
        return one
    if one.first.optimizer != onset.first.optimizer:
        return one
    begun, wrong = one.first.number, onset.first.number
    return one if begun is None or wrong is None else replace(one, lead=wrong - begun)


def is_serious(one: Suspect) -> bool:
    """Whether it is more than a note."""
    return one.verdict.severity != "note"


def _rank(one: Suspect, onset: Suspect | None) -> tuple[object, ...]:
    return (
        is_late(one, onset),
        not is_serious(one),
        not _is_new(one, onset),
        _proof(one),
        *_when(one),
        one.verdict.code,
    )


def is_late(one: Suspect, onset: Suspect | None) -> bool:
    """Whether it began after the onset, or can only follow from it."""
    if onset is None or onset.first is None or one.first is None:
        return False
    return place_of(one.first) > place_of(onset.first) or is_on_its_skips(one, onset)


def is_on_its_skips(one: Suspect, onset: Suspect) -> bool:
    """Whether it begins on the skipped attempt of the onset, and can lie on no other kind of attempt."""
    if one.first is None or onset.first is None or one.verdict.code not in ON_SKIPS:
        return False
    return place_of(one.first) == place_of(onset.first)


def _is_new(one: Suspect, onset: Suspect | None) -> bool:
    """Whether the run had not long lived with it: it began shortly before the onset, or with its launch."""
    if one.lead is None or onset is None or onset.first is None or onset.first.number is None:
        return False
    if one.first is not None and one.first.launch == onset.first.launch > 1 and one.first.attempt_id == 1:
        return True
    updates, share = NEAR
    return one.lead <= max(updates, share * onset.first.number)


def _proof(one: Suspect) -> int:
    return SEVERITIES.index(one.verdict.severity)


def _when(one: Suspect) -> tuple[bool, Sequence[int]]:
    return (one.first is None, place_of(one.first) if one.first else ())


def place_of(moment: Moment) -> tuple[int, int]:
    """A moment in the order of time."""
    return moment.launch, moment.attempt_id if moment.micro_step is None else moment.micro_step
