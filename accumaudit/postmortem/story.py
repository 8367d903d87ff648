"""The sentences of a post-mortem: what happened, and from where to go on; no more than the record proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accumaudit.engine.findings import FAILED, NOT_CHECKED, PASSED, RunReport, Verdict
from accumaudit.outputs.words import number, plural, printable, spans
from accumaudit.postmortem.model import Change, Checkpoint, HeatStrip, LossFacts, Moment, Outcome, Suspect
from accumaudit.postmortem.suspects import is_late, is_serious, place_of

DIVERGENCE: Final = "ACC901"
"""The rule that judges whether the loss left its history."""

_BETWEEN_RANKS: Final = ("ACC5", "ACC6")
"""What the codes of the rules begin with that are about ranks and how they are brought together."""

RISE: Final = 1.1
"""A loss that ends at so many times its first and its lowest value is said to end high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the sentences are made of."""

    run: RunReport
    first_wrong: Suspect | None
    onset: Suspect | None
    suspects: Sequence[Suspect]
    symptoms: Sequence[Suspect]
    others: Sequence[Suspect]
    loss: LossFacts | None
    changes: Sequence[Change]
    checkpoint: Checkpoint | None
    strip: HeatStrip | None = None


def outcome(found: Findings) -> Outcome:
    """What became of the run, as far as the record shows."""
    if any(is_serious(one) for one in found.symptoms):
        return "went wrong"
    if any(is_serious(one) for one in found.suspects):
        return "faulty"
    if _ends_high(found):
        return "rose"
    judged = found.run.with_status(PASSED) or found.run.with_status(FAILED)
    return "clean" if found.run.attempts and judged else "unknown"


def verdict(found: Findings) -> tuple[str, str]:
    """What happened, in two sentences."""
    said = {
        "went wrong": _went_wrong,
        "faulty": _faulty,
        "rose": _rose,
        "clean": _clean,
        "unknown": _unknown,
    }[outcome(found)](found)
    first, second = said
    return printable(first), printable(second)


def at(moment: Moment | None, run: RunReport) -> str:
    """`update 41`, `step 41` in a foreign log, or the attempt where updates are not numbered."""
    if moment is None:
        return "the whole run"
    if moment.number is None:
        return f"attempt {moment.attempt_id:,} of launch {moment.launch}"
    number_of = f"{_noun(run)} {moment.number:,}"
    if not moment.skipped:
        return number_of
    return (
        f"the skipped attempt after {number_of}" if moment.number else "a skipped attempt before any update"
    )


def named(one: Suspect) -> str:
    """`ACC101 fixed-divisor-tail`."""
    return f"{one.verdict.code} {one.verdict.name}"


def advice(found: Findings) -> str:
    """From where to resume, and what to do first."""
    first, run = found.first_wrong, found.run
    if first is None:
        return _advice_without_fault(found)
    where, mend = at(first.first, run), _to_mend(first, found)
    if found.checkpoint is not None:
        name = found.checkpoint.name or "the checkpoint"
        saved = at(found.checkpoint.moment, run)
        return printable(
            f"Mend {mend}, then resume from {name}, saved after {saved}: the last checkpoint "
            f"before the first fault, at {where}."
        )
    if first.first is not None and _is_first_of_run(first.first):
        return (
            f"The first fault is at {where}, so nothing before it can be resumed: mend {mend} and start anew."
        )
    return (
        f"Mend {mend}, then resume from before {where}. The record marks no checkpoint before it: "
        "look for one of your own."
    )


def _to_mend(first: Suspect, found: Findings) -> str:
    """The first fault, and the strongest suspect where it is another."""
    strongest = next((one for one in found.suspects if is_serious(one)), first)
    if strongest.verdict.code == first.verdict.code or is_late(strongest, found.onset):
        return named(first)
    return f"{named(first)} and {named(strongest)}"


def _advice_without_fault(found: Findings) -> str:
    told, loss = outcome(found), found.loss
    if told == "unknown":
        return "Nothing could be checked, so the record tells no place to resume from."
    if told != "rose" or loss is None:
        return "Nothing that was found asks for going back."
    if loss.steepest_at is None or turn(loss) == loss.lowest_at:
        return f"The loss is lowest at {at(loss.lowest_at, found.run)}: look for a checkpoint from there."
    where = _between(loss.steepest_after, loss.steepest_at, found.run)
    return f"The loss rises most {where}: look for a checkpoint from before it."


def turn(loss: LossFacts) -> Moment:
    """Where a loss that ends high began to rise: its steepest rise, unless it was lower after that."""
    if loss.steepest_at is None or loss.steepest_at <= loss.lowest_at:
        return loss.lowest_at
    return loss.steepest_at


def _between(before: Moment | None, after: Moment, run: RunReport) -> str:
    """`at step 41`, or `between step 40 and step 50` where nothing was recorded in between."""
    if before is None or before.number is None or after.number is None or after.number <= before.number + 1:
        return f"at {at(after, run)}"
    return f"between {at(before, run)} and {at(after, run)}"


def _is_first_of_run(moment: Moment) -> bool:
    if moment.number is None:
        return moment.launch == 1 and moment.attempt_id <= 1
    return moment.launch == 1 and moment.number <= (0 if moment.skipped else 1)


def _went_wrong(found: Findings) -> tuple[str, str]:
    """The strongest suspect before what followed; the symptom first where nothing came before it."""
    run = found.run
    onset = found.onset or next(one for one in found.symptoms if is_serious(one))
    cause = next((one for one in found.suspects if is_serious(one)), None)
    place = f"at {at(onset.first, run)}" if onset.first else "at a point that the record does not tell"
    what = f"the training went wrong: {_seen(onset)} ({named(onset)})"
    if cause is not None and not is_late(cause, onset):
        return f"{_before(cause, found)}.", _capital(
            f"{_later(cause, place, run)} {what}; {_proof(cause)} this."
        )
    wrong = f"{place} {what}"
    if cause is None:
        return (
            f"{_capital(wrong)}.",
            f"The log does not show why: {_what_was_looked_at(run)}{_changed(found)}.",
        )
    return (
        f"{_capital(wrong)}.",
        f"The log does not show why: the first other fault is found {_after(cause, run)}.",
    )


def _changed(found: Findings) -> str:
    """What changed last before the symptom, without being a fault."""
    onset = found.onset.first if found.onset else None
    before = [one for one in found.changes if onset is not None and place_of(one.moment) <= place_of(onset)]
    if not before:
        return ""
    return f". The last change before it: {before[-1].text}, at {at(before[-1].moment, found.run)}"


def _after(other: Suspect, run: RunReport) -> str:
    """Where a fault lies that cannot have led to the symptom, and what it is."""
    where = "on the skips themselves" if other.lead == 0 else f"after it, at {at(other.first, run)}"
    return f"{where} ({named(other)}: {_seen(other)})"


def _before(cause: Suspect, found: Findings) -> str:
    """Where the strongest suspect lies, and what it is."""
    run = found.run
    is_alone = sum(is_serious(one) for one in found.suspects) == 1
    proven = cause.verdict.severity == "error"
    kind = "The only suspicion" if is_alone and not proven else "The strongest suspect"
    place = f"lies at {at(cause.first, run)}" if cause.first else "is about the whole run"
    return f"{kind} {place}: {_what(cause)}{_who(cause, found.strip)}"


def _later(cause: Suspect, place: str, run: RunReport) -> str:
    """Where the symptom is, and how long after the suspect."""
    if cause.lead is None:
        return place
    distance = f"{plural(cause.lead, _noun(run))} later" if cause.lead else "in the same update"
    return f"{distance}, {place},"


def _proof(cause: Suspect) -> str:
    """How far the record goes; time alone proves no cause."""
    if cause.verdict.severity == "error":
        return "the record proves the fault, and not that it led to"
    return "the record only indicates the fault, and does not prove that it led to"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _faulty(found: Findings) -> tuple[str, str]:
    run, cause = found.run, found.suspects[0]
    adverb = "" if cause.verdict.severity == "error" else "probably "
    if cause.first is None:
        start = "In this run"
    else:
        start = f"From {at(cause.first, run)} on"
    what = f"{_what(cause)}{_who(cause, found.strip)}"
    return f"{start} updates are {adverb}not the ones that were meant: {what}.", _trajectory(found)


def _rose(found: Findings) -> tuple[str, str]:
    loss, run = found.loss, found.run
    assert loss is not None
    first = (
        f"The loss ends high, at {number(loss.last)} in {at(loss.last_at, run)}, where it had been "
        f"{number(loss.lowest)} in {at(loss.lowest_at, run)}; {plural(loss.records, 'record')} are too few "
        "to tell a divergence from a spike."
    )
    return first, f"The log does not show why: {_what_was_looked_at(run)}."


def _clean(found: Findings) -> tuple[str, str]:
    run = found.run
    first = f"No update was found wrong: {_what_was_looked_at(run)}."
    other = next((one for one in found.others if is_serious(one)), None)
    if other is not None:
        return first, f"Beside the updates, though: {_seen(other)} ({named(other)})."
    return first, _trajectory(found)


def _unknown(found: Findings) -> tuple[str, str]:
    if found.run.attempts == 0:
        return "The record holds no update.", "Nothing can be told of this training."
    return "Nothing could be checked: no rule found in the record what it needs.", _trajectory(found)


def _trajectory(found: Findings) -> str:
    """What the loss did where no symptom was found."""
    judged = next((one for one in found.run.verdicts if one.code == DIVERGENCE), None)
    if judged is not None and judged.status == PASSED:
        if found.loss is not None and _is_high(found.loss):
            return f"The loss was not found to leave its history, and yet it ends high{_ends(found)}."
        return f"The loss did not leave its history{_ends(found)}."
    if found.loss is None:
        return "No update in the record has a loss."
    return f"Whether the loss left its history was not checked{_reason(judged)}{_ends(found)}."


def _ends(found: Findings) -> str:
    loss = found.loss
    if loss is None or loss.records < 2:
        return ""
    return f": it began at {number(loss.first)} and ends at {number(loss.last)}"


def _reason(judged: Verdict | None) -> str:
    """Why the rule did not judge; a loss that sums hold is missing to the rule alone."""
    if judged is None or not judged.reason or judged.reason.startswith("`loss` "):
        return ""
    return f" ({judged.reason})"


def _ends_high(found: Findings) -> bool:
    """Whether the last loss is above the first and the lowest, and nothing judged it."""
    judged = next((one for one in found.run.verdicts if one.code == DIVERGENCE), None)
    loss = found.loss
    if loss is None or loss.records < 2 or (judged is not None and judged.status != NOT_CHECKED):
        return False
    return _is_high(loss)


def _is_high(loss: LossFacts) -> bool:
    return loss.lowest > 0 and loss.last > RISE * max(loss.first, loss.lowest)


def _what_was_looked_at(run: RunReport) -> str:
    passed, unchecked = len(run.with_status(PASSED)), len(run.with_status(NOT_CHECKED))
    return f"{plural(passed, 'rule')} passed, {unchecked} could not be checked"


def _what(one: Suspect) -> str:
    return f"{one.verdict.summary.rstrip('.')} ({named(one)}: {_seen(one)})"


def _who(one: Suspect, strip: HeatStrip | None) -> str:
    """The few ranks that are set apart from the others, where the fault is one between ranks."""
    if strip is None or not one.verdict.code.startswith(_BETWEEN_RANKS):
        return ""
    apart = strip.ranks - strip.quiet
    if not 0 < apart == len(strip.rows) < strip.quiet:
        return ""
    noun, verb = ("rank", "stands") if apart == 1 else ("ranks", "stand")
    which = spans(sorted(row.rank for row in strip.rows))
    return f"; {noun} {which} {verb} out, the other {strip.quiet:,} do not"


def _seen(one: Suspect) -> str:
    assert one.verdict.finding is not None
    return one.verdict.finding.message.rstrip(".")


def _noun(run: RunReport) -> str:
    return "step" if run.is_foreign else "update"
