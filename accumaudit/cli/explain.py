"""`accumaudit explain`: the manual of a rule."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli.inputs import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accumaudit.engine.catalogue import Catalogue
    from accumaudit.engine.rule import Rule


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
    click.echo("\n".join(manual(found, catalogue)))


def manual(rule: Rule, catalogue: Catalogue) -> Iterator[str]:
    """The lines of the manual."""
    yield f"{rule.code} {rule.name} ({rule.severity}, since {rule.since})"
    yield f"  {rule.summary}"
    causes = [other.code for other in catalogue.values() if rule.code in other.explains]
    sections = {
        "Why it matters": rule.why,
        "Example": rule.example,
        "How to fix it": rule.fix,
        "No fault when": rule.not_a_fault_when,
        "Not checked when": f"{rule.scope_is_empty}, or without {', '.join(rule.needs)}",
        "Thresholds": "\n".join(f"{rule.code}.{name} = {value:g}" for name, value in rule.params.items()),
        "Explains": ", ".join(rule.explains),
        "Explained by": ", ".join(causes),
        "References": "\n".join(rule.references),
        "Query": str(rule.file),
    }
    for heading, text in sections.items():
        if text:
            yield ""
            yield heading
            yield textwrap.indent(textwrap.dedent(text).strip(), "  ")
