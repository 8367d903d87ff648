"""All rules by code: those that ship with the package, then the user's own."""

from __future__ import annotations

import functools
import graphlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import duckdb

from accumaudit.engine.rule import Rule, RuleError, read_rule
from accumaudit.nearest import nearest
from accumaudit.rules import FOLDER, TABLES


class SelectionError(ValueError):
    """A name, code or parameter that no rule has."""


class Catalogue(Mapping[str, Rule]):
    """Rules by code, in the order of their codes."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        by_code: dict[str, Rule] = {}
        by_name: dict[str, Rule] = {}
        for rule in rules:
            known = by_code.get(rule.code) or by_name.get(rule.name)
            if known:
                word = f"code {rule.code}" if known.code == rule.code else f"name {rule.name}"
                raise RuleError(rule.file, 1, f"the {word} belongs to {known.file} already")
            by_code[rule.code] = by_name[rule.name] = rule
        self._rules = MappingProxyType(dict(sorted(by_code.items())))
        self._by_name = by_name
        self._check_explains()

    def __getitem__(self, code: str) -> Rule:
        return self._rules[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def find(self, word: str) -> Rule:
        """The rule of a code (in any case) or name."""
        rule = self._rules.get(word.upper()) or self._by_name.get(word.lower())
        if rule is None:
            raise SelectionError(f"no rule is called `{word}`{self._near(word)}")
        return rule

    def matching(self, words: Iterable[str]) -> list[Rule]:
        """The rules whose code begins with one of the words, or whose name is one of them."""
        found: set[str] = set()
        for word in words:
            codes = {code for code in self if word and code.startswith(word.upper())}
            found |= codes or {self.find(word).code}
        return [rule for code, rule in self.items() if code in found]

    def with_params(self, params: Mapping[str, float]) -> Catalogue:
        """The same rules with other thresholds: `{"ACC302.share": 0.01}`."""
        rules = dict(self._rules)
        for path, value in params.items():
            word, _, name = path.partition(".")
            rule = rules[self.find(word).code]
            if name not in rule.params:
                known = ", ".join(f"{rule.code}.{one}" for one in rule.params) or "none"
                raise SelectionError(f"{rule.code} has no parameter `{name}`; it has {known}")
            if not math.isfinite(value):  # nothing is above or below it: the rule would pass everything
                raise SelectionError(f"the parameter {path} is a finite number, not {value}")
            rules[rule.code] = replace(rule, params={**rule.params, name: float(value)})
        return Catalogue(rules.values())

    def _near(self, word: str) -> str:
        return nearest(word.upper(), self._rules) or nearest(word.lower(), self._by_name)

    def _check_explains(self) -> None:
        """A cause that follows from its own effect would hide both."""
        graph = {rule.code: set(rule.explains) for rule in self._rules.values()}
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            codes = error.args[1]
            rule = self._rules[codes[0]]
            raise RuleError(rule.file, 1, f"`explains` goes in a circle: {', '.join(codes)}") from None


def load_rules(*folders: Path | None) -> Catalogue:
    """Read the bundled rules and those of further folders."""
    return Catalogue((*_bundled(), *_read(folders)))


def read_folders(*folders: Path | None) -> Catalogue:
    """Read the rules of folders, which need not be the bundled ones."""
    return Catalogue(_read(folders))


@functools.cache
def _bundled() -> tuple[Rule, ...]:
    """The rules of the package; that their queries are sound is tested, and to parse them all takes long."""
    return tuple(read_rule(file, None) for file in _rule_files(FOLDER))


def _read(folders: Iterable[Path | None]) -> list[Rule]:
    files = [*_rule_files(*folders)]
    if not files:
        return []
    with duckdb.connect() as parser:
        return [read_rule(file, parser) for file in files]


def _rule_files(*folders: Path | None) -> Iterator[Path]:
    for folder in folders:
        if folder is None:
            continue
        files = sorted(file for file in folder.rglob("*.sql") if file != folder / TABLES.name)
        if not files and folder != FOLDER:
            raise RuleError(folder, 1, "no rule (.sql) lies in this folder")
        yield from files
