"""The command line: one module a verb, imported when the verb is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from accumaudit import __version__
from accumaudit.nearest import nearest

if TYPE_CHECKING:
    _Choice: TypeAlias = click.Choice[str]
else:  # before click 8.2 it is not generic
    _Choice = click.Choice

VERBS: Final = {
    "check": "Audit runs: say which updates were not the ones that were meant.",
    "show": "Show a run as a table, attempt by attempt.",
    "postmortem": "Tell why a run went wrong, and from which update on.",
    "diff": "Compare two runs: where they first differ, and in which field.",
    "rules": "List the rules.",
    "explain": "Print the manual of a rule.",
    "sql": "Ask the tables of a run a question in SQL.",
    "serve": "Follow runs that are being written, and judge them live.",
    "export": "Write a run for Prometheus or TensorBoard.",
    "dashboards": "Write dashboards for Grafana, rules and alerts for Prometheus.",
    "demo": "Train for real, with a fault if you like, then check.",
}
"""The verbs and their help, here so that the list of them imports none."""


class StopError(click.ClickException):
    """Something is wrong with what was asked or read: a message and exit status 2."""

    exit_code = 2


class Choice(_Choice):
    """One of some words; an error names the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            what = error.message.rstrip(".") + (nearest(str(value), self.choices) or ".")
            raise click.BadParameter(what, ctx, param) from None


class NearGroup(click.Group):
    """A group whose error about an unknown verb names the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the first argument names."""
        verbs = self.list_commands(ctx)
        if args[0] not in verbs and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}" + (nearest(args[0], verbs) or "."))
        return super().resolve_command(ctx, args)


class LazyGroup(NearGroup):
    """A group that imports a verb's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The verbs in the order of their use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """The verb's command."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"accumaudit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; where something that it imports is missing, say what to install."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("accumaudit"):
                raise
            raise StopError(
                f"this needs {error.name}, which is not installed: pip install {error.name}"
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of verbs, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accumaudit")
def main() -> None:
    """Is the training that runs the training that was meant?"""
