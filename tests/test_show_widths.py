"""What `accumaudit show` does on narrow, wide and poor terminals."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.outputs.timeline import text
from accumaudit.outputs.timeline.grid import Cell, Column, Grid, shortened
from accumaudit.outputs.timeline.reading import What, timelines
from accumaudit.testing import write_run

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def on_terminal(run: Path, width: int, what: What = "overview") -> list[str]:
    """The lines on a terminal of this width, with the bundled rules."""
    page = io.StringIO()
    with read_ledger([run]) as ledger:
        report = audit(ledger, load_rules(), select=["ACC101"])
        found = timelines(ledger, report, what)
    console = Console(file=page, force_terminal=True, color_system=None, width=width)
    text.render(found, report, console, what if isinstance(what, int) else None)
    return page.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("what", ["overview", 3])
def test_no_row_is_wider_than_the_terminal(tmp_path: Path, width: int, what: What) -> None:
    clip = {"grad_norm_before_clip": 2.5, "grad_norm_before_scope": "global", "grad_scale": 65536.0}
    spread = {"on": {1: {"learning_rate": 0.5}}}
    run = write_run(
        tmp_path / "run", [clip, {"skipped": True}, {"microbatches": 2, "total_weight": 0.5}, spread]
    )
    lines = on_terminal(run, width, what)
    assert not [line for line in lines if len(line) > width and str(tmp_path) not in line]
    heads = next(line for line in lines if line.startswith("update ")).split()
    assert {"update", "T", "faults"} <= set(heads)


def test_what_did_not_fit_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    narrow, wide = on_terminal(run, 60), on_terminal(run, 160)
    assert "left out at 60 columns: loss, word; a wider terminal has them" in re.sub(
        r"\s+", " ", "\n".join(narrow)
    )
    assert not [line for line in wide if "left out" in line]


def test_texts_keep_both_ends() -> None:
    assert shortened("ZFBFBFBOS", 9) == "ZFBFBFBOS"
    assert shortened("ZFBFBFBFBOS", 9) == "ZFBF..BOS"
    assert [shortened("abcdef", room) for room in (4, 3, 2, 1)] == ["a..f", "a..", "..", "."]


def test_a_column_gives_way_before_another_goes() -> None:
    words = Column(head="word", cells=[Cell("abcdefghijkl")], rank=9, left=True, least=6)
    numbers = Column(head="number", cells=[Cell("1")], rank=5)
    assert Grid([numbers, words], 16).row(0)[2][0] == "abc..jkl"
    assert Grid([numbers, words], 13).left_out == ["word"]
    assert Grid([numbers, words], None).row(0)[2][0] == "abcdefghijkl"


def test_a_console_that_lacks_the_characters(tmp_path: Path) -> None:
    page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with read_ledger([write_run(tmp_path / "l\u00e4uft", 1)]) as ledger:
        report = audit(ledger, load_rules(), select=["ACC101"])
        text.render(timelines(ledger, report), report, Console(file=page), None)
    page.seek(0)
    assert page.read().startswith("l\\xe4uft: 1 update, 2 ranks, torch\n")
