"""The faults that people had are found, their honest twins and the traps are silent; the page tells so."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumaudit.engine.catalogue import load_rules
from tests.faults import scoreboard
from tests.faults.registry import KINDS, RUNTIMES, faults, traps
from tests.processes import Pair

pytestmark = pytest.mark.slow  # every framework is imported

PAGE = scoreboard.PAGE.read_text(encoding="utf-8")
AT_LENGTH = ("FSDP1", "FSDP2")
"""Columns that take minutes each: `make scoreboard` trains them too, and says what is wrong."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", [runtime for runtime in RUNTIMES if runtime not in AT_LENGTH])
def test_every_fault_is_found_and_its_twin_is_silent(runtime: str, tmp_path: Path, pair: Pair) -> None:
    with scoreboard.groups(pair) as by:
        scoreboard.train(runtime, tmp_path, by)
    cells = scoreboard.cells(runtime, tmp_path)
    wrong = {name: cell.wrong for name, cell in cells.items() if cell.wrong}
    assert not wrong
    assert {name: cell.symbol for name, cell in cells.items()} == shown(runtime)


def shown(runtime: str) -> dict[str, str]:
    """The column of a runtime on the page."""
    table = PAGE.partition("<!-- begin scoreboard -->")[2].partition("<!-- end scoreboard -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| K")]
    column = 3 + list(RUNTIMES).index(runtime)
    return dict(zip(faults(), (row[column].rstrip(" |") for row in rows), strict=True))


@pytest.mark.timeout(600)
def test_no_trap_is_accused(tmp_path: Path, pair: Pair) -> None:
    with scoreboard.groups(pair) as by:
        scoreboard.train_traps(tmp_path, by)
    reports = scoreboard.judge(tmp_path)
    wrong = {name: [*scoreboard.trap_errors(one, reports[name])] for name, one in traps().items()}
    assert not {name: errors for name, errors in wrong.items() if errors}


def test_every_kind_has_a_fault_and_every_trap_a_training() -> None:
    assert {fault.kind for fault in faults().values()} == {*KINDS}
    assert {one.trap for one in traps().values()} == {f"T{number:02}" for number in range(1, 30)}


def test_every_fault_is_trained_or_said_not_to_occur_in_every_runtime() -> None:
    for name, fault in faults().items():
        assert fault.code in load_rules(), name
        assert {*fault.trainings} | {*fault.elsewhere} == {*RUNTIMES}, name
        assert not {*fault.trainings} & {*fault.elsewhere}, name


def test_the_page_tells_of_every_fault_and_trap() -> None:
    found = {runtime: shown(runtime) for runtime in RUNTIMES}
    assert scoreboard.page(found) == PAGE
    assert sum([*column.values()].count("✗") for column in found.values()) == sum(
        text.startswith("missed: ") for fault in faults().values() for text in fault.elsewhere.values()
    )
