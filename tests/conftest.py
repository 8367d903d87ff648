"""What all tests share: a pair of training processes, and real logs, for each worker of the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from accumaudit.ledger.reader import Ledger
    from tests.pages import Page
    from tests.processes import Pair

# Before torch is loaded: the trainings are small, and the workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """Two processes of one gloo group, which run functions on demand and end with the session."""
    from tests.processes import Pair

    processes = Pair()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def logs() -> Iterator[Ledger]:
    """The folder of real logs, read once: other people's trainings."""
    from accumaudit.ledger.reader import read_ledger
    from tests.real_logs import real_logs

    with read_ledger([real_logs()]) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    """A tab of a browser, for the tests of a module."""
    from tests.pages import page

    with page() as opened:
        yield opened


@pytest.fixture
def browser(tab: Page) -> Iterator[Page]:
    """The tab as a test finds it, and no complaint after it."""
    tab.complaints.clear()
    tab.allow_scripts(True)
    tab.send_headers({})
    tab.resize(1280, 900)
    yield tab
    assert tab.complaints == []


@pytest.fixture
def no_hook_faults(tmp_path: Path) -> Iterator[None]:
    """No hook may have failed, and no record been lost, in the run that a test records in its folder."""
    from tests.recorded import faults

    yield
    assert faults(tmp_path) == []
