"""`accumaudit rules`: the list of the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli.inputs import load_catalogue

if TYPE_CHECKING:
    from accumaudit.engine.rule import Rule


@click.command("rules")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option(
    "--rules",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder of further rules.",
)
def command(format_: str, folders: tuple[Path, ...]) -> None:
    """List the rules: code, name, severity and the fault in a sentence."""
    catalogue = load_catalogue(folders)
    if format_ == "json":
        click.echo(json.dumps([as_dict(rule) for rule in catalogue.values()], indent=2))
        return
    width = max(len(rule.name) for rule in catalogue.values())
    for rule in catalogue.values():
        click.echo(f"{rule.code}  {rule.name:<{width}}  {rule.severity:<7}  {rule.summary}")


def as_dict(rule: Rule) -> dict[str, object]:
    """The rule's header, for machines."""
    return {
        "code": rule.code,
        "name": rule.name,
        "family": rule.family,
        "severity": rule.severity,
        "since": rule.since,
        "scope": rule.scope,
        "scope_is_empty": rule.scope_is_empty,
        "needs": rule.needs,
        "explains": rule.explains,
        "params": dict(rule.params),
        "summary": rule.summary,
        "why": rule.why,
        "example": rule.example,
        "fix": rule.fix,
        "not_a_fault_when": rule.not_a_fault_when,
        "references": rule.references,
    }
