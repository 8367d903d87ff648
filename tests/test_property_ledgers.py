"""Five hundred generated trainings: nothing is found in them, and what is planted into them is."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED, AuditReport
from accumaudit.outputs import json_report
from accumaudit.outputs.results import Options
from tests.generated import planted_order, planted_weights
from tests.generated.plans import Ending, draw
from tests.generated.scene import PLANTERS, Scene
from tests.generated.simulation import simulate, write

pytestmark = pytest.mark.slow  # five hundred ledgers are written and judged, twice

TRAININGS: Final = 500
CATALOGUES: Final = (planted_order, planted_weights)
"""The modules that enter the planters."""


def written(folder: Path, seeds: Iterable[int]) -> AuditReport:
    """Audit the healthy runs of these seeds, all together."""
    for seed in seeds:
        plan = draw(seed)
        write(plan, simulate(plan), folder / f"run-{seed:03d}")
    return check_paths([folder])


def test_nothing_is_found_in_healthy_trainings(tmp_path: Path) -> None:
    report = written(tmp_path, range(TRAININGS))
    assert len(report.runs) == TRAININGS
    found = [
        f"{run.run_id} {verdict.code}: {verdict.finding.message}"
        for run in report.runs
        for verdict in run.with_status(FAILED)
        if verdict.finding is not None and verdict.severity != "note"
    ]
    assert found == []
    assert report.summary()["broken"] == 0
    passed = Counter(
        verdict.code for run in report.runs for verdict in run.verdicts if verdict.status == "passed"
    )
    assert {code for code in PLANTERS if code not in ("ACC107", "ACC505", "ACC604")} <= {*passed}


def planted(seeds: Iterable[int]) -> Iterator[tuple[Scene, str, int]]:
    """The trainings of these seeds with a fault each: of those that fit, the one planted least often."""
    often = dict.fromkeys(sorted(PLANTERS), 0)
    for seed in seeds:
        plan = draw(seed)
        # A fault must have been recorded to be found.
        ending: Ending = "killed" if plan.ending in ("cut", "torn") else plan.ending
        plan = replace(plan, absent="none", every=1, detail="full", ending=ending)
        scene = Scene(plan, simulate(plan), random.Random(seed))
        for code in sorted(often, key=often.__getitem__):
            first = PLANTERS[code](scene)
            if first is not None:
                often[code] += 1
                yield scene, code, first
                break


def test_every_planted_fault_is_found(tmp_path: Path) -> None:
    expected = {}
    for scene, code, first in planted(range(TRAININGS)):
        run = f"run-{scene.plan.seed:03d}"
        write(scene.plan, scene.launches, tmp_path / run)
        expected[run] = (code, first)
    assert len(expected) == TRAININGS
    assert {code for code, _ in expected.values()} == {*PLANTERS}
    missed = []
    for report in check_paths([tmp_path]).runs:
        code, first = expected[report.run_id]
        verdict = next(verdict for verdict in report.verdicts if verdict.code == code)
        seen = verdict.finding.examples[0].attempt_id if verdict.finding else None
        if verdict.finding is None or (first and seen != first):
            missed.append(
                f"{report.run_id} {code} from attempt {first}: {verdict.status} {verdict.reason} {seen}"
            )
    assert missed == []


def told(folder: Path) -> dict[str, Any]:
    """The JSON report without the names of files; sums over ranks have their last digits in any order."""
    text = json_report.rendered(check_paths([folder]), Options())
    report: dict[str, Any] = json.loads(text, parse_float=lambda number: round(float(number), 9))
    for run in report["runs"]:
        for verdict in run["verdicts"]:
            for example in (verdict["finding"] or {"examples": []})["examples"]:
                example.pop("file")
                example.pop("line")
        run["unreadable"] = sorted(one["why"] for one in run["unreadable"])
        run["path"] = Path(run["path"]).name
    return report


def shuffle(folder: Path) -> None:
    """Put lines and files in another order; the run line stays at the head, where it begins the launch."""
    for number, file in enumerate(sorted(folder.rglob("*.jsonl"), reverse=True)):
        head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        random.Random(number).shuffle(lines)
        file.write_text("".join([head, *lines]), encoding="utf-8")
        file.rename(file.with_name(f"{number:05d}.jsonl"))


def test_the_order_of_files_and_records_changes_nothing(tmp_path: Path) -> None:
    for scene, code, _ in planted(range(40)):
        if code != "ACC806":  # of two records of an attempt the first is kept
            write(scene.plan, scene.launches, tmp_path / f"{scene.plan.seed}")
    before = told(tmp_path)
    shuffle(tmp_path)
    assert told(tmp_path) == before
