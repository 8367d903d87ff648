"""Reads the hyperparameters that people keep in files, of whatever kind."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from accumaudit.importers.reading.log import HEAD, Log, LogError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LONGEST_YAML: Final = 2**16
"""Bytes of a YAML file above which it is not read: its reader is slow."""

DEEPEST: Final = 3
"""Sections in sections that are looked into."""

_ASSIGNED: Final = re.compile(r"^[ \t]*([A-Za-z_]\w*)[ \t]*=[ \t]*([^\n#]+)", re.MULTILINE)
_LISTED: Final = re.compile(r"^[ \t]*[-*][ \t]+`?(\w+)`?:[ \t]+([^\n]+)", re.MULTILINE)
_OPTION: Final = re.compile(r"(?<!\S)--([A-Za-z][\w.-]*)[= \t]+([^\s\\-][^\s\\]*|-\d[^\s\\]*)")

# Sections that say how the training goes; others (of the model, the data, the logger) use the same names for
# other things.
_SECTIONS: Final = frozenset(
    [
        "args",
        "arguments",
        "cfg",
        "config",
        "hparams",
        "hyper_parameters",
        "hyperparameters",
        "lr_scheduler",
        "optim",
        "optimizer",
        "scheduler",
        "trainer",
        "train",
        "training",
        "training_args",
        "training_arguments",
    ]
)


def read(path: Path) -> dict[str, Any]:
    """The names and values in a file, those of its sections included.

    Raises:
        LogError: it cannot be read, or states none.
    """
    data = Log(path).head
    if len(data) >= HEAD:
        raise LogError(f"{path}: longer than hyperparameters are")
    text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    found = _READERS.get(path.suffix.lower(), _of_text)(text)
    if not found:
        raise LogError(
            f"{path}: no hyperparameters in it; give a file such as training_args.json or config.yaml"
        )
    return found


def flat(values: Mapping[Any, Any], depth: int = DEEPEST) -> dict[str, Any]:
    """The values with those of the sections below, by their last names; what stands higher holds."""
    found: dict[str, Any] = {}
    sections = []
    for name, value in values.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, Mapping):
            if "value" in value and set(value) <= {"desc", "value"}:  # as wandb writes them
                value = value["value"]
            elif depth and name.lower() in _SECTIONS:
                sections.append(value)
                continue
        found.setdefault(name.lower().replace("-", "_"), value)
    for section in sections:
        for name, value in flat(section, depth - 1).items():
            found.setdefault(name, value)
    return found


def assigned(text: str) -> dict[str, str]:
    """The first value of each name in lines such as `learning_rate = 6e-4  # peak`."""
    return _first(_ASSIGNED.findall(text))


def options(text: str) -> dict[str, str]:
    """The value of each option of a command line: `--learning_rate 2e-5 --max-steps=30`.

    Its last value holds, as it does for the program.
    """
    return {
        name.replace("-", "_").rpartition(".")[2]: value.strip("'\"`")
        for name, value in _OPTION.findall(text)
    }


def _of_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return flat(found) if isinstance(found, dict) else {}


def _of_yaml(text: str) -> dict[str, Any]:
    if len(text) > LONGEST_YAML:
        return {}
    from accumaudit.importers.reading import plain_yaml  # most audits need none

    found = plain_yaml.load(text)
    return flat(found) if isinstance(found, dict) else {}


def _of_toml(text: str) -> dict[str, Any]:
    try:
        return flat(tomllib.loads(text))
    except (ValueError, RecursionError):
        return {}


def _of_model_card(text: str) -> dict[str, Any]:
    return _first(_LISTED.findall(text))


def _of_text(text: str) -> dict[str, Any]:
    """A script, a configuration in Python, or what only the content tells."""
    return _of_json(text) or {**_of_model_card(text), **assigned(text), **options(text)}


def _first(pairs: list[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name.lower(), value.strip())
    return found


_READERS: Final = {
    ".json": _of_json,
    ".yaml": _of_yaml,
    ".yml": _of_yaml,
    ".toml": _of_toml,
    ".md": _of_model_card,
}


def all_in(paths: Iterator[Path]) -> Iterator[dict[str, Any]]:
    """What each file states; files that state nothing are passed over."""
    for path in paths:
        with suppress(LogError):
            yield read(path)
