"""Rules, and what they say of a ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.engine.ignoring import Ignore


def check_paths(
    paths: Sequence[str | Path],
    *,
    select: Collection[str] = (),
    ignore: Collection[str | Ignore] = (),
    params: Mapping[str, float] | None = None,
    rules: Sequence[Path] = (),
) -> AuditReport:
    """Read the runs at these paths and judge them by the bundled rules and those of further folders."""
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.judge import audit
    from accumaudit.ledger.reader import read_ledger
    from accumaudit.ledger.remote import place

    catalogue = load_rules(*rules)
    ledger = read_ledger([place(path) for path in paths])
    try:
        return audit(ledger, catalogue, select=select, ignore=ignore, params=params)
    finally:
        ledger.close()
