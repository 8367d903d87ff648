"""Sixty small trainings with settings drawn at random, audited together: one of them has a fault."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pytest

from accumaudit.demo.launching import scenario
from accumaudit.demo.variants import VARIANTS
from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from tests.trainings import train_here

pytestmark = pytest.mark.slow  # sixty trainings

TRAININGS: Final = 60
FAULTY: Final = 37
"""The training with a fault, which its settings do not favour."""

ONCE: Final = sorted(name for name, one in VARIANTS.items() if one.launches == 1 and 1 in one.ranks)
"""Right loops of one process and one launch."""


def drawn(seed: int) -> tuple[str, dict[str, Any]]:
    """A right loop, and settings that differ from its own in what does not make it right."""
    rng = random.Random(seed)
    name = "plain" if seed == FAULTY else rng.choice(ONCE)
    own = scenario(name).settings
    settings = replace(
        own,
        accumulation_steps=own.accumulation_steps and rng.randint(2, 5),
        batch_size=rng.randint(1, 3),
        batches=rng.randint(5, 12),
        epochs=rng.randint(1, 2),
        learning_rate=rng.choice((1e-4, 1e-3, 3e-3)),
        warmup_updates=own.warmup_updates and rng.randint(1, 3),
        max_grad_norm=own.max_grad_norm and rng.choice((0.5, own.max_grad_norm, 5.0)),
        seed=seed,
    )
    changed = {key: value for key, value in asdict(settings).items() if value != getattr(own, key)}
    if own.accumulation_steps == 1:
        changed.pop("accumulation_steps")
    return name, changed


def test_only_the_fault_is_found_in_sixty_trainings(tmp_path: Path) -> None:
    for seed in range(TRAININGS):
        name, settings = drawn(seed)
        names = ["mean-of-means"] if seed == FAULTY else [name]
        train_here(names, str(tmp_path / f"{seed:02d}-{names[0]}"), settings, True, 0)
    report = check_paths([tmp_path])
    found = {
        (run.run_id, verdict.code): verdict.finding.message
        for run in report.runs
        for verdict in run.with_status(FAILED)
        if verdict.finding is not None and verdict.severity != "note"
    }
    assert len(report.runs) >= TRAININGS
    assert [*found] == [(f"{FAULTY}-mean-of-means", "ACC102")], found
