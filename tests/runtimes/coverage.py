"""What is recorded of each runtime and which rules can judge it, from one healthy training of each.

Run as a module it trains them all and writes the tables into docs/runtimes.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import NOT_CHECKED, Verdict
from accumaudit.engine.rule import Rule
from accumaudit.ledger.schema import RUN_FIELDS, UPDATE_FIELDS
from docs.generate import renewed, table
from tests.processes import Pair
from tests.runtimes.healthy import RUNTIMES

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "runtimes.md"
YES, NOTHING, NO = "●", "○", "-"
"""Recorded or judged; nothing in scope; not recorded, or not to be judged."""


@dataclass(frozen=True)
class Seen:
    """What the ledger of one training holds."""

    fields: frozenset[str]
    verdicts: Mapping[str, Verdict]


Column = Sequence[Seen]
"""A runtime on one process, and on two."""


def seen(folder: Path) -> Seen:
    """Look at the ledger of a training."""
    (run,) = check_paths([folder]).runs
    with accumaudit.Ledger.open(folder) as ledger:
        rows = [*ledger.sql("FROM runs"), *ledger.sql("FROM updates")]
    filled = {name for row in rows for name, value in row.items() if _is_known(value)}
    return Seen(frozenset(filled), {verdict.code: verdict for verdict in run.verdicts})


def _is_known(value: Any) -> bool:
    return any(map(_is_known, value)) if isinstance(value, list) else value is not None


def field_table(columns: Mapping[str, Column]) -> str:
    """A row for each field that some runtimes record and others do not."""
    fields = (field for field in (*RUN_FIELDS, *UPDATE_FIELDS) if field.writer != "importer")
    names = dict.fromkeys(field.name for field in fields)
    rows = {f"`{name}`": _cells(columns, partial(_field_symbol, name)) for name in names}
    return _table(("field", *columns), rows, "Recorded of all", "Recorded of none of these trainings")


def rule_table(columns: Mapping[str, Column]) -> str:
    """A row for each rule that can judge some runtimes and not others, with the reason."""
    rules = load_rules().values()
    cells = {f"{rule.code} {rule.name}": _cells(columns, partial(_rule_symbol, rule)) for rule in rules}
    reasons = {f"{rule.code} {rule.name}": _reasons(columns, rule) for rule in rules}
    return _table(
        ("rule", *columns, "why not"), cells, "Can judge all", "Can judge none of these trainings", reasons
    )


def _field_symbol(name: str, one: Seen) -> str:
    return YES if name in one.fields else NO


def _rule_symbol(rule: Rule, one: Seen) -> str:
    verdict = one.verdicts[rule.code]
    if verdict.status != NOT_CHECKED or (verdict.reason or "").startswith("a cause was found"):
        return YES
    return NOTHING if verdict.reason == rule.scope_is_empty else NO


def _cells(columns: Mapping[str, Column], symbol: Callable[[Seen], str]) -> list[str]:
    return [" ".join(map(symbol, column)) for column in columns.values()]


def _reasons(columns: Mapping[str, Column], rule: Rule) -> str:
    lacking = [one for column in columns.values() for one in column if _rule_symbol(rule, one) == NO]
    reasons = (one.verdicts[rule.code].reason or "" for one in lacking)
    return "; ".join(dict.fromkeys(re.sub(r"^[\d,]+ rows were in scope, and ", "", text) for text in reasons))


def _table(
    heads: Sequence[str],
    rows: Mapping[str, list[str]],
    full: str,
    empty: str,
    reasons: Mapping[str, str] | None = None,
) -> str:
    """The rows that differ between runtimes, and a line each of those that do not."""
    symbols = {name: set("".join(cells).replace(" ", "")) for name, cells in rows.items()}
    everywhere = [name for name, found in symbols.items() if NO not in found]
    nowhere = [name for name, found in symbols.items() if found == {NO}]
    differing = [name for name in rows if name not in (*everywhere, *nowhere)]
    told = reasons or {}
    lines = table(heads, ([name, *rows[name], *([told[name]] if told else [])] for name in differing))
    without = ", ".join(f"{name} ({told[name]})" if told else name for name in nowhere)
    return f"{lines}\n\n{full}: {', '.join(everywhere)}.\n\n{empty}: {without}."


def written(page: str, columns: Mapping[str, Column]) -> str:
    """The page with its tables written again."""
    return renewed(
        page,
        {"runtime-fields": lambda: field_table(columns), "runtime-rules": lambda: rule_table(columns)},
    )


def columns_of(folder: Path, pair: Pair) -> dict[str, Column]:
    """Train all of them, and look at their ledgers."""
    return {
        name: [seen(ledger) for ledger in train(folder / str(place), pair)]
        for place, (name, train) in enumerate(RUNTIMES.items())
    }


def main() -> int:
    """Write the page."""
    pair = Pair()
    try:
        with tempfile.TemporaryDirectory() as folder:
            columns = columns_of(Path(folder), pair)
    finally:
        pair.close()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), columns), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
