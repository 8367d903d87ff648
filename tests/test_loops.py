"""What is recorded of hand-written loops: the word, the micro-steps kept, the weight."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumaudit.engine import check_paths
from tests.loops import LOOPS, record, total_weight
from tests.more_loops import MORE


@pytest.mark.parametrize("name", LOOPS | MORE)
def test_loop_gives_its_words(name: str, tmp_path: Path) -> None:
    """A loop's words, kept and discarded micro-steps, total weights and findings are those of the table."""
    loop = (LOOPS | MORE)[name]
    records = record(loop, tmp_path / "run")
    updates = [entry for entry in records if entry["record"] == "update"]
    assert [update["events"] for update in updates] == loop.words
    assert [update["microbatches"] for update in updates] == loop.kept
    assert [update["discarded_microbatches"] for update in updates] == loop.discarded
    assert [total_weight(update) for update in updates] == pytest.approx(loop.weights, abs=1e-5)
    assert records[-1]["leftover_microbatches"] == loop.leftover
    assert not [entry for entry in records if entry.get("kind") == "hook_error"]
    (run,) = check_paths([tmp_path / "run"]).runs
    assert not [verdict for verdict in run.verdicts if verdict.status == "broken"]
    assert {verdict.code for verdict in run.verdicts if verdict.status == "failed"} == loop.codes
