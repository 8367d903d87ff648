"""Writes what a verb made: in which format, to a file, or to a terminal as far as its encoding goes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from accumaudit.cli import StopError

ENDINGS: Final = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".txt": "text",
}
"""The formats by how the names of their files end."""

INSTALL: Final = "pip install 'accumaudit[report]'"


def format_of(output: Path | None, formats: Collection[str], default: str) -> str:
    """The format that a file's name asks for."""
    if output is None:
        return default
    found = ENDINGS.get(output.suffix.lower())
    if found is None or found not in formats:
        raise click.UsageError(f"{output}: no format has this ending; name one with --format")
    return found


@contextmanager
def missing_packages() -> Iterator[None]:
    """Say how to install what a page alone needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("accumaudit"):
            raise
        raise StopError(f"this needs {error.name}, which is not installed: {INSTALL}") from None


def known(text: str) -> str:
    """The text with an escape for each character that the terminal's encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def write(text: str, output: Path | None) -> None:
    """Write a report; a name in it may hold what no encoding has."""
    try:
        if output is None:
            click.echo(known(text), nl=not text.endswith("\n"))
        else:
            ending = "" if text.endswith("\n") else "\n"
            output.write_bytes(f"{text}{ending}".encode("utf-8", "backslashreplace"))
    except BrokenPipeError:  # who reads it has seen enough
        raise
    except OSError as error:
        where = output or "standard output"
        raise StopError(f"{where}: the report cannot be written: {error.strerror}") from None
