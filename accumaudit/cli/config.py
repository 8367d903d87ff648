"""Settings from `[tool.accumaudit]` in pyproject.toml, or from accumaudit.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accumaudit.cli import StopError
from accumaudit.nearest import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from accumaudit.engine.ignoring import Ignore

FAIL_ON: Final = ("error", "warning", "note", "never")

KEYS: Final = ("select", "ignore", "baseline", "fail-on", "rules", "params", "args", "map")

IGNORE_KEYS: Final = ("rule", "run", "updates", "reason")
IGNORE_EXAMPLE: Final = (
    '"dropped-tail", {rule = "gradient-spike", run = "pretrain-*", updates = "1-400", reason = "a bad shard"}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a project asks of every audit; the command line goes before it."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    """Rules that are left out."""
    ignores: tuple[Ignore, ...] = ()
    """Findings that are left out, each with its reason."""
    baseline: Path | None = None
    """A file of findings that are left out; a relative path lies beside the file that names it."""
    fail_on: str = "error"
    rules: tuple[Path, ...] = ()
    """Folders of further rules; a relative one lies beside the file that names it."""
    params: Mapping[str, float] = field(default_factory=dict)
    """`ACC302.share` and its value."""
    arguments: Path | None = None
    """The hyperparameters of foreign logs; a relative path lies beside the file that names it."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of tables by the fields that they are."""


def find_settings(start: Path) -> Settings:
    """The settings that hold in a folder: its own, or those of the nearest folder above."""
    for folder in (start, *start.parents):
        for name in ("accumaudit.toml", "pyproject.toml"):
            file = folder / name
            table = _table(file) if file.is_file() else None
            if table is not None:
                return _settings(file, table)
    return Settings()


def read_settings(file: Path) -> Settings:
    """The settings of one file, whatever its name: pyproject.toml's table, or a file of them alone."""
    table = _table(file)
    return Settings() if table is None else _settings(file, table)


def _table(file: Path) -> dict[str, Any] | None:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise StopError(f"{file}: cannot be read as TOML: {error}") from None
    if file.name != "pyproject.toml":
        return document
    tool = document.get("tool", {})
    table = tool.get("accumaudit") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _settings(file: Path, table: dict[str, Any]) -> Settings:
    for key in table:
        if key not in KEYS:
            near = nearest(key, KEYS) or f"; there are {', '.join(KEYS)}"
            raise StopError(f"{file}: unknown setting `{key}`{near}")
    fail_on = table.get("fail-on", "error")
    if fail_on not in FAIL_ON:
        near = nearest(str(fail_on), FAIL_ON)
        raise StopError(f"{file}: `fail-on` is {', '.join(FAIL_ON)}, not {fail_on!r}{near}")
    ignore, ignores = _ignored(file, table.get("ignore", []))
    return Settings(
        select=_texts(file, table, "select"),
        ignore=ignore,
        ignores=ignores,
        baseline=_file(file, table, "baseline", "accumaudit-baseline.json"),
        fail_on=fail_on,
        rules=tuple(file.parent / folder for folder in _texts(file, table, "rules")),
        params=_params(file, table.get("params", {})),
        arguments=_file(file, table, "args", "training_args.json"),
        columns=_columns(file, table.get("map", {})),
    )


def _ignored(file: Path, items: object) -> tuple[tuple[str, ...], tuple[Ignore, ...]]:
    """The rules that are left out, and the findings that are, each with its reason."""
    from accumaudit.engine.ignoring import Ignore, IgnoreError

    if not isinstance(items, list) or not all(isinstance(item, str | dict) for item in items):
        raise StopError(f"{file}: `ignore` is a list: ignore = [{IGNORE_EXAMPLE}]")
    ignores = []
    for entry in (item for item in items if isinstance(item, dict)):
        for key, value in entry.items():
            if key not in IGNORE_KEYS:
                near = nearest(key, IGNORE_KEYS) or f"; there are {', '.join(IGNORE_KEYS)}"
                raise StopError(f"{file}: unknown key `{key}` of an ignore{near}")
            if not isinstance(value, str):
                raise StopError(f"{file}: `{key}` of an ignore is a text: [{IGNORE_EXAMPLE}]")
        if not entry.get("rule"):
            raise StopError(f"{file}: an ignore names no rule: [{IGNORE_EXAMPLE}]")
        try:
            ignores.append(Ignore(**{"reason": "", **entry}, source=file.name))
        except IgnoreError as error:
            raise StopError(f"{file}: {error}") from None
    return tuple(item for item in items if isinstance(item, str)), tuple(ignores)


def _file(file: Path, table: dict[str, Any], key: str, example: str) -> Path | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise StopError(f'{file}: `{key}` is the name of a file: {key} = "{example}"')
    return None if value is None else file.parent / value


def _columns(file: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(column, str) for column in value.values()):
        raise StopError(f'{file}: `map` is a table of names: [map], then step = "iter"')
    return value


def _texts(file: Path, table: dict[str, Any], key: str) -> tuple[str, ...]:
    items = table.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise StopError(f'{file}: `{key}` is a list of texts: {key} = ["..."]')
    return tuple(items)


def _params(file: Path, table: object) -> dict[str, float]:
    """Both `"ACC302.share" = 0.01` and `ACC302.share = 0.01`, which TOML reads as a table in a table."""
    if not isinstance(table, dict):
        raise StopError(f"{file}: `params` is a table: [params], then ACC302.share = 0.01")
    params: dict[str, float] = {}
    for key, value in table.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        for name, number in entries:
            path = f"{key}.{name}".rstrip(".")
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise StopError(f"{file}: `{path}` in params is a number: ACC302.share = 0.01")
            params[path] = float(number)
    return params
