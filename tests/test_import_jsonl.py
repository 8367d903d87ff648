"""Lines of JSON as they are found: torn, glued, too long, with something else between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accumaudit.importers import Log
from accumaudit.importers.reading.jsonl import LONGEST_OBJECT, objects
from accumaudit.importers.records import Records


def read(folder: Path, data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int | None, str]]]:
    path = folder / "log.jsonl"
    path.write_bytes(data)
    records = Records(lambda _: None)
    return list(objects(Log(path), records)), records.damaged


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": 2}', [(1, 1), (2, 2)]),
        (b'\xef\xbb\xbf{"a": 1}\r\n\r\n  {"a": 2} \t\r\n', [(1, 1), (3, 2)]),
        (b'{"a": 1}{"a": 2} {"a": 3}\n', [(1, 1), (1, 2), (1, 3)]),  # two writers, one line
        (b'\x00\x00{"a": 1}\n', [(1, 1)]),  # a file that was preallocated, or torn on a network disk
        (b'\x1b[0m{"a": 1}\x1b[0m\n', [(1, 1)]),
        (b"", []),
    ],
)
def test_whole_objects(tmp_path: Path, data: bytes, expected: list[tuple[int, int]]) -> None:
    found, damaged = read(tmp_path, data)
    assert [(line, value["a"]) for line, value in found] == expected
    assert damaged == []


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b'{"a": 1, "b"', "no whole JSON object"),
        (b"[1, 2]", "no JSON object"),
        (b"12", "no JSON object"),
        (b"text", "no whole JSON object"),
        (b'{"b": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"b": ' + b"9" * 5_000 + b"}", "no whole JSON object"),
        (b'{"b": "' + b"x" * LONGEST_OBJECT + b'"}', "longer than"),
        (b'{"b": "\xff\xfe', "no whole JSON object"),
    ],
)
def test_a_broken_line_costs_itself_alone(tmp_path: Path, broken: bytes, why: str) -> None:
    found, damaged = read(tmp_path, b'{"a": 1}\n' + broken + b'\n{"a": 2}\n')
    assert found == [(1, {"a": 1}), (3, {"a": 2})]
    ((line, said),) = damaged
    assert line == 2
    assert why in said


def test_what_stands_before_a_tear_is_kept(tmp_path: Path) -> None:
    found, damaged = read(tmp_path, b'{"a": 1}{"a": 2}{"a": \n{"a": 3}\n')
    assert [value["a"] for _, value in found] == [1, 2, 3]
    assert [line for line, _ in damaged] == [1]


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    ((_, found),), damaged = read(tmp_path, b'{"a": NaN, "b": -Infinity, "c": 1e999}\n')
    assert json.dumps(found) == '{"a": NaN, "b": -Infinity, "c": Infinity}'
    assert damaged == []
