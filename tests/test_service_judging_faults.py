"""What is said of every demo fault while its training is followed, and in the end: what `check` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from accumaudit.demo.faults import FAULTS
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import FAILED, RunReport
from accumaudit.service.judging.judge import Judge, Judgement
from tests.judged import AT_ONCE, judged, portions, same
from tests.trainings import train

if TYPE_CHECKING:
    from tests.processes import Pair

pytestmark = pytest.mark.slow  # it trains every fault of the demo

LOOK_BACK = {"ACC306", "ACC902"}
"""Rules that compare an attempt with others far before it: a short window may not hold those."""

Reports = Mapping[str, RunReport]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> tuple[Path, Reports]:
    """The ledgers of all faults in one folder, and what `check` says of each run."""
    folder = tmp_path_factory.mktemp("faults")
    for name, fault in FAULTS.items():
        train([name], folder / name, fault.ranks[0], pair)
    return folder, {run.run_id: run for run in check_paths([folder]).runs}


@pytest.mark.parametrize(
    ("records", "count"), [pytest.param(100_000, 2, id="all-lines-kept"), pytest.param(400, 3, id="few-kept")]
)
def test_in_the_end_every_rule_says_of_each_fault_what_check_says(
    records: int, count: int, checked: tuple[Path, Reports]
) -> None:
    folder, reports = checked
    said, final = followed(folder, records, count)
    assert final.keys() == reports.keys()
    different = {run: same(reports[run], one.report) for run, one in final.items()}
    assert not {run: lines for run, lines in different.items() if lines}
    for run, one in final.items():
        standing = [view.code for view in one.findings if not view.withdrawn]
        assert sorted(standing) == sorted(verdict.code for verdict in one.report.with_status(FAILED))
        told = [view.code for judgement in said if judgement.run == run for view in judgement.new]
        assert len(told) == len(set(told)), f"{run}: a finding was told twice"
        assert set(standing) <= set(told)
        places = [
            (point.launch, point.optimizer, point.attempt_id)
            for judgement in said
            if judgement.run == run
            for point in judgement.points
        ]
        assert len(places) == len(set(places)), f"{run}: an attempt was told twice"
        if records > 400:
            assert len(places) == reports[run].recorded


def followed(folder: Path, records: int, count: int) -> tuple[list[Judgement], dict[str, Judgement]]:
    """What is said of all runs while their lines come in so many portions; and the last word on each."""
    judge = Judge(folder, limits=replace(AT_ONCE, records=records, slow_beat=60.0))
    try:
        said = [one for chunks in portions(folder, folder, count) for one in judged(judge, chunks)]
        found_live = {view.code for one in said for view in one.new}
        for name in FAULTS:
            judge.finish(name)
        said += judged(judge)
    finally:
        judge.close()
    assert judge.failures == 0
    of_attempts = {rule.code for rule in load_rules().values() if rule.scope != "run"}
    assert {fault.code for fault in FAULTS.values()} & of_attempts - LOOK_BACK <= found_live
    return said, {one.run: one for one in said if one.final}
