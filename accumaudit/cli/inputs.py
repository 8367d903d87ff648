"""What several verbs read: the rules and the runs, with errors for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from accumaudit.cli import StopError
from accumaudit.cli.progress import progress

if TYPE_CHECKING:
    from accumaudit.cli.config import Settings
    from accumaudit.engine.catalogue import Catalogue
    from accumaudit.ledger.reader import Ledger

SHOWN: Final = 5
"""Lines, and kinds of files, that are named one by one."""


def load_catalogue(folders: Sequence[Path]) -> Catalogue:
    """The bundled rules and those of further folders."""
    from accumaudit.engine.catalogue import load_rules
    from accumaudit.engine.rule import RuleError

    for folder in folders:
        if not folder.is_dir():
            raise StopError(f"{folder}: this folder of rules does not exist")
    try:
        return load_rules(*folders)
    except RuleError as error:
        raise StopError(str(error)) from None


def place(given: str) -> Path | str:
    """A path, or a URL that fsspec knows."""
    from accumaudit.ledger import remote

    return remote.place(given)


def _columns(_: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    from accumaudit.importers.options import OptionError, pairs

    try:
        return pairs(texts)
    except OptionError as error:
        raise click.BadParameter(str(error), param=param) from None


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every verb that reads logs may be told of them."""
    arguments = click.option(
        "--args",
        "arguments",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The hyperparameters of the run, for logs that lack them: training_args.json, config.yaml ...",
    )
    columns = click.option(
        "--map",
        "columns",
        multiple=True,
        callback=_columns,
        metavar="FIELD=COLUMN,...",
        help="What the columns of a CSV or JSONL file are: step=iter,learning_rate=lr.",
    )
    return arguments(columns(command))


def log_settings(arguments: Path | None, columns: Mapping[str, str]) -> Settings:
    """The settings of the project, with what was said on the command line of the logs."""
    from accumaudit.cli.config import find_settings

    found = find_settings(Path.cwd())
    return replace(found, arguments=arguments or found.arguments, columns=columns or found.columns)


def _size(_: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"\s*0*[1-9]\d*(\.\d+)?\s*[KMGT]i?B\s*", text, re.IGNORECASE):
        what = f"`{text}` is no amount of memory; write a number and its unit, as in 3GB or 800MB"
        raise click.BadParameter(what, param=param)
    return text


def memory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a verb that asks much of the database may be told of its memory."""
    return click.option(
        "--memory",
        callback=_size,
        metavar="SIZE",
        help="What the database may take, 3GB: the rest goes to the temporary folder.",
    )(command)


def open_ledger(
    places: Iterable[Path | str], settings: Settings, *, memory_limit: str | None = None
) -> Ledger:
    """Read the runs; say on stderr which lines were left out, and which files hold no record."""
    import duckdb

    from accumaudit.engine.rule import sql_reason
    from accumaudit.importers.options import OptionError, checked
    from accumaudit.ledger.reader import LedgerError, read_ledger
    from accumaudit.outputs.words import printable

    try:
        with progress("looking for logs") as shown:
            options = checked(settings.arguments, settings.columns, on_start=shown.start, on_read=shown.read)
            ledger = read_ledger(list(places), options, memory_limit=memory_limit)
    except (LedgerError, OptionError) as error:
        raise StopError(printable(str(error))) from None
    except duckdb.Error as error:
        raise StopError(f"the records cannot be read: {sql_reason(error)}") from None
    for line in (*_left_out(ledger), *_without_log(ledger)):
        click.echo(printable(line), err=True)
    return ledger


def _left_out(ledger: Ledger) -> Iterator[str]:
    for line in ledger.unreadable[:SHOWN]:
        if line.line is None:
            yield f"warning: {line.file}: {line.why}"
        else:
            yield f"warning: {line.file}:{line.line}: {line.why}; the line was left out"
    if len(ledger.unreadable) > SHOWN:
        yield f"warning: {len(ledger.unreadable) - SHOWN:,} more lines were left out"


def _without_log(ledger: Ledger) -> Iterator[str]:
    """Files that hold no record: those that look alike together."""
    groups: dict[str, list[str]] = {}
    for one in ledger.no_logs:
        groups.setdefault(one.why, []).append(one.file)
    for why, files in list(groups.items())[:SHOWN]:
        others = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        yield f"note: {files[0]}{others}: no record of a training ({why})"
    if len(groups) > SHOWN:
        more = sum(map(len, list(groups.values())[SHOWN:]))
        yield f"note: {more:,} more files hold no record of a training"
