"""Assertions about a run, with messages that say what was found in it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, PASSED, AuditReport, Finding, Verdict
from accumaudit.engine.rule import SEVERITIES
from accumaudit.opened import Ledger
from accumaudit.outputs.words import number, plural, printable, ranks, updates
from accumaudit.testing.capturing import Captured, Training, record

if TYPE_CHECKING:
    from accumaudit.engine.findings import RunReport
    from accumaudit.engine.ignoring import Ignore

Run = Ledger | Captured | str | os.PathLike[str] | Training
"""What can be asserted about: an open ledger, a captured training, a run's folder, or a function that
trains and records in the folder that it is given."""

WIDTH: Final = 100


def assert_clean(
    run: Run,
    *,
    select: Collection[str] = (),
    ignore: Collection[str | Ignore] = (),
    fail_on: str = "warning",
    judged: Collection[str] = (),
    params: Mapping[str, float] | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
) -> AuditReport:
    """Assert that a run has no fault.

        def test_the_loop_trains_what_was_meant():
            assert_clean(lambda log_dir: train(small_config, log_dir=log_dir))

    A run without any update, or of which no rule could judge anything, is not clean.

    Args:
        run: a function that trains and records in the folder that it is given, a captured training,
            an open ledger, or a run's folder.
        select: judge by these rules alone: names, codes, or the beginning of codes.
        ignore: leave these out; an `accumaudit.engine.ignoring.Ignore` leaves out the findings of some runs
            or updates alone, with a reason.
        fail_on: the lowest severity that is a fault: error, warning or note.
        judged: rules that must have had something to judge, so that "not checked" is a failure.
        params: thresholds, as in `{"ACC102.spread": 0.02}`.
        rules: folders of further rules.

    Returns:
        The report, with the verdict of every rule.

    Raises:
        AssertionError: the run is not clean; the text lists what was found.
    """
    __tracebackhide__ = True
    severities = _severities(fail_on)
    to_judge = {rule.code for rule in load_rules(*map(Path, rules)).matching(judged)}
    with _opened(run) as ledger:
        report = ledger.check(select=select, ignore=ignore, params=params, rules=rules)
    complaints = [text for one in report.runs for text in _complaints(one, severities, to_judge)]
    if complaints:
        raise AssertionError("\n\n".join(complaints))
    return report


def assert_finds(
    run: Run,
    rule: str,
    *,
    params: Mapping[str, float] | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
) -> Finding:
    """Assert that a rule finds its fault in a run.

        finding = assert_finds(faulty_train, "fixed-divisor-tail")
        assert finding.first_update == 4

    Args:
        run: as for `assert_clean`.
        rule: the rule's code or name.
        params: thresholds, as in `{"ACC102.spread": 0.02}`.
        rules: folders of further rules.

    Returns:
        The finding, of the first run that has it.

    Raises:
        AssertionError: it found nothing; the text says what it did instead, and what others found.
    """
    __tracebackhide__ = True
    with _opened(run) as ledger:
        report = ledger.check(params=params, rules=rules)
    verdicts = [(one, verdict) for one in report.runs for verdict in one.verdicts]
    known = load_rules(*map(Path, rules)).find(rule)
    own = [(one, verdict) for one, verdict in verdicts if verdict.code == known.code]
    found = [verdict.finding for _, verdict in own if verdict.finding is not None]
    if found:
        return found[0]
    others = [f"{verdict.code} {verdict.name}" for _, verdict in verdicts if verdict.status == FAILED]
    raise AssertionError(_not_found(own, others))


def _severities(fail_on: str) -> tuple[str, ...]:
    if fail_on not in SEVERITIES:
        raise ValueError(f"fail_on is {', '.join(SEVERITIES)}, not {fail_on!r}")
    return SEVERITIES[: SEVERITIES.index(fail_on) + 1]


@contextmanager
def _opened(run: Run) -> Iterator[Ledger]:
    """The run's ledger; one that is opened here is closed again."""
    if isinstance(run, Ledger | Captured):
        yield run.ledger if isinstance(run, Captured) else run
        return
    with Ledger.open(run) if isinstance(run, str | os.PathLike) else record(run) as ledger:
        yield ledger


def _complaints(run: RunReport, severities: Sequence[str], judged: Collection[str]) -> Iterator[str]:
    """What keeps a run from being clean, in paragraphs, a headline first."""
    found = [verdict for verdict in run.with_status(FAILED) if verdict.severity in severities]
    paragraphs = [_fault(verdict, run) for verdict in found]
    paragraphs += [f"broken rule {one.code} {one.name}: {one.reason}" for one in run.with_status(BROKEN)]
    paragraphs += _unjudged(run, judged)
    if run.holes or run.unreadable:
        paragraphs.append("\n".join(["the record has holes", *map(_line, _holes(run))]))
    if not paragraphs:
        return
    faults = f": {plural(len(found), 'fault')} in {plural(run.updates, 'update')}"
    yield printable(run.run_id + (faults if found else " is not clean"))
    yield from paragraphs
    if found:
        yield f"`accumaudit explain {found[0].code}` says why it matters and when it is no fault."


def _unjudged(run: RunReport, judged: Collection[str]) -> list[str]:
    """Complaints about what was not judged."""
    if not run.attempts:
        return ["no update was recorded, so there was nothing to judge"]
    if not run.with_status(PASSED) and not run.with_status(FAILED):
        return ["no rule could judge anything in this record"]
    return [
        f"{one.code} {one.name} was to judge and did not: {one.reason}"
        for one in run.verdicts
        if one.status == NOT_CHECKED and one.code in judged
    ]


def _holes(run: RunReport) -> Iterator[str]:
    yield from run.holes
    for one in run.unreadable:
        yield f"{one.file}:{one.line}: {one.why}" if one.line else f"{one.file}: {one.why}"


def _fault(verdict: Verdict, run: RunReport) -> str:
    finding = verdict.finding
    assert finding is not None
    lines = [f"{verdict.severity} {verdict.code} {verdict.name}: {verdict.summary}"]
    lines.append(_line(finding.message, "seen"))
    if finding.observed is not None and finding.expected is not None:
        lines.append(_line(f"{number(finding.observed)}, expected {number(finding.expected)}", "measured"))
    share = f"{finding.count:,} of {plural(run.attempts, 'attempt')}"
    lines.append(_line(", ".join((updates(finding, run), ranks(finding, run), share)), "where"))
    lines.append(_line(verdict.advice, "fix"))
    return "\n".join(lines)


def _line(text: str, label: str = "") -> str:
    """A text beside its label, on as many lines as it needs."""
    head = f"  {label:<10}" if label else "  "
    return textwrap.fill(
        printable(text),
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _not_found(own: Sequence[tuple[RunReport, Verdict]], others: Sequence[str]) -> str:
    lines = []
    for run, verdict in own:
        seen = f"it passed, and judged {verdict.judged:,}"
        if verdict.status != PASSED:
            seen = f"{verdict.status.replace('_', ' ')}, {verdict.reason}"
        lines.append(
            f"{verdict.code} {verdict.name} found nothing in {plural(run.updates, 'update')} of "
            f"{run.run_id}: {seen}"
        )
    lines.append(f"found instead: {', '.join(dict.fromkeys(others)) or 'nothing'}")
    return "\n".join(map(printable, lines))
