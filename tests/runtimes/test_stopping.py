"""`stop_on` in the runtimes: the error comes out of their own loops, between two updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accumaudit
from tests.recorded import faults, marks, updates
from tests.runtimes import hf
from tests.runtimes.lightning import fit, library
from tests.runtimes.rows import EQUAL
from tests.stopped_loops import told

pytestmark = pytest.mark.slow  # the frameworks take seconds to import


def test_transformers(tmp_path: Path) -> None:
    with hf.quiet(), told() as find:
        found: Any = hf.On("on_step_end", lambda **_: find(), step=2)
        with pytest.raises(accumaudit.FaultFoundError):
            hf.fit(str(tmp_path), found, audit={"stop_on": "error"}, max_steps=6)
    assert len(updates(tmp_path)) == 3
    assert {close["leftover_microbatches"] for close in marks(tmp_path, "close")} == {0}
    assert faults(tmp_path) == []


def test_lightning(tmp_path: Path) -> None:
    pl = library()

    class Finds(pl.Callback):  # type: ignore[misc, name-defined]  # of a package that is loaded late
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 1:
                find()

    with told() as find, pytest.raises(accumaudit.FaultFoundError):
        fit(str(tmp_path), callbacks=[Finds()], audit={"stop_on": "error"}, valid=EQUAL, max_epochs=4)
    assert len(updates(tmp_path / "run")) == 2
    assert [close["leftover_microbatches"] for close in marks(tmp_path / "run", "close")] == [0]
    assert faults(tmp_path / "run") == []
