"""Puts a post-mortem together from a ledger that has just been audited."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.advice import framework
from accumaudit.outputs.timeline.reading import sections_beside
from accumaudit.postmortem import story
from accumaudit.postmortem.changes import changes
from accumaudit.postmortem.checkpoints import last_before
from accumaudit.postmortem.facts import declared, facts
from accumaudit.postmortem.heat import heat_strip
from accumaudit.postmortem.history import histories
from accumaudit.postmortem.model import Moment, PostMortem, Suspect
from accumaudit.postmortem.quality import quality, unchecked
from accumaudit.postmortem.suspects import (
    first_symptom,
    first_wrong,
    in_time,
    place_of,
    ranked,
    suspects,
    with_lead,
)
from accumaudit.postmortem.trajectory import loss_facts

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport, RunReport
    from accumaudit.ledger.reader import Ledger

BESIDE: Final = 5
"""Attempts in the table before and after each moment that is marked."""


def post_mortems(ledger: Ledger, report: AuditReport) -> list[PostMortem]:
    """The post-mortem of each run; the report is of the last audit of this ledger."""
    return [_post_mortem(ledger, run) for run in report.runs]


def _post_mortem(ledger: Ledger, run: RunReport) -> PostMortem:
    connection = ledger.connection
    known = declared(connection, run)
    found = suspects(connection, run, framework(run, known["wrapper"]))
    onset, first = first_symptom(found), first_wrong(found)
    first = None if first is None else with_lead(first, onset)
    loss = loss_facts(connection, run)
    begins = None if first is None else first.first
    told = story.Findings(
        run=run,
        first_wrong=first,
        onset=onset,
        suspects=ranked(found, onset),
        symptoms=in_time(found, "symptom", onset),
        others=[one for role in ("record", "cost") for one in in_time(found, role, onset)],
        loss=loss,
        changes=changes(connection, run),
        checkpoint=None if begins is None else last_before(connection, run, begins),
    )
    marked = _marked(told)
    drawn = histories(connection, run, marked)
    told = replace(told, strip=heat_strip(connection, run, drawn))
    return PostMortem(
        run=run,
        outcome=story.outcome(told),
        verdict=story.verdict(told),
        first_wrong=first,
        onset=onset,
        suspects=tuple(told.suspects),
        symptoms=tuple(told.symptoms),
        others=tuple(told.others),
        checkpoint=told.checkpoint,
        advice=story.advice(told),
        loss=loss,
        facts=facts(run, known),
        changes=tuple(told.changes),
        around=sections_beside(
            ledger, run, [(one.launch, one.optimizer, one.attempt_id) for one in marked], BESIDE
        ),
        histories=drawn,
        strip=told.strip,
        unchecked=unchecked(connection, run),
        quality=quality(connection, run),
        marked=marked,
    )


def _marked(told: story.Findings) -> tuple[Moment, ...]:
    """The first fault, the onset and the strongest suspect; else the rise of a loss that ends high."""
    chosen: list[Suspect | None] = [told.first_wrong, told.onset, *told.suspects[:1]]
    moments = [one.first for one in chosen if one is not None and one.first is not None]
    if not moments and story.outcome(told) == "rose" and told.loss:
        moments = [story.turn(told.loss)]
    return tuple(sorted(dict.fromkeys(moments), key=place_of))
