"""`accumaudit rules`: the list of the rules, and a new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import Choice, NearGroup
from accumaudit.cli.inputs import load_catalogue

if TYPE_CHECKING:
    from accumaudit.engine.rule import Rule


@click.group("rules", cls=NearGroup, invoke_without_command=True)
@click.option("--format", "format_", type=Choice(("text", "json")), default="text", show_default=True)
@click.option(
    "--rules",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder of further rules.",
)
@click.pass_context
def command(context: click.Context, format_: str, folders: tuple[Path, ...]) -> None:
    """List the rules: code, name, severity and the fault in a sentence."""
    if context.invoked_subcommand is None:
        _list(format_, folders)


@command.command("new")
@click.argument("name")
@click.option("--family", metavar="F", help="Its family, a folder: window, schedule ...  [that of its code]")
@click.option("--code", metavar="CODE", help="Its code.  [the next free one of the family]")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default="rules",
    show_default=True,
    metavar="DIR",
    help="The folder of rules.",
)
def new(name: str, family: str | None, code: str | None, into: Path) -> None:
    """Write the skeleton of a rule: one SQL file, which loads and judges nothing yet.

    NAME is the fault, as in fixed-divisor-tail. In a checkout the training of the fault is written too.
    """
    from accumaudit.cli.new_rule import write_skeleton

    for file in write_skeleton(name, family, code, into):
        click.echo(f"wrote {file}")


def _list(format_: str, folders: tuple[Path, ...]) -> None:
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
