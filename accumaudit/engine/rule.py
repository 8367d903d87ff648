"""One rule: an SQL file whose first comment is a TOML header, checked as it is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb

from accumaudit.ledger.schema import FIELDS
from accumaudit.nearest import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SEVERITIES: Final = ("error", "warning", "note")
"""From the highest to the lowest."""

SCOPES: Final = ("transaction", "pair", "run")

_TEXTS: Final = (
    "code",
    "name",
    "severity",
    "since",
    "scope",
    "scope_is_empty",
    "summary",
    "why",
    "example",
    "fix",
    "not_a_fault_when",
)
_LISTS: Final = ("needs", "explains", "references")
_OPTIONAL: Final = ("explains", "references", "params")
_KEYS: Final = (*_TEXTS, *_LISTS, "params")

_CODE: Final = re.compile(r"[A-Z]{2,8}[0-9]{3}")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ADVICE: Final = re.compile(r"(?:check|no(?!-sync\b)|use|avoid|do-not|prefer)-")
"""How names begin that say what to do; `no-sync` is torch's own word."""
_END: Final = re.compile(r";(\s|;|--[^\n]*(\n|$)|/\*.*?\*/)*$", re.DOTALL)
"""A semicolon at the end; comments may follow."""

_RECORD_FIELDS: Final = tuple(dict.fromkeys(one.name for fields in FIELDS.values() for one in fields))


class RuleError(Exception):
    """A rule file that cannot be used, with the file and the line."""

    def __init__(self, file: Path, line: int, text: str) -> None:
        super().__init__(f"{file}:{line}: {text}")
        self.file = file
        self.line = line
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fault, its manual and the query that finds it."""

    code: str
    name: str
    severity: str
    since: str
    scope: str
    scope_is_empty: str
    """The reason for "not checked" where the query returned no row."""
    needs: tuple[str, ...]
    """Fields without which nothing can be judged; `loss or reported_loss` where either will do."""
    explains: tuple[str, ...] = ()
    summary: str
    why: str
    example: str
    fix: str
    not_a_fault_when: str
    references: tuple[str, ...] = ()
    params: Mapping[str, float] = field(default_factory=dict)
    file: Path
    sql: str
    """The whole file, so that the lines in the database's errors are those of the file."""

    @property
    def query(self) -> str:
        """The SELECT without what ends a statement, so that it can stand in another."""
        return _END.sub("", self.sql)

    @property
    def family(self) -> str:
        """The folder of the file."""
        return self.file.parent.name


def alternatives(need: str) -> list[str]:
    """The fields of which one will do: `loss or reported_loss` names two."""
    return need.split(" or ")


def wrong_code(code: str) -> str | None:
    """Why a code is none, or nothing."""
    if _CODE.fullmatch(code):
        return None
    return f"`{code}` is no code: capital letters, then three digits (ACC101)"


def wrong_name(name: str) -> str | None:
    """Why a name is none, or nothing: "ignore fixed-divisor-tail" is a sentence, as it names the fault."""
    if not _NAME.fullmatch(name):
        return f"`{name}` is no name: small letters with hyphens (fixed-divisor-tail)"
    advice = _ADVICE.match(name)
    if advice:
        return f"`{name}` says what to do; name the fault, without `{advice[0]}`"
    return None


def file_name(code: str, name: str) -> str:
    """What the file of a rule is called."""
    return f"{code}_{name.replace('-', '_')}.sql"


def read_rule(file: Path, parser: duckdb.DuckDBPyConnection | None) -> Rule:
    """Read and check one rule file; the connection only parses. Without one the query is taken as it is."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RuleError(
            file, 1, f"a rule is a UTF-8 text file: {error.reason} at byte {error.start}"
        ) from None
    header = _Header.split(file, text)
    values = header.checked()
    if parser is not None:
        _check_sql(header, text, parser, values.get("params", {}))
    fields: dict[str, Any] = {key: values[key].strip() for key in _TEXTS}
    fields |= {key: tuple(values.get(key, ())) for key in _LISTS}
    fields["params"] = {key: float(value) for key, value in values.get("params", {}).items()}
    return Rule(**fields, file=file, sql=text)


@dataclass(frozen=True, slots=True)
class _Header:
    file: Path
    text: str
    first_line: int
    stray_line: int | None
    """Line of a comment's end inside the header, which ended it too early."""

    @classmethod
    def split(cls, file: Path, text: str) -> _Header:
        """Cut the first comment out of the file."""
        start = text.find("/*")
        end = text.find("*/", start + 2)
        if start < 0 or end < 0 or text[:start].strip():
            raise RuleError(file, 1, "a rule begins with its header, TOML between /* and */")
        stray = None
        after = text.find("*/", end + 2)
        if after >= 0 and "/*" not in text[end + 2 : after]:
            stray = _line_at(text, end)
        opened = text.find("/*", start + 2, end)
        if opened >= 0:
            raise RuleError(file, _line_at(text, opened), "`/*` cannot stand inside the header")
        return cls(file, text[start + 2 : end], _line_at(text, start), stray)

    def error(self, key: str, text: str) -> RuleError:
        """An error at the line of a key, or at the first line where the key is not there."""
        found = re.search(rf"^[ \t]*\[?{re.escape(key)}\b", self.text, re.MULTILINE)
        line = self.first_line + (self.text.count("\n", 0, found.start()) if found else 0)
        return RuleError(self.file, line, text)

    def parsed(self) -> dict[str, Any]:
        """The header as TOML."""
        try:
            return tomllib.loads(self.text.replace("\r\n", "\n"))
        except tomllib.TOMLDecodeError as error:
            self.check_stray()
            found = re.search(r"\(at line (\d+)", str(error))
            line = self.first_line + (int(found[1]) - 1 if found else self.text.count("\n"))
            reason = re.sub(r" \(at .*\)$", "", str(error))
            raise RuleError(self.file, line, f"the header is not TOML: {reason}") from None

    def check_stray(self) -> None:
        """Raise where a comment's end stands inside the header; asked only after another error."""
        if self.stray_line is not None:
            raise RuleError(self.file, self.stray_line, "`*/` cannot stand inside the header: it ends it")

    def checked(self) -> dict[str, Any]:
        """The header's values, each of its right kind."""
        values = self.parsed()
        for key in values:
            if key not in _KEYS:
                raise self.error(key, f"unknown key `{key}`{nearest(key, _KEYS)}")
        for key in _KEYS:
            if key not in values and key not in _OPTIONAL:
                raise self.error(key, f"the header lacks `{key}`")
        for key in _TEXTS:
            if not isinstance(values[key], str) or not values[key].strip():
                raise self.error(key, f"`{key}` is a text that is not empty")
        for key in _LISTS:
            items = values.get(key, [])
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise self.error(key, f"`{key}` is a list of texts")
        self._check_words(values)
        self._check_params(values.get("params", {}))
        return values

    def _check_words(self, values: dict[str, Any]) -> None:
        for key, allowed in (("severity", SEVERITIES), ("scope", SCOPES)):
            if values[key] not in allowed:
                raise self.error(key, f"`{key}` is {' or '.join(allowed)}, not `{values[key]}`")
        code, name = values["code"], values["name"]
        for key, wrong in (("code", wrong_code(code)), ("name", wrong_name(name))):
            if wrong is not None:
                raise self.error(key, wrong)
        expected = file_name(code, name)
        if self.file.name != expected:
            raise self.error("code", f"the file of {code} {name} is called {expected}, not {self.file.name}")
        for other in values.get("explains", []):
            if not _CODE.fullmatch(other) or other == code:
                raise self.error("explains", f"`explains` names other rules' codes, not `{other}`")
        for name in (name for need in values["needs"] for name in alternatives(need)):
            if name not in _RECORD_FIELDS:
                near = nearest(name, _RECORD_FIELDS)
                raise self.error("needs", f"the record has no field `{name}`{near}")

    def _check_params(self, params: object) -> None:
        if not isinstance(params, dict):
            raise self.error("params", "`params` is a table: [params], then `share = 0.95`")
        for key, value in params.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.error(key, f"the parameter `{key}` is a number, not {value!r}")


def _check_sql(
    header: _Header, text: str, parser: duckdb.DuckDBPyConnection, params: Mapping[str, object]
) -> None:
    try:
        statements = parser.extract_statements(text)
    except duckdb.Error as error:
        header.check_stray()
        raise RuleError(header.file, sql_line(error), sql_reason(error)) from None
    body = header.first_line + header.text.count("\n")
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(str(one.type).rpartition(".")[2] for one in statements) or "nothing"
        raise RuleError(header.file, body, f"a rule is exactly one SELECT; this file holds {kinds}")
    used = statements[0].named_parameters
    for name in sorted(used - set(params)):
        place = re.search(rf"\${re.escape(name)}\b", text)
        line = _line_at(text, place.start()) if place else body
        raise RuleError(header.file, line, f"the parameter ${name} is used and not declared in [params]")
    for name in sorted(set(params) - used):
        raise header.error(name, f"the parameter `{name}` is declared and not used (${name})")


def sql_line(error: duckdb.Error) -> int:
    """The line that the database names in an error, else the first."""
    found = re.search(r"^LINE (\d+):", str(error), re.MULTILINE)
    return int(found[1]) if found else 1


def sql_reason(error: duckdb.Error) -> str:
    """What the database says, in one line and without the quoted source."""
    text = str(error).partition("\nLINE ")[0]
    return re.sub(r"\s+", " ", text).strip()


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
