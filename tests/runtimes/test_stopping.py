"""`stop_on` in the runtimes: the error comes out of their own loops, between two updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accumaudit
from tests.processes import Pair
from tests.recorded import faults, marks, updates
from tests.runtimes import accelerate, deepspeed, hf
from tests.runtimes.lightning import fit, library
from tests.runtimes.rows import EQUAL, rank
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


def test_accelerate(tmp_path: Path) -> None:
    with told() as find, accelerate.fresh(gradient_accumulation_steps=2) as accelerator:
        loop = accelerate.Loop(accelerator, tmp_path, epochs=2, audit={"stop_on": "error"})
        loop.after_update = lambda loop: find() if loop.micro_steps >= 3 else None
        with pytest.raises(accumaudit.FaultFoundError):
            loop.train()
    assert [update["microbatches"] for update in updates(tmp_path)] == [2, 2, 2]
    assert faults(tmp_path) == []


def test_both_ranks_of_a_deepspeed_engine(tmp_path: Path, pair: Pair) -> None:
    ended = pair.call("tests.runtimes.test_stopping:train_engine", timeout=200.0, folder=str(tmp_path))
    assert ended == [{"updates": 3, "micro_steps": 9}] * 2
    assert faults(tmp_path) == []


def train_engine(folder: str) -> dict[str, int]:
    """Until the fault that is found in the second window; runs on each rank."""
    with told() as find, deepspeed.group():
        engine = deepspeed.initialize(2)
        loop = deepspeed.Loop(engine, epochs=4)

        class Finding(type(loop)):  # type: ignore[misc]  # of this very loop
            def backward(self, loss: Any) -> None:
                if engine.micro_steps == 3 and rank() == 0:
                    find()
                super().backward(loss)

        loop.__class__ = Finding
        with (
            pytest.raises(accumaudit.FaultFoundError),
            accumaudit.attach_deepspeed(engine, log_dir=folder, summary=False, stop_on="error"),
        ):
            loop.train()
        ended = {"updates": engine.global_steps, "micro_steps": engine.micro_steps}
        engine.destroy()
    return ended
