"""The oldest versions of the frameworks are named in one place, and tested and told as named."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_oldest_versions_are_those_that_are_tested_and_told() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.search(r"^runtimes = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    assert extra is not None
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', extra[1]))
    assert bounds
    pins = dict(
        re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE)
    )
    page = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")
    for name, bound in bounds.items():
        assert f"{pins[name]}.".startswith(f"{bound}."), name
        [row] = [line for line in page.splitlines() if line.startswith("|") and f"{name} " in line]
        assert f" and {bound}" in row, name
