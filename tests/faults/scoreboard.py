"""Trains the faults, their twins and the traps, judges them, and tells what was found of each.

Run as a module it trains them all and writes docs/scoreboard.md; given names of faults, traps or runtimes, it
trains these alone and writes no page.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, RunReport, Verdict
from docs.generate import renewed, table
from tests.faults.registry import KINDS, PATIENCE, RUNTIMES, Fault, Training, Trap, faults, traps, what
from tests.processes import Pair, PairError, Processes, resolve
from tests.recorded import faults as hook_faults

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "scoreboard.md"
AT_ONCE, LATER, ELSEWHERE, MISSED = "●", "◐", "-", "✗"
"""Found on the first wrong update; found later, or in the run as a whole; not applicable; missed."""


@dataclass(frozen=True)
class Cell:
    """A fault in a runtime."""

    symbol: str
    wrong: tuple[str, ...] = ()
    """Where what was found is not what must be found."""


@contextmanager
def groups(pair: Pair) -> Iterator[Mapping[tuple[str, int], Processes]]:
    """Who trains what: groups by runtime and size, for all that this process cannot train itself."""
    single, four = Processes(1), Processes(4)  # DeepSpeed keeps its first group for good
    try:
        yield {
            **{(runtime, 2): pair for runtime in RUNTIMES},
            **{(runtime, 4): four for runtime in RUNTIMES},
            ("DeepSpeed", 1): single,
        }
    finally:
        single.close()
        four.close()


def train(
    runtime: str, folder: Path, by: Mapping[tuple[str, int], Processes], names: Collection[str] = ()
) -> None:
    """Train the faults that occur in a runtime (those of these names, or all), and their twins."""
    twins = set()
    for name, training in _trainings(runtime, names):
        group = by.get((runtime, training.processes))
        try:
            training.run(folder / f"{name}.fault", group, honest=False)
            if _twin(name, training) not in twins:
                twins.add(_twin(name, training))
                training.run(folder / _twin(name, training), group, honest=True)
        except PairError as error:
            raise PairError(f"{name} in {runtime}: {error}") from error


def _twin(name: str, training: Training) -> str:
    shared = training.twin if training.twin != training.function else name
    return f"{shared}.{training.processes}.twin"


def _trainings(runtime: str, names: Collection[str]) -> Iterator[tuple[str, Training]]:
    for name, fault in faults().items():
        if runtime in fault.trainings and (not names or name in names):
            yield name, fault.trainings[runtime]


def train_traps(folder: Path, by: Mapping[tuple[str, int], Processes], names: Collection[str] = ()) -> None:
    """Train the right loops that look like faults: those of these names, or all."""
    for name, one in traps().items():
        if names and not {name, one.trap} & {*names}:
            continue
        group = by.get((one.runtime, one.processes))
        own = folder / name
        own.mkdir(parents=True)
        if group is None:
            resolve(one.function)(str(own))
        else:
            group.call(one.function, timeout=PATIENCE, folder=str(own))


def judge(folder: Path) -> dict[str, list[RunReport]]:
    """The reports on a folder of trainings, by the name of each training."""
    found: dict[str, list[RunReport]] = {}
    for run in check_paths([folder]).runs:
        found.setdefault(Path(run.path).relative_to(folder).parts[0], []).append(run)
    return found


def cells(runtime: str, folder: Path, names: Collection[str] = ()) -> dict[str, Cell]:
    """What was found of each fault in the runtime."""
    trainings = dict(_trainings(runtime, names))
    reports = judge(folder) if trainings else {}
    found = {
        name: Cell(MISSED if fault.elsewhere[runtime].startswith("missed: ") else ELSEWHERE)
        for name, fault in faults().items()
        if not names and name not in trainings
    }
    for name, training in trainings.items():
        own, twin = f"{name}.fault", _twin(name, training)
        silent = tuple(_accusations(reports[twin], training.notes))
        recorded = (
            f"the hooks tell of {told}" for part in (own, twin) for told in hook_faults(folder / part)
        )
        symbol, wrong = _symbol(reports[own], training)
        found[name] = Cell(symbol, (*wrong, *(f"twin: {one}" for one in silent), *recorded))
    return found


def _failed(runs: list[RunReport]) -> dict[str, Verdict]:
    """The findings of all runs; there is nothing that could not be read or judged."""
    assert not any(run.unreadable for run in runs)
    broken = [verdict.reason for run in runs for verdict in run.with_status(BROKEN)]
    assert not broken, broken
    return {verdict.code: verdict for run in runs for verdict in run.with_status(FAILED)}


def _accusations(runs: list[RunReport], notes: frozenset[str]) -> Iterator[str]:
    for verdict in _failed(runs).values():
        if verdict.severity != "note" or verdict.code not in notes:
            yield _told(verdict)


def _told(verdict: Verdict) -> str:
    assert verdict.finding is not None
    return f"{verdict.severity} {verdict.code}: {verdict.finding.message}"


def _symbol(runs: list[RunReport], training: Training) -> tuple[str, tuple[str, ...]]:
    """What a training's cell shows, and what is wrong with what was found."""
    failed = _failed(runs)
    others = [
        _told(verdict) for code, verdict in failed.items() if code not in {training.code, *training.also}
    ]
    absent = [f"{code} was not found" for code in sorted(training.also - {*failed})]
    verdict = failed.get(training.code)
    if verdict is None or verdict.finding is None:
        return MISSED, (*others, *absent, f"{training.code} was not found")
    wrong = [*others, *absent]
    severity = training.severity or load_rules()[training.code].severity
    if verdict.severity != severity:
        wrong.append(f"its severity is {verdict.severity}, not {severity}")
    at = min((one.attempt_id for one in verdict.finding.examples if one.attempt_id is not None), default=None)
    if training.first is not None and at != training.found:
        wrong.append(f"it names attempt {at} first, not {training.found}")
    if training.found != training.first and not training.why_later:
        wrong.append("say why it is found later")
    measured = verdict.finding.observed
    if training.observed is not None and (
        measured is None or abs(measured - training.observed) > 2e-3 * abs(training.observed)
    ):
        wrong.append(f"it measured {measured}, not {training.observed}")
    at_once = training.first is not None and training.found == training.first
    return AT_ONCE if at_once else LATER, tuple(wrong)


def trap_errors(one: Trap, runs: list[RunReport]) -> Iterator[str]:
    """What is said of a trap and must not be, and what was to be judged and was not."""
    assert runs, f"{one.name} left no run"
    failed = _failed(runs)
    yield from _accusations(runs, one.notes)
    yield from (f"the note {code} was not found" for code in sorted(one.notes - {*failed}))
    verdicts = {verdict.code: verdict for run in runs for verdict in run.verdicts}
    for code in one.tempts:
        verdict = verdicts[code]
        reason = one.unjudged.get(code)
        if verdict.status == NOT_CHECKED and not (reason and (verdict.reason or "").startswith(reason)):
            yield f"{code} did not judge it: {verdict.reason}"
        if reason and verdict.status != NOT_CHECKED:
            yield f"{code} judged it, though it was to say: {reason}"


def fault_table(found: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each fault, a column for each runtime."""

    def row(name: str, fault: Fault) -> list[str]:
        symbols = [found[runtime][name] for runtime in RUNTIMES]
        code = f"[{fault.code}](rules.md#{fault.code.lower()}-{load_rules()[fault.code].name})"
        return [fault.kind, what(fault, name), code, *symbols]

    return table(("kind", "fault", "rule", *RUNTIMES), (row(name, fault) for name, fault in faults().items()))


def kind_list() -> str:
    """The kinds, with the reports of each."""
    reports: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for fault in faults().values():
        reports[fault.kind] += [report for report in fault.reports if report not in reports[fault.kind]]
    return "\n".join(f"- {kind}, {told}: {', '.join(reports[kind])}" for kind, told in KINDS.items())


def later_list() -> str:
    """Why some are not found on the first wrong update, and where others cannot be."""
    lines = []
    for name, fault in faults().items():
        later = [f"{runtime}: {one.why_later}" for runtime, one in fault.trainings.items() if one.why_later]
        reasons: dict[str, list[str]] = {}
        for runtime in RUNTIMES:
            if runtime in fault.elsewhere:
                reasons.setdefault(fault.elsewhere[runtime], []).append(runtime)
        absent = [f"{', '.join(runtimes)}: {reason}" for reason, runtimes in reasons.items()]
        lines += [f"- {name}: {'; '.join([*later, *absent])}"] if later or absent else []
    return "\n".join(lines)


def trap_table() -> str:
    """A row for each right loop."""

    def row(one: Trap) -> list[str]:
        said = ", ".join(sorted(one.notes))
        return [one.trap, one.what, one.runtime, ", ".join(one.tempts), f"note {said}" if said else "nothing"]

    return table(
        ("trap", "what is right", "runtime", "rules it could fool", "what is said"),
        map(row, traps().values()),
    )


def page(found: Mapping[str, Mapping[str, str]]) -> str:
    """The page with its tables written again."""
    parts = {
        "scoreboard": lambda: fault_table(found),
        "kinds": kind_list,
        "later": later_list,
        "traps": trap_table,
    }
    return renewed(PAGE.read_text(encoding="utf-8"), parts)


def main(words: Sequence[str]) -> int:
    """Train, judge and write the page; what is wrong is said, and is exit status 1."""
    runtimes = [word for word in words if word in RUNTIMES] or [*RUNTIMES]
    names = {word for word in words if word not in RUNTIMES}
    pair = Pair()
    try:
        with tempfile.TemporaryDirectory() as folder, groups(pair) as by:
            found = {runtime: _tried(runtime, Path(folder, runtime), by, names) for runtime in runtimes}
            errors = _tried_traps(Path(folder, "traps"), by, names)
    finally:
        pair.close()
    if not words:
        symbols = {
            runtime: {name: cell.symbol for name, cell in own.items()} for runtime, own in found.items()
        }
        PAGE.write_text(page(symbols), encoding="utf-8")
    for runtime, own in found.items():
        for name, cell in own.items():
            if words and cell.symbol != ELSEWHERE:
                sys.stdout.write(f"{cell.symbol} {name} in {runtime}\n")
            errors += [f"{name} in {runtime}: {error}" for error in cell.wrong]
    sys.stderr.writelines(f"{error}\n" for error in errors)
    return int(bool(errors))


def _tried(
    runtime: str, folder: Path, by: Mapping[tuple[str, int], Processes], names: Collection[str]
) -> dict[str, Cell]:
    train(runtime, folder, by, names)
    return cells(runtime, folder, names)


def _tried_traps(folder: Path, by: Mapping[tuple[str, int], Processes], names: Collection[str]) -> list[str]:
    train_traps(folder, by, names)
    reports = judge(folder) if folder.exists() else {}
    own = {name: runs for name, runs in reports.items() if name in traps()}
    return [f"{name}: {error}" for name, runs in own.items() for error in trap_errors(traps()[name], runs)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
