"""Post-mortems as Markdown that reads as plain text too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.markdown import escaped
from accumaudit.outputs.postmortem import charts, views
from accumaudit.outputs.timeline.text import LEGEND
from accumaudit.outputs.words import plural, printable

if TYPE_CHECKING:
    from accumaudit.outputs.postmortem.views import Card
    from accumaudit.postmortem.model import HeatStrip, History, PostMortem, Unchecked

SHOWN: Final = 5
"""Checkpoints that are named one by one, the last."""

NAMED: Final = 3
"""Rules in a line up to which each stands with its name."""

NOTHING: Final = ("-", "-/-", "")
"""Cells that hold nothing of an attempt."""

STRIP: Final = 60
"""Columns of a heat strip."""

DEPTHS: Final = ".-+*#"
"""Signs of the strip, for a share of the attempts from none to all."""


def rendered(tellings: Sequence[PostMortem]) -> str:
    """All of them, one after the other."""
    lines: list[str] = []
    for telling in tellings:
        lines += [*([""] if lines else []), *_run(telling)]
    return "\n".join(lines) + "\n"


def _run(telling: PostMortem) -> Iterator[str]:
    yield f"# Post-mortem of {escaped(views.shown(telling.run.run_id))}"
    yield from _paragraph(f"**{views.OUTCOMES[telling.outcome][1]}.** {coded(' '.join(telling.verdict))}")
    yield from _heading("The first wrong update")
    yield from _beginning(telling)
    yield from _figures(telling)
    yield from _around(telling)
    yield from _findings(telling)
    yield from _heading("Where to resume")
    yield from _paragraph(coded(telling.advice))
    if telling.strip is not None:
        yield from _heading("The ranks")
        yield from _strip(telling.strip)
    if telling.unchecked:
        yield from _heading("What could not be checked")
        yield from _unchecked(telling.unchecked)
    if telling.quality:
        yield from _heading("The record itself")
        yield from _bullets(map(coded, telling.quality))
    yield from _heading("The run")
    yield from _facts(telling.facts)
    yield from _comparison(telling)


def coded(text: str) -> str:
    """Text that shows as it is, where what stands between backticks is code."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0 or not all(parts[1::2]):
        return escaped(text)
    return "".join(_code(part) if place % 2 else escaped(part) for place, part in enumerate(parts))


def _code(text: str) -> str:
    """A span of code; a bar ends the cell of a table even there."""
    bar = r"\|"
    return f"`{text.replace('|', bar)}`"


def _heading(text: str, level: int = 2) -> Iterator[str]:
    yield ""
    yield f"{'#' * level} {text}"


def _paragraph(text: str) -> Iterator[str]:
    yield ""
    yield text


def _bullets(texts: Iterable[str]) -> Iterator[str]:
    yield ""
    yield from (f"- {text}" for text in texts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table whose columns stand below each other in plain text too; the cells are escaped already."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    yield ""
    for cells in lines:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        yield f"| {' | '.join(padded)} |"


def _facts(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from _bullets(f"{escaped(label)}: {coded(text)}" for label, text in facts)


def _beginning(telling: PostMortem) -> Iterator[str]:
    """Where anything was wrong first, and where the training itself was."""
    first, onset = views.first_wrong(telling), views.onset(telling)
    if first is None:
        yield from _paragraph(views.no_first_wrong(telling))
    for turn, what in ((first, ""), (onset, "The first symptom: ")):
        if turn is not None:
            distance = f" ({turn.distance})" if turn.distance else ""
            rule = escaped(f"{turn.severity} {turn.code} {turn.name}")
            yield from _paragraph(f"{what}**{escaped(turn.where)}**{distance}, {rule}: {coded(turn.what)}")


def _figures(telling: PostMortem) -> Iterator[str]:
    """What the charts of the page show, in figures."""
    groups = charts.of_post_mortem(telling, telling.histories)
    if not groups and telling.loss is None and not telling.changes:
        return
    yield from _heading("What the run did")
    if telling.loss is not None:
        yield from _facts(views.loss_facts(telling.loss, telling.run))
    if telling.changes:
        yield from _bullets(escaped(f"Changed at {text}") for text in views.changes(telling))
    for group, history in zip(groups, (one for one in telling.histories if one.curves), strict=True):
        if len(groups) > 1:
            yield from _heading(escaped(group.title), 3)
        yield from _table(charts.NUMBER_HEADS, [list(map(escaped, row)) for row in group.numbers])
        yield from _events(history)


def _events(history: History) -> Iterator[str]:
    """Launches, checkpoints and skips, where the run has any."""
    axis = history.axis
    lines = [f"{axis} {x:,.0f}: {text}" for x, text in history.launches]
    lines += [f"after {axis} {x:,.0f}: checkpoint {name}" for x, name in history.checkpoints[-SHOWN:]]
    if len(history.checkpoints) > SHOWN:
        lines.append(f"{plural(len(history.checkpoints) - SHOWN, 'earlier checkpoint')}")
    if history.skipped:
        lines.append(f"skipped, first at {axis} {history.skipped[0]:,.0f}")
    if lines:
        yield from _bullets(map(escaped, lines))


def _around(telling: PostMortem) -> Iterator[str]:
    made = views.grid(telling.around, telling.run)
    if made is None:
        return
    yield from _heading("The attempts around it")
    told = [[text for text, _ in row.cells] for row in made.rows if row.cells]
    kept = [place for place, _ in enumerate(made.heads) if any(cells[place] not in NOTHING for cells in told)]
    heads = [made.heads[place][0] for place in kept]
    lines: list[list[str]] = []
    for row in made.rows:
        if row.is_head:
            yield from _table(heads, lines) if lines else ()
            lines = []
            yield from _paragraph(escaped(row.note or ""))
        elif row.note is not None:
            lines.append([*[""] * (len(heads) - 1), escaped(row.note)])
        else:
            lines.append([escaped(row.cells[place][0]) for place in kept])
    yield from _table(heads, lines) if lines else ()
    if "T" in heads:
        yield from _paragraph(LEGEND)


def _findings(telling: PostMortem) -> Iterator[str]:
    for title, what, cards in views.finding_groups(telling):
        yield from _heading(title)
        yield from _paragraph(what)
        for place, card in enumerate(cards, start=1):
            yield from _heading(f"{place}. {escaped(f'{card.severity} {card.code} {card.name}')}", 3)
            yield from _paragraph(coded(card.what))
            yield from _bullets(_card(card))


def _card(card: Card) -> Iterator[str]:
    yield from (f"{escaped(label)}: {coded(text)}" for label, text in card.facts)
    yield from _evidence(card)
    if card.more:
        yield f"And {plural(card.more, 'more attempt')}."
    yield f"Fix: {coded(card.advice)}"
    if card.own_fix is not None:
        yield f"Under {escaped(card.own_fix[0])}: {coded(card.own_fix[1])}"
    yield f"More: `accumaudit explain {card.code}`"


def _evidence(card: Card) -> Iterator[str]:
    """The records; what the whole finding has seen already is not said again."""
    seen = dict(card.facts).get("Seen")
    same = [place for place, message, _ in card.evidence if place and message == seen]
    if same:
        yield f"Evidence: {coded(', '.join(same))}"
    for place, message, measured in card.evidence:
        if not place or message != seen:
            text = ": ".join(part for part in (place, message) if part)
            yield f"Evidence: {coded(f'{text} ({measured})' if measured else text)}"


def _strip(strip: HeatStrip) -> Iterator[str]:
    apart = [row for row in strip.rows if any(row.shares)]
    if not apart:
        yield from _paragraph(f"{plural(strip.ranks, 'rank')} wrote, and none stands out.")
        return
    quiet = f"{strip.quiet:,} of them never stand out" if strip.quiet else "all of them stand out"
    yield from _paragraph(
        f"{plural(strip.ranks, 'rank')} wrote; {quiet}. Each sign is a "
        f"stretch of the run: `{DEPTHS[0]}` where the rank never does, `{DEPTHS[-1]}` where it always does."
    )
    rows = [(f"{row.rank}", f"`{_signs(row.shares)}`", escaped("; ".join(row.why))) for row in apart]
    yield from _table(("rank", "over the run", "what sets it apart"), rows)


def _signs(shares: Sequence[float]) -> str:
    step = -(-len(shares) // STRIP)
    highest = [max(shares[start : start + step]) for start in range(0, len(shares), step)]
    last = len(DEPTHS) - 1
    return "".join(
        DEPTHS[min(last, 1 + int(share * (last - 1)))] if share > 0 else DEPTHS[0] for share in highest
    )


def _unchecked(groups: Sequence[Unchecked]) -> Iterator[str]:
    """By what would have shown them, then those that nothing would."""
    by_remedy: dict[str | None, list[str]] = {}
    for one in groups:
        brief = len(one.verdicts) > NAMED
        rules = ", ".join(rule.code if brief else f"{rule.code} {rule.name}" for rule in one.verdicts)
        by_remedy.setdefault(one.remedy, []).append(f"{coded(one.reason)}: {escaped(rules)}")
    alone = [
        f"{lines[0]}. {coded(views.sentence(remedy))}"
        for remedy, lines in by_remedy.items()
        if remedy is not None and len(lines) == 1
    ]
    if alone:
        yield from _bullets(alone)
    for remedy, lines in by_remedy.items():
        if remedy is None or len(lines) > 1:
            title = "Not judged for other reasons" if remedy is None else views.sentence(remedy).rstrip(".")
            yield from _paragraph(f"{coded(title)}:")
            yield from _bullets(lines)


def _comparison(telling: PostMortem) -> Iterator[str]:
    if telling.comparison is None:
        return
    from accumaudit.outputs.comparison.markdown import rendered as compared

    yield ""
    yield compared(telling.comparison).rstrip("\n")
