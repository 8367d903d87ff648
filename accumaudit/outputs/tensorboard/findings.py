"""What was found in a run: in words, and as so few points that no sampling loses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from accumaudit.outputs.markdown import escaped
from accumaudit.outputs.results import sentence
from accumaudit.outputs.tensorboard import tags
from accumaudit.outputs.tensorboard.axis import Told
from accumaudit.outputs.tensorboard.entries import Entry
from accumaudit.outputs.words import number, ranks, updates

if TYPE_CHECKING:
    from accumaudit.engine.findings import Finding, RunReport
    from accumaudit.service.snapshot import FindingView


def entries(
    run: RunReport, views: Mapping[str, FindingView], told: Mapping[str, Told], step: int, *, final: bool
) -> Iterator[Entry]:
    """What of the findings is to be written now.

    A finding is told when it is there, when its faulty attempts have doubled since, when it is withdrawn, and
    in the end.

    Args:
        run: what they were found in.
        views: the findings by code.
        told: what was written of them before.
        step: the newest update.
        final: this is the end.
    """
    for code, view in views.items():
        finding, before = view.verdict.finding, told.get(code)
        count = 0 if view.withdrawn or finding is None else finding.count
        if finding is None or not _is_news(count, before, final=final):
            continue
        first, last = finding.first_update, finding.last_update
        newest = step if last is None or view.withdrawn else last
        if before is None and first is not None and first < newest:
            yield Entry(first, view.last_seen, {tags.FINDINGS + code: 1.0})
        yield Entry(
            newest if before is None else max(newest, before.step + 1),
            view.last_seen,
            {tags.FINDINGS + code: float(count)},
            {tags.REPORTS + code: _text(run, view, finding)},
        )


def _is_news(count: int, before: Told | None, *, final: bool) -> bool:
    if before is None:
        return count > 0
    return count != before.count and (final or not before.count or count == 0 or count >= 2 * before.count)


def _text(run: RunReport, view: FindingView, finding: Finding) -> str:
    verdict = view.verdict
    where = f"{updates(finding, run)}, {ranks(finding, run)}"
    title = f"**{escaped(verdict.code)} {escaped(verdict.name)}** ({verdict.severity}): {escaped(where)}"
    if view.withdrawn:
        return f"{title}\n\nWithdrawn: over the whole record the rule does not find it any more."
    seen = escaped(finding.message)
    if finding.observed is not None and finding.expected is not None:
        seen += f" (measured {number(finding.observed)}, expected {number(finding.expected)})"
    parts = (title, escaped(sentence(verdict.summary)), seen, f"What to do: {escaped(verdict.advice)}")
    return "\n\n".join(parts)
