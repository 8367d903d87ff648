"""Post-mortems as JSON, in a form that stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from accumaudit.outputs.json_report import finite, run_fields, verdict_fields
from accumaudit.outputs.timeline.json_form import section_fields

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison
    from accumaudit.postmortem.model import Moment, PostMortem, Suspect, Unchecked

SCHEMA: Final = 1


def rendered(tellings: Sequence[PostMortem]) -> str:
    """One JSON object, in ASCII."""
    document = {"schema": SCHEMA, "runs": [_run(telling) for telling in tellings]}
    return json.dumps(finite(document), indent=2) + "\n"


def _run(telling: PostMortem) -> dict[str, Any]:
    return {
        **run_fields(telling.run),
        "outcome": telling.outcome,
        "verdict": telling.verdict,
        "first_wrong": _suspect(telling.first_wrong),
        "onset": _suspect(telling.onset),
        "suspects": [_suspect(one) for one in telling.suspects],
        "symptoms": [_suspect(one) for one in telling.symptoms],
        "others": [_suspect(one) for one in telling.others],
        "checkpoint": telling.checkpoint and asdict(telling.checkpoint),
        "advice": telling.advice,
        "loss": telling.loss and asdict(telling.loss),
        "facts": [{"label": label, "text": text} for label, text in telling.facts],
        "changes": [asdict(one) for one in telling.changes],
        "marked": [_moment(one) for one in telling.marked],
        "around": [section_fields(section, details=False) for section in telling.around],
        "histories": [asdict(history) for history in telling.histories],
        "ranks_apart": telling.strip and asdict(telling.strip),
        "unchecked": [_unchecked(one) for one in telling.unchecked],
        "quality": telling.quality,
        "comparison": _comparison(telling.comparison),
    }


def _suspect(one: Suspect | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        **verdict_fields(one.verdict),
        "summary": one.verdict.summary,
        "fix": one.verdict.advice,
        "own_fix": one.own_fix and {"framework": one.own_fix[0], "text": one.own_fix[1]},
        "role": one.role,
        "first": _moment(one.first),
        "last": _moment(one.last),
        "lead": one.lead,
        "harm": asdict(one.harm),
        "follows": one.follows,
    }


def _moment(moment: Moment | None) -> dict[str, Any] | None:
    return None if moment is None else asdict(moment)


def _unchecked(one: Unchecked) -> dict[str, Any]:
    rules = [{"code": verdict.code, "name": verdict.name} for verdict in one.verdicts]
    return {"reason": one.reason, "remedy": one.remedy, "rules": rules}


def _comparison(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    from accumaudit.outputs.comparison.json_form import fields

    return fields(comparison)
