"""Small pieces of text that every output for people shares."""

from __future__ import annotations

from collections.abc import Iterable

from accumaudit.engine.findings import FAILED, NOT_CHECKED, PASSED, AuditReport, Finding, RunReport, Verdict


def printable(text: str) -> str:
    """The text in one line, with an escape for each character that a terminal might obey."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def plural(count: int, noun: str) -> str:
    """`1 update`, `2 updates`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spans(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, with a hyphen for those in between: `0-3, 7`."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1][1:] = [number]
        else:
            groups.append([number])
    return ", ".join("-".join(map(str, group)) for group in groups)


def absent_ranks(run: RunReport) -> str:
    """The ranks that were to write and of which nothing was read: `3, 5-7`; empty where there is none."""
    if run.recorded_ranks is not None:
        return spans(sorted(set(run.recorded_ranks) - set(run.ranks)))
    found, start = [], 0
    for rank in (*run.ranks, run.world_size or 0):  # a record may name any number of them
        if rank > start:
            found.append(f"{start}" if rank == start + 1 else f"{start}-{rank - 1}")
        start = max(start, rank + 1)
    return ", ".join(found)


def number(value: float) -> str:
    """A measured value, short."""
    return f"{value:.6g}"


def updates(finding: Finding, run: RunReport) -> str:
    """Which updates a finding is about (steps, in a foreign log); the whole run where it names none."""
    first, last = finding.first_update, finding.last_update
    noun = "step" if run.is_foreign else "update"
    if first is None or last is None:
        return attempts(finding)
    if first == last:
        return f"{noun} {first}"
    if finding.count == last - first + 1:
        return f"{noun}s {first} to {last}"
    numbers = (one.attempt_id if run.is_foreign else one.optimizer_update_id for one in finding.examples)
    shown = sorted({number for number in numbers if number is not None})
    if finding.count == len(shown):
        return f"{noun}s {', '.join(map(str, shown[:-1]))} and {shown[-1]}"
    return (
        f"{finding.count:,} {'records' if run.is_foreign else 'attempts'} between {noun}s {first} and {last}"
    )


def attempts(finding: Finding) -> str:
    """Which attempts a finding is about, where the record does not number the updates."""
    first = finding.examples[0].attempt_id
    if first is None:
        return "the whole run"
    return f"attempt {first}" if finding.count == 1 else f"from attempt {first} on"


def ranks(finding: Finding, run: RunReport) -> str:
    """Which ranks a finding is about."""
    if finding.ranks != run.ranks or len(run.ranks) == 1:
        return f"rank{'s' if len(finding.ranks) > 1 else ''} {spans(finding.ranks)}"
    return "both ranks" if len(run.ranks) == 2 else f"all {len(run.ranks)} ranks"


def headline(verdict: Verdict, run: RunReport) -> str:
    """`error ACC101 fixed-divisor-tail, update 4: a tail of ...`: a verdict's finding in one line."""
    where = f", {updates(verdict.finding, run)}: {verdict.finding.message}" if verdict.finding else ""
    return printable(f"{verdict.severity} {verdict.code} {verdict.name}{where}")


def footer(report: AuditReport) -> str:
    """`Found 2 faults in 1 run (31 rules passed, 9 not checked).`"""
    failed = [verdict for run in report.runs for verdict in run.with_status(FAILED)]
    notes = sum(verdict.severity == "note" for verdict in failed)
    faults = len(failed) - notes
    found = f"Found {plural(faults, 'fault')}" if faults else "Found no fault"
    if notes:
        found += f" and {plural(notes, 'note')}"
    counts = report.summary()
    noun = "rule" if len(report.runs) == 1 else "verdict"
    rest = [f"{plural(counts[PASSED], noun)} passed", f"{counts[NOT_CHECKED]} not checked"]
    if counts["broken"]:
        rest.append(f"{counts['broken']} broken")
    return f"{found} in {plural(len(report.runs), 'run')} ({', '.join(rest)})."
