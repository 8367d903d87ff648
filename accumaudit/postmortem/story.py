"""The sentences of a post-mortem: what happened, and from where to go on; no more than the record proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, PASSED, RunReport, Verdict
from accumaudit.outputs.words import number, plural, printable, spans
from accumaudit.postmortem.changes import MOST
from accumaudit.postmortem.heat import WORDS
from accumaudit.postmortem.model import Change, Checkpoint, HeatStrip, LossFacts, Moment, Outcome, Suspect
from accumaudit.postmortem.suspects import is_late, is_on_its_skips, is_serious, place_of

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
    judged = any(one.status in (PASSED, FAILED) or one.ignored for one in found.run.verdicts)
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
        counted_by = f" of optimizer {moment.optimizer}" if moment.optimizer else ""
        return f"attempt {moment.attempt_id:,}{counted_by} of launch {moment.launch}"
    number_of = f"{_noun(run)} {moment.number:,}"
    if moment.optimizer:
        number_of += f" of optimizer {moment.optimizer}"
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
        return printable(_advice_without_place(found))
    where, mend = at(first.first, run), _to_mend(found)
    what = "symptom" if first.role == "symptom" else "fault"
    start = f"Mend {mend}, then resume" if mend else "Resume"
    if found.checkpoint is not None:
        name = found.checkpoint.name or "the checkpoint"
        text = (
            f"{start} from {name}, saved after {at(found.checkpoint.moment, run)}: the last checkpoint that "
            f"is known to lie before the first {what}, at {where}."
        )
    elif first.first is not None and _is_first_of_run(first.first):
        anew = f"mend {mend} and start anew" if mend else "start anew"
        text = f"The first {what} is at {where}, so nothing before it can be resumed: {anew}."
    else:
        text = (
            f"{start} from before {where}. The record marks no checkpoint that is known to lie before it: "
            "look for one of your own."
        )
    unknown = "" if mend else " The log does not show what to mend: change something before going on."
    return printable(f"{text}{unknown}{_whole_too(found)}")


def _to_mend(found: Findings) -> str:
    """The first fault, and the strongest suspect where it is another; neither may follow from the symptom."""
    strongest = next((one for one in found.suspects if is_serious(one)), None)
    causes = [one for one in (found.first_wrong, strongest) if one is not None and one.role == "cause"]
    return " and ".join(dict.fromkeys(named(one) for one in causes if not is_late(one, found.onset)))


def _whole_too(found: Findings) -> str:
    """The faults that no checkpoint lies before."""
    names = _without_place(found)
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f" {' and '.join(names)} {verb} about the whole run, what lies before included."


def _without_place(found: Findings) -> list[str]:
    return [named(one) for one in found.suspects if is_serious(one) and one.first is None]


def _advice_without_place(found: Findings) -> str:
    told, loss = outcome(found), found.loss
    if told == "unknown":
        return "Nothing could be checked, so the record tells no place to resume from."
    if told in ("went wrong", "faulty"):
        mend = " and ".join(_without_place(found))
        nowhere = "What was found is about the whole run: no update is known from before which to resume."
        return f"Mend {mend}. {nowhere}" if mend else nowhere
    if told != "rose" or loss is None:
        return "Nothing that is reported asks for going back."
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
    """Whether no update can lie before it; of several optimizers another may have stepped."""
    if moment.micro_step is not None:
        return False
    if moment.number is None:
        return moment.launch == 1 and moment.attempt_id <= 1
    return moment.number <= (0 if moment.skipped else 1)


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
    return f"{_capital(wrong)}.", f"The log does not show why: {_after(found)}."


def _changed(found: Findings) -> str:
    """What changed last before the symptom, without being a fault."""
    onset = found.onset.first if found.onset else None
    before = [one for one in found.changes if onset is not None and place_of(one.moment) <= place_of(onset)]
    if not before or len(before) >= MOST:  # of more changes the last are not known
        return ""
    return f". The last change up to there: {before[-1].text}, at {at(before[-1].moment, found.run)}"


def _after(found: Findings) -> str:
    """The first of the faults that cannot have led to the symptom; without a place there is none of these."""
    late = [(place_of(one.first), one) for one in found.suspects if is_serious(one) and one.first is not None]
    _, other = min(late, key=lambda placed: placed[0])
    is_on_skips = found.onset is not None and is_on_its_skips(other, found.onset)
    where = "on the skips themselves" if is_on_skips else f"after it, at {at(other.first, found.run)}"
    return f"the first other fault is found {where} ({named(other)}: {_seen(other)})"


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
    distance = f"{plural(cause.lead, _noun(run))} later" if cause.lead else f"within one {_noun(run)}"
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
    what = f"the training is {adverb}not the one that was meant: {_what(cause)}{_who(cause, found.strip)}."
    place, attempts = at(cause.first, run), cause.harm.attempts
    if cause.first is None:
        first = what
    elif attempts > 1:
        share = f"{attempts:,} of {plural(cause.harm.of_attempts, 'recorded attempt')}"
        first = f"in {share}, first at {place}, {what}"
    else:
        first = f"{'at' if attempts else 'from'} {place}{'' if attempts else ' on'} {what}"
    return _capital(first), _trajectory(found)


def _rose(found: Findings) -> tuple[str, str]:
    loss, run = found.loss, found.run
    assert loss is not None
    judged = _divergence(run)
    if judged is not None and (judged.reason or "").startswith("fewer than "):
        limit = f"{plural(loss.records, 'record')} are too few to tell a divergence from a spike"
    else:
        limit = f"whether that is a divergence was not checked{_reason(judged)}"
    first = (
        f"The last {_finite(loss)}loss is {number(loss.last)}, at {at(loss.last_at, run)}, and the lowest "
        f"{number(loss.lowest)}, at {at(loss.lowest_at, run)}; {limit}."
    )
    return first, f"The log does not show why: {_what_was_looked_at(run)}."


def _clean(found: Findings) -> tuple[str, str]:
    run = found.run
    first = f"{_what_was_looked_at(run)}."
    other = next((one for one in found.others if is_serious(one)), None)
    if other is not None:
        return first, f"What was found is not about the updates: {_seen(other)} ({named(other)})."
    return first, _trajectory(found)


def _unknown(found: Findings) -> tuple[str, str]:
    if found.run.attempts == 0:
        return "The record holds no update.", "Nothing can be told of this training."
    return f"{_what_was_looked_at(found.run)}.", _trajectory(found)


def _trajectory(found: Findings) -> str:
    """What the loss did where no symptom was found."""
    judged, loss = _divergence(found.run), found.loss
    if loss is None:
        return "No update in the record has a finite loss."
    if judged is not None and judged.ignored:
        return f"What {judged.code} {judged.name} found of the loss is ignored{_ends(loss)}."
    if judged is None or judged.status != PASSED:
        return f"Whether the loss left its history was not checked{_reason(judged)}{_ends(loss)}."
    left = "was not found to leave its history"
    if _is_high(loss):
        return f"The {_finite(loss)}loss {left}, and yet it ends high{_ends(loss)}."
    return f"The {_finite(loss)}loss {left}{_ends(loss)}."


def _divergence(run: RunReport) -> Verdict | None:
    return next((one for one in run.verdicts if one.code == DIVERGENCE), None)


def _finite(loss: LossFacts) -> str:
    return "finite " if loss.not_finite else ""


def _ends(loss: LossFacts) -> str:
    """Its first and its last value, and how often it was none."""
    known = ""
    if loss.records > 1:
        what = "its last finite value is" if loss.not_finite else "ends at"
        known = f": it began at {number(loss.first)} and {what} {number(loss.last)}"
    if loss.not_finite:
        have = "has" if loss.not_finite == 1 else "have"
        known += f"; {plural(loss.not_finite, 'record')} {have} a loss that is not finite"
    return known


def _reason(judged: Verdict | None) -> str:
    """Why the rule did not judge; a loss that sums hold is missing to the rule alone."""
    if judged is None or not judged.reason or judged.reason.startswith("`loss` "):
        return ""
    return f" ({judged.reason})"


def _ends_high(found: Findings) -> bool:
    """Whether the last loss is above the first and the lowest, and nothing judged it."""
    judged, loss = _divergence(found.run), found.loss
    if loss is None or loss.records < 2:
        return False
    was_judged = judged is not None and (judged.status != NOT_CHECKED or judged.ignored)
    return not was_judged and _is_high(loss)


def _is_high(loss: LossFacts) -> bool:
    return loss.lowest > 0 and loss.last > RISE * max(loss.first, loss.lowest)


def _what_was_looked_at(run: RunReport) -> str:
    passed, broken = len(run.with_status(PASSED)), len(run.with_status(BROKEN))
    ignored = sum(bool(one.ignored) for one in run.verdicts)
    unchecked = sum(not one.ignored for one in run.with_status(NOT_CHECKED))
    parts = [f"{plural(passed, 'rule')} passed", f"{unchecked} could not be checked"]
    parts += [f"{broken} {'is' if broken == 1 else 'are'} broken"] if broken else []
    parts += [f"what is ignored was found by {plural(ignored, 'rule')}"] if ignored else []
    return ", ".join(parts)


def _what(one: Suspect) -> str:
    return f"{one.verdict.summary.rstrip('.')} ({named(one)}: {_seen(one)})"


def _who(one: Suspect, strip: HeatStrip | None) -> str:
    """The few ranks that are set apart from the others, where the fault is one between ranks."""
    if strip is None or not one.verdict.code.startswith(_BETWEEN_RANKS):
        return ""
    apart = strip.ranks - strip.quiet
    if not 0 < apart == len(strip.rows) < strip.quiet:
        return ""
    if any(all(why.endswith(WORDS["missing"]) for why in row.why) for row in strip.rows):
        return ""  # a rank that wrote less than others has no part in the fault for that
    noun, verb = ("rank", "stands") if apart == 1 else ("ranks", "stand")
    which = spans(sorted(row.rank for row in strip.rows))
    return f"; {noun} {which} {verb} out, the other {strip.quiet:,} do not"


def _seen(one: Suspect) -> str:
    assert one.verdict.finding is not None
    return one.verdict.finding.message.rstrip(".")


def _noun(run: RunReport) -> str:
    return "step" if run.is_foreign else "update"
