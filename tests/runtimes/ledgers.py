"""What a runtime's run is judged to be, as its tests ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import accumaudit


class Found(NamedTuple):
    """All findings of one rule."""

    severity: str
    attempt: int | None
    """The first that it names."""
    times: int


class Judged(NamedTuple):
    """The windows and findings of a run."""

    totals: list[float | None]
    """T of each window."""
    distortions: list[tuple[float | None, float | None]]
    """d of each window, from its least to its greatest."""
    findings: dict[str, Found]

    @property
    def alarms(self) -> dict[str, Found]:
        """Those at warning and above."""
        return {code: found for code, found in self.findings.items() if found.severity != "note"}

    def spread(self, full: int) -> tuple[float, float]:
        """The least and the greatest d of the first windows, which are whole."""
        known = [d for pair in self.distortions[:full] for d in pair if d is not None]
        return min(known), max(known)


def judged(folder: Path) -> Judged:
    """Judge a run."""
    with accumaudit.Ledger.open(folder) as ledger:
        windows, rows = list(ledger.windows), list(ledger.findings)
    findings = {}
    for code in sorted({row["code"] for row in rows}):
        own = [row for row in rows if row["code"] == code]
        worst = min((row["severity"] for row in own), key=["error", "warning", "note"].index)
        findings[code] = Found(worst, own[0]["attempt_id"], len(own))
    return Judged(
        [window["total_weight"] for window in windows],
        [(window["distortion_min"], window["distortion_max"]) for window in windows],
        findings,
    )
