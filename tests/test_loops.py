"""What is recorded of hand-written loops, and what is found in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumaudit.engine import check_paths
from tests.loops import LOOPS, record, total_weight
from tests.loss_loops import LOSSES
from tests.more_loops import MORE
from tests.optimizer_loops import SEVERAL
from tests.scaled_loops import SCALED

ALL = LOOPS | LOSSES | MORE | SCALED | SEVERAL


@pytest.mark.parametrize("name", ALL)
def test_loop_gives_its_words(name: str, tmp_path: Path) -> None:
    """A loop's words, kept and discarded micro-steps and total weights are those of the table."""
    loop = ALL[name]
    records = record(loop, tmp_path / "run")
    updates = [entry for entry in records if entry["record"] == "update"]
    updates.sort(key=lambda update: (update["optimizer"], update["attempt_id"]))
    assert [update["events"] for update in updates] == loop.words
    assert [update["microbatches"] for update in updates] == loop.kept
    assert [update["discarded_microbatches"] for update in updates] == loop.discarded
    weights = [weight if weight is None else pytest.approx(weight, rel=1e-5) for weight in loop.weights]
    assert [total_weight(update) for update in updates] == weights
    assert records[-1]["leftover_microbatches"] == loop.leftover
    assert not [entry for entry in records if entry.get("kind") == "hook_error"]


@pytest.mark.slow
def test_loops_give_their_codes(tmp_path: Path) -> None:
    """What is found in a loop is what the table says: nothing, in those that are right."""
    for place, loop in enumerate(ALL.values()):
        record(loop, tmp_path / f"{place:03}")
    runs = check_paths([tmp_path]).runs
    found = {
        name: {verdict.code for verdict in run.verdicts if verdict.status in ("failed", "broken")}
        for name, run in zip(ALL, sorted(runs, key=lambda run: run.run_id), strict=True)
    }
    assert found == {name: loop.codes for name, loop in ALL.items()}
