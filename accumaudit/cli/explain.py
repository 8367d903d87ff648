"""`accumaudit explain`: the manual of a rule."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from accumaudit.cli import glossary
from accumaudit.cli.inputs import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from accumaudit.engine.catalogue import Catalogue
    from accumaudit.engine.rule import Rule

RUNTIMES: Final = ("Hand-written loop", "DDP", "FSDP", "Trainer", "Accelerate", "Lightning", "DeepSpeed")
"""In the order in which a manual names them, one line each: `DDP: all_reduce the count.`"""

WIDEST: Final = 100
"""Longer lines than this are hard to read on any terminal."""

_RUNTIME: Final = re.compile(rf"({'|'.join(RUNTIMES)}): ")


@click.command("explain")
@click.argument("rule", metavar="CODE|NAME")
@click.option(
    "--rules",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder of further rules.",
)
def command(rule: str, folders: tuple[Path, ...]) -> None:
    """Print the manual of a rule: what, why, an example, the fix, and when it is no fault."""
    from accumaudit.engine.catalogue import SelectionError

    catalogue = load_catalogue(folders)
    try:
        found = catalogue.find(rule)
    except SelectionError as error:
        raise click.UsageError(str(error)) from None
    width = min(WIDEST, shutil.get_terminal_size().columns)
    click.echo("\n".join(manual(found, catalogue, width)))


def manual(rule: Rule, catalogue: Catalogue, width: int) -> Iterator[str]:
    """The lines of the manual, each as long as the terminal allows."""
    yield from _wrapped(f"{rule.code} {rule.name} ({rule.severity}, since {rule.since})", width, "")
    yield from _wrapped(rule.summary, width)
    needs = ", ".join(rule.needs)
    texts = {
        "Why it matters": rule.why,
        "Example": rule.example,
        "How to fix it": rule.fix,
        "No fault when": rule.not_a_fault_when,
        "Not checked when": f"{rule.scope_is_empty}, or where these are not recorded: {needs}",
    }
    for heading, text in texts.items():
        yield from _section(heading, _laid_out(text, width))
    yield from _section("Thresholds", _table(thresholds(rule), width))
    yield from _section("Words", _table(glossary.explained("\n".join(texts.values())), width))
    yield from _section("Hides what follows from it", _names(catalogue, rule.explains, width))
    causes = tuple(other.code for other in catalogue.values() if rule.code in other.explains)
    yield from _section("Hidden where it follows from", _names(catalogue, causes, width))
    yield from _section("References", (f"  {reference}" for reference in rule.references))
    yield from _section("Query", iter([f"  {rule.file}"]))


def thresholds(rule: Rule) -> dict[str, str]:
    """The parameters of a rule and their values, with what the comments beside them say."""
    meanings = dict(re.findall(r"^(\w+) = [^#\n]+?  # (.+)$", rule.sql, re.MULTILINE))
    return {f"{rule.code}.{name} = {value:g}": meanings.get(name, "") for name, value in rule.params.items()}


def _section(heading: str, lines: Iterator[str]) -> Iterator[str]:
    """A heading and what stands below it; nothing where that is nothing."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
            yield heading
        yield line


def _laid_out(text: str, width: int) -> Iterator[str]:
    """Paragraphs filled to the width; those that are indented by four are kept, runtimes make a table."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n"))):
        if number > 0:
            yield ""
        if paragraph.startswith("    "):
            yield from paragraph.splitlines()
        elif _RUNTIME.match(paragraph):
            names_and_texts = re.split(rf"^{_RUNTIME.pattern}", paragraph, flags=re.MULTILINE)[1:]
            yield from _table(dict(zip(names_and_texts[::2], names_and_texts[1::2], strict=True)), width)
        else:
            yield from _wrapped(paragraph, width)


def _names(catalogue: Catalogue, codes: tuple[str, ...], width: int) -> Iterator[str]:
    """Rules with their summaries; those that do not exist are not named."""
    known = [catalogue[code] for code in codes if code in catalogue]
    return _table({rule.code: rule.summary for rule in known}, width)


def _table(rows: Mapping[str, str], width: int) -> Iterator[str]:
    """Names, and beside them what is said of each."""
    room = max(map(len, rows), default=0) + 4
    for name, text in rows.items():
        yield from _wrapped(text, width, f"  {name}".ljust(room), room)


def _wrapped(text: str, width: int, first: str = "  ", indent: int = 2) -> list[str]:
    if not text:
        return [first.rstrip()]
    return textwrap.wrap(
        re.sub(r"\s+", " ", text).strip(),
        width,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
