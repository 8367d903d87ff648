"""What the page of a post-mortem says, in words: nothing is left to decide in a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import Example, RunReport
from accumaudit.outputs.advice import LOOP, fixes
from accumaudit.outputs.timeline.cells import attempt_columns
from accumaudit.outputs.timeline.heads import section_head
from accumaudit.outputs.timeline.model import Attempt
from accumaudit.outputs.timeline.rows import rows
from accumaudit.outputs.words import number, plural, ranks, updates
from accumaudit.postmortem.story import at

if TYPE_CHECKING:
    from accumaudit.outputs.timeline.model import Section
    from accumaudit.postmortem.model import Harm, HeatRow, HeatStrip, LossFacts, PostMortem, Suspect

EXAMPLES: Final = 5
"""Records that are shown of a finding."""

OUTCOMES: Final = {
    "went wrong": ("error", "Went wrong"),
    "faulty": ("error", "Faulty updates"),
    "rose": ("warning", "The loss ends high"),
    "clean": ("good", "No faulty update reported"),
    "unknown": ("", "Nothing could be checked"),
}
"""The tone of an outcome, and what it is called."""

_TONES: Final = {"red": "error", "yellow": "warning", "cyan": "note", "magenta": "error", "dim": "quiet"}
"""Of the styles of a table in a terminal, by their last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One finding, with what a person asks of it."""

    code: str
    name: str
    severity: str
    what: str
    facts: tuple[tuple[str, str], ...]
    """A label and a text each."""
    evidence: tuple[tuple[str, str, str], ...]
    """Where a record lies, what is seen there, and what was measured."""
    more: int
    """Faulty attempts that are not shown."""
    advice: str
    own_fix: tuple[str, str] | None
    fixes: tuple[tuple[str, str], ...]
    """Under each other framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of attempts."""

    cells: tuple[tuple[str, str], ...] = ()
    """A text and a tone each."""
    note: str | None = None
    """What stands across all columns in place of cells."""
    is_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The table of attempts."""

    heads: tuple[tuple[str, bool], ...]
    """What each column is called, and whether it holds text."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One rank of the heat strip."""

    rank: int
    paths: tuple[tuple[int, str], ...]
    """A depth from 1 to 4 and the columns that have it."""
    columns: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A moment at which something went wrong."""

    label: str
    where: str
    what: str
    code: str
    name: str
    severity: str
    distance: str | None
    """How far it lies from the first symptom."""


def first_wrong(telling: PostMortem) -> Turn | None:
    """The first moment at which anything was wrong."""
    return _turn(telling.first_wrong, telling.run)


def no_first_wrong(telling: PostMortem) -> str:
    """What is said where no update is the first wrong one."""
    if telling.outcome in ("faulty", "went wrong"):
        return "What was found is about the whole run: the record tells no first update."
    return "No error and no warning about the training is reported, of what could be checked."


def onset(telling: PostMortem) -> Turn | None:
    """The first symptom, where it is not the first fault itself."""
    first, onset = telling.first_wrong, telling.onset
    if first is not None and onset is not None and first.verdict.code == onset.verdict.code:
        return None
    return _turn(onset, telling.run)


def _turn(one: Suspect | None, run: RunReport) -> Turn | None:
    if one is None or one.verdict.finding is None:
        return None
    return Turn(
        label="First symptom" if one.role == "symptom" else "First fault",
        where=at(one.first, run),
        what=sentence(one.verdict.finding.message),
        code=one.verdict.code,
        name=one.verdict.name,
        severity=one.verdict.severity,
        distance=_distance(one, run),
    )


def finding_groups(telling: PostMortem) -> list[tuple[str, str, list[Card]]]:
    """What may be the cause, what followed, and the rest: a title, a word about it, and the findings."""
    groups = (
        ("Suspects", "What may be the cause, the strongest first.", telling.suspects),
        ("Symptoms", "What shows that the training itself went wrong.", telling.symptoms),
        ("Beside these", "What misleads readers or costs time, and changes no update.", telling.others),
    )
    return [(title, what, cards(suspects, telling.run)) for title, what, suspects in groups if suspects]


def cards(suspects: Sequence[Suspect], run: RunReport) -> list[Card]:
    """Findings, in their order."""
    return [_card(one, run) for one in suspects]


def _card(one: Suspect, run: RunReport) -> Card:
    verdict, finding = one.verdict, one.verdict.finding
    assert finding is not None
    has_harm = one.harm.attempts > 0
    rows = [
        ("Seen", finding.message),
        ("When", _when(one, run)),
        ("Ranks", None if run.is_foreign else ranks(finding, run)),
        ("Measured", None if has_harm and one.harm.size else _measured(finding.observed, finding.expected)),
        ("Found in", _harm(one.harm) if has_harm else None),
        ("What follows", _follows(one)),
    ]
    own = one.own_fix
    return Card(
        code=verdict.code,
        name=verdict.name,
        severity=verdict.severity,
        what=sentence(verdict.summary),
        facts=tuple((label, text) for label, text in rows if text),
        evidence=tuple(
            _evidence(example)
            for example in finding.examples[:EXAMPLES]
            if example.file is not None or example.message != finding.message
        ),
        more=max(finding.count - len(finding.examples[:EXAMPLES]), 0),
        advice=sentence(verdict.advice),
        own_fix=None if own is None else (own[0], _in_full(own[1], dict(fixes(verdict)))),
        fixes=tuple((head, sentence(text)) for head, text in fixes(verdict) if own is None or head != own[0]),
    )


def _in_full(fix: str, by_framework: Mapping[str, str]) -> str:
    """A fix with the one that it refers to."""
    by_hand = by_framework.get(LOOP)
    return f"{sentence(fix)} By hand: {by_hand}" if fix.startswith("The same") and by_hand else sentence(fix)


def sentence(text: str) -> str:
    """The text with a capital letter, unless it begins with code, and a full stop."""
    text = text.strip()
    if not text:
        return ""
    begins_with_code = bool(set(text.split()[0].rstrip(".,:;")) & set("_.(`="))
    start = text[0] if begins_with_code else text[0].upper()
    return f"{start}{text[1:]}{'' if text.endswith(('.', '!', '?', ':')) else '.'}"


def _when(one: Suspect, run: RunReport) -> str:
    finding = one.verdict.finding
    assert finding is not None
    text = updates(finding, run)
    if one.first is not None and one.first == one.last and one.first.skipped:
        text = at(one.first, run)
    if one.first is not None and one.first.number is None:
        text = f"from {at(one.first, run)} on" if one.first != one.last else at(one.first, run)
    distance = _distance(one, run)
    return f"{text}; begins {distance}" if distance else text


def _distance(one: Suspect, run: RunReport) -> str | None:
    """How far a suspect lies from the first symptom."""
    noun = "step" if run.is_foreign else "update"
    if one.lead is None or one.role == "symptom":
        return None
    if one.lead == 0:
        return f"within one {noun} of the first symptom"
    return f"{plural(abs(one.lead), noun)} {'before' if one.lead > 0 else 'after'} the first symptom"


def _measured(observed: float | None, expected: float | None) -> str | None:
    if observed is None or expected is None:
        return None
    return f"{number(observed)}, expected {number(expected)}"


def _harm(harm: Harm) -> str:
    parts = [f"{harm.attempts:,} of {plural(harm.of_attempts, 'recorded attempt')}"]
    parts[0] += _share(harm.attempts, harm.of_attempts)
    if harm.tokens and harm.of_tokens:
        parts.append(
            f"{harm.tokens:,.0f} of {harm.of_tokens:,.0f} applied tokens{_share(harm.tokens, harm.of_tokens)}"
        )
    return "; ".join([*parts, *([harm.size] if harm.size else [])])


def _share(part: float, whole: float) -> str:
    if not whole or part >= whole:
        return ""
    share = 100 * part / whole
    return f" ({share:.2g} %)" if share < 10 else f" ({min(share, 99.9):.3g} %)"


def _follows(one: Suspect) -> str | None:
    if not one.follows:
        return None
    return f"{', '.join(one.follows)}: found too, explained by this, and not told apart"


def _evidence(example: Example) -> tuple[str, str, str]:
    place = f"{example.file}:{example.line}" if example.file and example.line else example.file or ""
    if example.rank is not None:
        place = f"{place} (rank {example.rank})".strip()
    return place, example.message, _measured(example.observed, example.expected) or ""


def grid(sections: Sequence[Section], run: RunReport) -> Grid | None:
    """The attempts beside the marked moments, in one table; None where there are none."""
    attempts = [attempt for section in sections for attempt in section.attempts]
    if not attempts:
        return None
    columns = attempt_columns(attempts)
    places = {id(attempt): place for place, attempt in enumerate(attempts)}
    lines: list[Row] = []
    for section in sections:
        lines.append(Row(note=section_head(section, is_foreign=run.is_foreign), is_head=True))
        for row in rows(section):
            if isinstance(row, Attempt):
                cells = [column.cells[places[id(row)]] for column in columns]
                lines.append(Row(cells=tuple((cell.text, _tone(cell.style)) for cell in cells)))
            else:
                lines.append(Row(note=row.text))
    return Grid(heads=tuple((column.head, column.left) for column in columns), rows=tuple(lines))


def _tone(style: str) -> str:
    return _TONES.get(style.rpartition(" ")[2], "")


def loss_facts(loss: LossFacts, run: RunReport) -> list[tuple[str, str]]:
    """What the loss did."""
    facts = [
        ("Records with a loss", f"{loss.records:,}"),
        ("First", number(loss.first)),
        ("Lowest", f"{number(loss.lowest)} at {at(loss.lowest_at, run)}"),
        ("Last", f"{number(loss.last)} at {at(loss.last_at, run)}"),
    ]
    if loss.steepest is not None and loss.steepest_at is not None:
        facts.append(("Steepest rise", f"{number(loss.steepest)} to {at(loss.steepest_at, run)}"))
    if loss.not_finite:
        facts.append(("Not finite", plural(loss.not_finite, "record")))
    return facts


def changes(telling: PostMortem) -> list[str]:
    """What changed and is no fault by itself."""
    return [f"{at(one.moment, telling.run)}: {one.text}" for one in telling.changes]


def strips(strip: HeatStrip) -> list[Strip]:
    """The rows of the heat strip."""
    return [_strip(row, strip) for row in strip.rows]


def _strip(row: HeatRow, strip: HeatStrip) -> Strip:
    depths = [0 if share <= 0 else min(4, 1 + int(share * 4)) for share in row.shares]
    paths = [
        (depth, "".join(f"M{at} 0h1v1h-1z" for at, one in enumerate(depths) if one == depth))
        for depth in range(1, 5)
    ]
    hot = [at for at, depth in enumerate(depths) if depth]
    if not hot:
        reach = "never"
    elif len(hot) == len(depths):
        reach = "throughout"
    else:
        reach = f"in {len(hot)} of {len(depths)} columns, first from {strip.axis} {strip.starts[hot[0]]:,.0f}"
    return Strip(
        rank=row.rank,
        paths=tuple((depth, path) for depth, path in paths if path),
        columns=len(depths),
        summary=reach,
    )


def strip_mark(telling: PostMortem) -> int | None:
    """The column of the heat strip in which the first fault lies."""
    strip, first = telling.strip, telling.first_wrong
    if strip is None or first is None or first.first is None or strip.axis == "attempt":
        return None
    number = first.first.number
    if number is None or not strip.starts or number < strip.starts[0]:
        return None
    return sum(start <= number for start in strip.starts) - 1


def contents(tellings: Sequence[PostMortem]) -> Iterator[tuple[str, str, str, str]]:
    """For each run its name, the tone and the name of its outcome, and its first sentence."""
    for telling in tellings:
        tone, name = OUTCOMES[telling.outcome]
        yield shown(telling.run.run_id), tone, name, telling.verdict[0] if telling.verdict else ""


def shown(run_id: str) -> str:
    """A run's name for people, never empty."""
    return run_id or "(no name)"
