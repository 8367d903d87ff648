"""What was found in one run so far: each finding is told once, kept up to date, withdrawn where it falls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from accumaudit.engine import evidence
from accumaudit.engine.catalogue import Catalogue
from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, PASSED, Finding, RunReport, Verdict
from accumaudit.engine.judge import LASTING
from accumaudit.engine.rule import SEVERITIES
from accumaudit.service.judging import wire
from accumaudit.service.snapshot import FindingView

AT_A_SLOWER_BEAT: Final = "it needs the whole record, which is read again now and then"
"""Why a rule of scope run says nothing of a run that has outgrown its window."""

Spot = tuple[int | None, int | None, int | None]
"""A launch, an optimizer and an attempt."""

Place = tuple[int, int]
"""The number of a launch, and an optimizer."""

Found = Mapping[str, Sequence[evidence.Place]]
"""The attempts of each rule's finding."""


@dataclass(slots=True)
class Entry:
    """One rule's finding."""

    verdict: Verdict
    """As it is told."""
    first_seen: float
    last_seen: float
    current: Verdict | None = None
    """What was found in the attempts that were judged last."""
    inside: dict[Spot, int | None] = field(default_factory=dict)
    """Those attempts, with the numbers of their updates."""
    settled: Verdict | None = None
    """What was found in attempts that are not judged any more."""
    withdrawn: bool = False

    @property
    def view(self) -> FindingView:
        """What others see of it."""
        return FindingView(
            verdict=self.verdict,
            first_seen=self.first_seen,
            last_seen=self.last_seen,
            withdrawn=self.withdrawn,
        )

    def find(self, current: Verdict | None, inside: dict[Spot, int | None]) -> None:
        """Put what is found in the attempts judged last in place of what was found in them before."""
        self.current, self.inside = current, inside
        self._tell()

    def settle(self, covers: Callable[[Spot], bool]) -> None:
        """Keep what was found in attempts that are not judged any more."""
        gone = {spot: update for spot, update in self.inside.items() if not covers(spot)}
        if gone and self.current is not None:
            self.settled = _joined(self.settled, _part(self.current, gone))
            self._keep_inside(covers)

    def find_earlier(self, settled: Verdict | None, covers: Callable[[Spot], bool]) -> None:
        """Put what is found in all attempts before those judged last in place of what was found there."""
        self.settled = settled
        self._keep_inside(covers)
        self._tell()

    def _keep_inside(self, covers: Callable[[Spot], bool]) -> None:
        self.inside = {spot: update for spot, update in self.inside.items() if covers(spot)}
        self.current = _part(self.current, self.inside) if self.current and self.inside else None

    def _tell(self) -> None:
        """Say what is known now; what was said last stays where nothing is any more."""
        parts = [part for part in (self.settled, self.current) if part is not None]
        self.withdrawn = not parts
        if len(parts) == 2:
            self.verdict = _joined(parts[0], parts[1])
        elif parts:
            (self.verdict,) = parts


class Book:
    """The verdicts and findings of one run."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._verdicts: dict[str, Verdict] = {}
        """What each rule says, apart from findings."""
        self._entries: dict[str, Entry] = {}
        self._lowest: dict[Place, int] = {}
        """The first attempt of each launch and optimizer that is not settled."""

    @property
    def findings(self) -> tuple[FindingView, ...]:
        """Those that stand, the highest severity first; then those withdrawn."""
        entries = sorted(
            self._entries.values(),
            key=lambda one: (one.withdrawn, SEVERITIES.index(one.verdict.severity), one.verdict.code),
        )
        return tuple(entry.view for entry in entries)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What each rule says, in the order of their codes."""
        said = []
        for code, verdict in sorted(self._verdicts.items()):
            entry = self._entries.get(code)
            stands = entry is not None and not entry.withdrawn and verdict.status != BROKEN
            said.append(entry.verdict if entry is not None and stands else verdict)
        return tuple(said)

    def take_whole(self, report: RunReport, found: Found, now: float) -> list[FindingView]:
        """Take what was said of all attempts so far, as it is; give what is new."""
        return self._replace_all(report.verdicts, found, now)

    def take_window(
        self, report: RunReport, found: Found, lowest: Mapping[Place, int], now: float
    ) -> list[FindingView]:
        """Take what was said of the newest attempts, from the lowest on; give what is new."""
        new = []
        covers = self._covering(lowest)
        for verdict in report.verdicts:
            code = verdict.code
            if self._catalogue[code].scope == "run":
                self._verdicts.setdefault(code, _unchecked(verdict))
                continue
            inside = {spot: update for spot, update in _spots(found, code).items() if covers(spot)}
            current = None
            if verdict.finding is not None and inside and not self._is_explained(code):
                current = verdict if len(inside) == verdict.finding.count else _part(verdict, inside)
            if self._merge(code, current, inside if current else {}, covers, now):
                new.append(code)
            self._note(verdict)
        return [self._entries[code].view for code in new]

    def take_run_rules(self, report: RunReport, found: Found, now: float) -> list[FindingView]:
        """Take what the rules of scope run say of the whole record; give what is new."""
        chosen = [one for one in report.verdicts if self._catalogue[one.code].scope == "run"]
        return self._replace_all(chosen, found, now)

    def take_earlier(
        self, report: RunReport, found: Found, lowest: Mapping[Place, int], now: float
    ) -> list[FindingView]:
        """Take what was said of all attempts below the lowest of the newest; give what is new."""
        new = []
        covers = self._covering(lowest)
        for verdict in report.verdicts:
            code = verdict.code
            if self._catalogue[code].scope == "run":
                continue
            self._note(verdict)
            earlier = {spot: update for spot, update in _spots(found, code).items() if not covers(spot)}
            settled = _part(verdict, earlier) if earlier and verdict.finding is not None else None
            entry = self._entries.get(code)
            if entry is not None:
                entry.find_earlier(settled, covers)
            elif settled is not None:
                self._entries[code] = Entry(settled, now, now, settled=settled)
                new.append(code)
        return [self._entries[code].view for code in new]

    def _covering(self, lowest: Mapping[Place, int]) -> Callable[[Spot], bool]:
        """Settle what lies below; tell which attempts do not."""
        for place, first in lowest.items():
            self._lowest[place] = max(first, self._lowest.get(place, 0))

        def covers(spot: Spot) -> bool:
            launch, optimizer, attempt = spot
            if launch is None or optimizer is None or attempt is None:
                return True
            return (launch, optimizer) in lowest and attempt >= self._lowest[launch, optimizer]

        return covers

    def saved(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "lowest": [[*place, first] for place, first in self._lowest.items()],
            "verdicts": [wire.verdict_json(one) for one in self._verdicts.values()],
            "entries": [
                {
                    **wire.finding_json(entry.view),
                    "inside": [[*spot, update] for spot, update in entry.inside.items()],
                    "current": None if entry.current is None else wire.verdict_json(entry.current),
                    "settled": None if entry.settled is None else wire.verdict_json(entry.settled),
                }
                for entry in self._entries.values()
            ],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what was saved; rules that are not there any more are left out."""
        self._lowest = {(row[0], row[1]): row[2] for row in saved["lowest"]}
        for one in saved["verdicts"]:
            if one["code"] in self._catalogue:
                self._verdicts[one["code"]] = wire.verdict(one, self._catalogue)
        for one in saved["entries"]:
            code = one["verdict"]["code"]
            if code in self._catalogue:
                settled, current = one["settled"], one["current"]
                self._entries[code] = Entry(
                    verdict=wire.verdict(one["verdict"], self._catalogue),
                    first_seen=one["first_seen"],
                    last_seen=one["last_seen"],
                    current=None if current is None else wire.verdict(current, self._catalogue),
                    inside={(row[0], row[1], row[2]): row[3] for row in one["inside"]},
                    settled=None if settled is None else wire.verdict(settled, self._catalogue),
                    withdrawn=one["withdrawn"],
                )

    def _replace_all(self, verdicts: Iterable[Verdict], found: Found, now: float) -> list[FindingView]:
        """Put verdicts in the place of what was said before; give what is new."""
        new = [code for verdict in verdicts if (code := self._replace(verdict, found, now))]
        return [self._entries[code].view for code in new]

    def _replace(self, verdict: Verdict, found: Found, now: float) -> str | None:
        """Let a verdict stand for all that was said before; the code where it is a new finding."""
        code = verdict.code
        self._verdicts[code] = verdict
        entry = self._entries.get(code)
        failed = verdict if verdict.status == FAILED else None
        if entry is None:
            if failed is None:
                return None
            entry = self._entries[code] = Entry(failed, now, now)
            entry.find(failed, _spots(found, code))
            return code
        if verdict.status != BROKEN:
            entry.settled = None
            entry.find(failed, _spots(found, code) if failed else {})
            entry.last_seen = now if failed else entry.last_seen
        return None

    def _merge(
        self,
        code: str,
        current: Verdict | None,
        inside: dict[Spot, int | None],
        covers: Callable[[Spot], bool],
        now: float,
    ) -> bool:
        """Put a finding of the newest attempts beside what was found before; whether it is the first."""
        entry = self._entries.get(code)
        if entry is None:
            if current is not None:
                self._entries[code] = Entry(current, now, now, current, inside)
            return current is not None
        entry.settle(covers)
        entry.find(current, inside)
        entry.last_seen = now if current else entry.last_seen
        return False

    def _note(self, verdict: Verdict) -> None:
        """Keep that a rule has judged rows without a fault, whatever the newest attempts are."""
        before = self._verdicts.get(verdict.code)
        if verdict.status == PASSED and before is not None and before.status == PASSED:
            verdict = replace(verdict, judged=max(before.judged, verdict.judged))
        elif verdict.status == NOT_CHECKED and before is not None and before.status == PASSED:
            return
        self._verdicts[verdict.code] = verdict if verdict.status != FAILED else _passed(verdict, before)

    def _is_explained(self, code: str) -> bool:
        """Whether a finding that stands explains those of a rule in whatever attempts follow."""
        effect = self._catalogue[code]
        return any(
            code in self._catalogue[cause].explains
            and (code in LASTING or "run" in (effect.scope, self._catalogue[cause].scope))
            for cause, entry in self._entries.items()
            if not entry.withdrawn
        )


def _spots(found: Found, code: str) -> dict[Spot, int | None]:
    """The attempts of a rule's finding, with the numbers of their updates."""
    return {
        (launch, optimizer, attempt): update for launch, optimizer, attempt, update in found.get(code, ())
    }


def _unchecked(verdict: Verdict) -> Verdict:
    return replace(verdict, status=NOT_CHECKED, judged=0, finding=None, ignored=(), reason=AT_A_SLOWER_BEAT)


def _passed(verdict: Verdict, before: Verdict | None) -> Verdict:
    """What is said of a rule should its finding be withdrawn."""
    if before is not None and before.status in (PASSED, NOT_CHECKED):
        return before
    return replace(verdict, status=PASSED, finding=None)


def _part(verdict: Verdict, spots: Mapping[Spot, int | None]) -> Verdict:
    """The part of a finding that is about these attempts."""
    finding = verdict.finding
    assert finding is not None
    updates = [update for update in spots.values() if update is not None]
    examples = tuple(one for one in finding.examples if (one.launch, one.optimizer, one.attempt_id) in spots)
    shown = examples or finding.examples[:1]
    return replace(
        verdict,
        finding=replace(
            finding,
            count=len(spots),
            first_update=min(updates, default=None),
            last_update=max(updates, default=None),
            examples=shown,
            message=shown[0].message,
            observed=shown[0].observed,
            expected=shown[0].expected,
        ),
    )


def _joined(before: Verdict | None, after: Verdict) -> Verdict:
    """Two findings of one rule in different attempts as one."""
    if before is None:
        return after
    first, second = before.finding, after.finding
    assert first is not None
    assert second is not None
    higher = SEVERITIES.index(after.severity) < SEVERITIES.index(before.severity)
    leading, other = (second, first) if higher else (first, second)
    updates = [
        one
        for finding in (first, second)
        for one in (finding.first_update, finding.last_update)
        if one is not None
    ]
    finding = Finding(
        count=first.count + second.count,
        first_update=min(updates, default=None),
        last_update=max(updates, default=None),
        ranks=tuple(sorted({*first.ranks, *second.ranks})),
        message=leading.message,
        observed=leading.observed,
        expected=leading.expected,
        examples=tuple(dict.fromkeys((*leading.examples, *other.examples)))[: evidence.EXAMPLES],
    )
    return replace(after, severity=(after if higher else before).severity, finding=finding)
