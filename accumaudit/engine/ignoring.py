"""What is left out of a report on request: findings of a rule, a run, some updates, or a baseline."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from accumaudit.engine.findings import FAILED, AuditReport, fingerprint
from accumaudit.engine.rule import SEVERITIES

SCHEMA: Final = 1
IN_BASELINE: Final = "it stands in the baseline"
"""The reason why a finding of a baseline is left out."""

SHOWN: Final = 3
"""Findings of a baseline that are named where they were not found."""

_UPDATES: Final = re.compile(r"(\d{1,15})(?:\s*(-)\s*(\d{1,15})?)?", re.ASCII)


class IgnoreError(ValueError):
    """An ignore or a baseline that cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """Findings that are left out of the report, and why.

    Raises:
        IgnoreError: the reason or the run is empty, or the updates are no numbers.
    """

    rule: str
    """A code, the beginning of codes, or a name."""
    reason: str
    """Repeated wherever the findings are counted."""
    run: str = "*"
    """The run's name; * stands for any text in it, ? for any character."""
    updates: str = ""
    """`7`, `1-400` or `400-`: their numbers (steps, in a foreign log); empty for the whole run."""
    source: str = "ignore"
    """Where it was asked: the name of a file, or of an option."""

    def __post_init__(self) -> None:
        """Check what can be checked without rules and runs."""
        if not self.reason.strip():
            raise IgnoreError(f"the ignore of `{self.rule}` has no reason")
        if not self.run:
            raise IgnoreError(
                f"the ignore of `{self.rule}` names an empty run; leave `run` out for every run"
            )
        _ = self.span

    @property
    def span(self) -> tuple[int, int | None] | None:
        """The first and the last update, None where there is no last; None for the whole run."""
        if not self.updates:
            return None
        found = _UPDATES.fullmatch(self.updates.strip())
        if not found:
            raise IgnoreError(f"`{self.updates}` names no updates; write `7`, `1-400` or `400-`")
        first = int(found[1])
        last = int(found[3]) if found[3] else None if found[2] else first
        if last is not None and last < first:
            raise IgnoreError(f"the updates {first}-{last} end before they begin")
        return first, last

    def of(self, run_ids: Collection[str]) -> list[str]:
        """The runs that it is about."""
        pattern = self.run.replace("[", "[[]")  # names of sweeps hold brackets
        return [run_id for run_id in run_ids if fnmatchcase(run_id, pattern)]

    def __str__(self) -> str:
        places = [f"run `{self.run}`"] if self.run != "*" else []
        places += [f"updates {self.updates}"] if self.updates else []
        return f"`{self.rule}`" + (f" ({', '.join(places)})" if places else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A finding that was there when the baseline was written."""

    fingerprint: str
    code: str
    name: str
    run_id: str
    severity: str
    first_update: int | None
    message: str
    """As it was told then."""

    def __str__(self) -> str:
        at = "" if self.first_update is None else f" from update {self.first_update}"
        return f"{self.code} in {self.run_id}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Findings that are known and left out."""

    source: str
    known: Mapping[str, Known]
    """By their fingerprints."""

    def holds(self, print_: str, severity: str) -> bool:
        """Whether a finding is known. One that is worse than it was is new."""
        known = self.known.get(print_)
        return known is not None and SEVERITIES.index(known.severity) <= SEVERITIES.index(severity)

    def missed(
        self, found: Collection[str], run_ids: Collection[str], codes: Collection[str]
    ) -> Iterator[str]:
        """What it holds of these runs and rules and was not found, in a sentence."""
        gone = [
            str(known)
            for print_, known in self.known.items()
            if print_ not in found and known.run_id in run_ids and known.code in codes
        ]
        if gone:
            more = f" and {len(gone) - SHOWN:,} more" if len(gone) > SHOWN else ""
            yield f"{self.source}: was not found any more: {', '.join(gone[:SHOWN])}{more}"


def baseline_of(report: AuditReport, source: str) -> Baseline:
    """A baseline of all that was found."""
    known = [
        Known(
            fingerprint=fingerprint(run.run_id, verdict.code, verdict.finding),
            code=verdict.code,
            name=verdict.name,
            run_id=run.run_id,
            severity=verdict.severity,
            first_update=verdict.finding.first_update,
            message=verdict.finding.message,
        )
        for run in report.runs
        for verdict in run.with_status(FAILED)
        if verdict.finding is not None
    ]
    in_order = sorted(known, key=lambda one: (one.run_id, one.code))
    return Baseline(source=source, known={one.fingerprint: one for one in in_order})


def write_baseline(baseline: Baseline, file: Path) -> None:
    """Write a baseline, one finding a line, so that a version control system shows what changed."""
    fields = Known.__slots__
    lines = [json.dumps({name: getattr(one, name) for name in fields}) for one in baseline.known.values()]
    findings = ",\n".join(f"    {line}" for line in lines)
    body = f"[\n{findings}\n  ]" if lines else "[]"
    file.write_text(f'{{\n  "schema": {SCHEMA},\n  "findings": {body}\n}}\n', encoding="utf-8")


def read_baseline(file: Path) -> Baseline:
    """Read what `write_baseline` wrote.

    Raises:
        IgnoreError: it cannot be read, or is no baseline.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise IgnoreError(f"{file}: the baseline cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise IgnoreError(f"{file}: this is no baseline: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise IgnoreError(f"{file}: this is no baseline of schema {SCHEMA}; write it with --write-baseline")
    try:
        known = [_known(entry) for entry in document["findings"]]
    except (KeyError, TypeError, ValueError):
        raise IgnoreError(f"{file}: a finding of this baseline is not whole; write it again") from None
    return Baseline(source=file.name, known={one.fingerprint: one for one in known})


def _known(entry: Mapping[str, object]) -> Known:
    first = entry["first_update"]
    if first is not None and not isinstance(first, int):
        raise TypeError(first)
    texts = {name: str(entry[name]) for name in Known.__slots__ if name != "first_update"}
    if texts["severity"] not in SEVERITIES:
        raise ValueError(texts["severity"])
    return Known(first_update=first, **texts)


def unused(ignores: Sequence[Ignore], matched: Collection[int], run_ids: Collection[str]) -> Iterator[str]:
    """The ignores about runs that were read of which no row made use, in sentences."""
    for place, ignore in enumerate(ignores):
        if place not in matched and ignore.of(run_ids):
            yield f"{ignore.source}: the ignore of {ignore} matches nothing"
