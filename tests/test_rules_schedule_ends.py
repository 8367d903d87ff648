"""Rules ACC305 and 808 on hand-made ledgers: where a recorded run and its schedule end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from tests.rates import stable_then, transformers_cosine, transformers_linear
from tests.records import write_run

pytestmark = pytest.mark.slow  # each test reads a folder of runs

TWO_OPTIMIZERS = [{"index": 0, "class": "Muon", "name": None}, {"index": 1, "class": "AdamW", "name": None}]


def updates(rate: Callable[[int], float], count: int, **more: Any) -> list[dict[str, Any]]:
    """Updates at the rate that the schedule had ready for each."""
    return [{"learning_rate": rate(made), "learning_rates": [rate(made)], **more} for made in range(count)]


def found(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Severities and messages of what is found in each run, all read together."""
    for name, run in runs.items():
        write_run(folder / name, ranks=1, **run)
    reports = check_paths([folder], select=["ACC305", "ACC808"]).runs
    assert {report.run_id for report in reports} == {*runs}
    return {
        report.run_id: {
            verdict.code: f"{verdict.severity}: {verdict.finding.message}"
            for verdict in report.with_status(FAILED)
            if verdict.finding is not None
        }
        for report in reports
    }


def run(rate: Callable[[int], float], count: int, **more: Any) -> dict[str, Any]:
    return {"updates": updates(rate, count), **more}


def test_a_schedule_that_ends_with_its_run_is_silent(tmp_path: Path) -> None:
    skipping = updates(transformers_cosine(1e-3, 5, 60), 57)
    skipping[30:30] = [{**skipping[30], "skipped": True}] * 3
    runs = {
        "linear": run(transformers_linear(1e-3, 5, 60), 60, planned_updates=60),
        "cosine": run(transformers_cosine(1e-3, 0, 60), 60),
        "a few updates short": run(transformers_cosine(1e-3, 0, 64), 60),
        "skips": {"updates": skipping, "planned_updates": 60},
        "stable, then down": run(stable_then(lambda done: 1 - done, 1e-3, 5, 90, 30), 90),
        "too short to tell": run(transformers_linear(1e-3, 0, 100), 15, planned_updates=15),
        "constant": run(lambda _: 1e-3, 60, planned_updates=60),
        "still written": run(transformers_cosine(1e-3, 0, 200), 60, planned_updates=200, close=False),
        "unknown": run(lambda made: 1e-3 / (1 + made), 60),
        "restarts": run(lambda made: transformers_cosine(1e-3, 0, 20)(made % 20), 60),
        "cyclic": run(lambda made: 1e-3 * abs(1 - made % 40 / 20), 80, scheduler_class="CyclicLR"),
    }
    assert not {name: messages for name, messages in found(tmp_path, runs).items() if messages}


def test_a_schedule_of_another_length_is_found(tmp_path: Path) -> None:
    half = run(transformers_cosine(1e-3, 0, 120), 60)
    line = transformers_linear(1e-3, 0, 240)
    runs = {
        "longer": half,
        "stopped early": {**half, "marks": [{"kind": "eval", "attempt_id": 60}]},
        "longer line": run(line, 60),
        "longer line to 0": run(line, 60, min_learning_rate=0.0),
        "shorter": run(transformers_linear(1e-3, 0, 40), 60, planned_updates=60),
        "shorter, to a floor": run(lambda made: max(1e-4, transformers_linear(1e-3, 0, 40)(made)), 60),
        "planned so": {**half, "planned_updates": 120},
    }
    ended = "the run ended after 60 updates of a"
    much = "its last rate, 0.0007542, is 75.4 % of the peak"
    assert found(tmp_path, runs) == {
        "longer": {
            "ACC305": f"warning: {ended} cosine schedule of 120: its last rate, 0.0005131, is 51.3 % of the "
            "peak"
        },
        "stopped early": {
            "ACC305": f"note: {ended} cosine schedule of 120: its last rate, 0.0005131, is 51.3 % of the "
            "peak; it ended with an evaluation, as early stopping does"
        },
        "longer line": {"ACC305": f"note: {ended} linear schedule of 240, if it falls to 0: {much}"},
        "longer line to 0": {"ACC305": f"warning: {ended} linear schedule of 240: {much}"},
        "shorter": {
            "ACC305": "warning: the linear schedule ended at update 40 of 60: the last 20 ran at a rate of 0"
        },
        "shorter, to a floor": {},
        # The same that 808 tells.
        "planned so": {"ACC808": "warning: the run finished with 60 of 120 updates"},
    }


def test_a_rate_that_rises_again_is_found(tmp_path: Path) -> None:
    def past_its_end(made: int) -> float:
        return transformers_cosine(1e-3, 0, 30)(made if made <= 30 else 60 - made)

    rises = run(past_its_end, 60)
    text = "the rate rose again: 0.0009973 at update 60, where it had come down to 0 at update 31"
    runs = {
        "a function": {**rises, "scheduler_class": "LambdaLR"},
        "a cosine": {**rises, "scheduler_class": "CosineAnnealingLR"},
        "on purpose": {**rises, "scheduler_class": "CosineAnnealingWarmRestarts"},
    }
    assert found(tmp_path, runs) == {
        "a function": {"ACC305": f"note: {text}; a cycle on purpose looks the same"},
        "a cosine": {"ACC305": f"warning: {text}"},
        "on purpose": {},
    }


def test_a_run_that_stopped_short_is_found(tmp_path: Path) -> None:
    broken = {"kind": "close", "finished": False, "reason": "exception"}
    runs: dict[str, dict[str, Any]] = {
        "finished": {"updates": 6, "planned_updates": 10},
        "nearly": {"updates": 149, "planned_updates": 150},
        "by an exception": {"updates": 6, "planned_updates": 10, "close": False, "marks": [broken]},
        "still written": {"updates": 6, "planned_updates": 10, "close": False},
        "complete": {"updates": 10, "planned_updates": 10},
        "with skips": {"updates": [{}, {"skipped": True}, *[{}] * 8], "planned_updates": 10},
        "more than planned": {"updates": 12, "planned_updates": 10},
        "in micro-steps": {"updates": 6, "planned_updates": 24, "schedule_unit": "micro_steps"},
        "two optimizers": {"updates": 6, "planned_updates": 10, "optimizers": TWO_OPTIMIZERS},
        "stopped early": {"updates": 6, "planned_updates": 10, "marks": [{"kind": "eval", "attempt_id": 6}]},
        "evaluated before": {
            "updates": 6,
            "planned_updates": 10,
            "marks": [{"kind": "eval", "attempt_id": 5}],
        },
    }
    messages = found(tmp_path, runs)
    assert {name: one for name, one in messages.items() if one} == {
        "finished": {"ACC808": "warning: the run finished with 6 of 10 updates"},
        "nearly": {"ACC808": "note: the run finished with 149 of 150 updates"},
        "by an exception": {"ACC808": "note: the run broke off at 6 of 10 updates"},
        "stopped early": {
            "ACC808": "note: the run finished with 6 of 10 updates; "
            "it ended with an evaluation, as early stopping does"
        },
        "evaluated before": {"ACC808": "warning: the run finished with 6 of 10 updates"},
    }


def test_the_last_of_several_launches_counts(tmp_path: Path) -> None:
    later: dict[str, Any] = {"launch": "bbbb", "started_at": 1_700_001_000.0, "first_update": 7}
    folder = write_run(tmp_path / "run", 6, 1, planned_updates=10)
    write_run(folder, 4, 1, planned_updates=10, **later)
    write_run(tmp_path / "short", 6, 1, planned_updates=10)
    write_run(tmp_path / "short", 3, 1, planned_updates=10, **later)
    reports = {report.run_id: report.verdicts for report in check_paths([tmp_path], select=["ACC808"]).runs}
    [complete], [short] = reports["run"], reports["short"]
    assert (complete.status, complete.finding) == ("passed", None)
    assert short.finding is not None
    assert short.finding.message == "the run finished with 9 of 10 updates"


def test_attempts_without_a_record_count_as_done(tmp_path: Path) -> None:
    """Every second attempt is recorded: the last one and a skip among the others have no record."""
    skipping = [{"skipped": attempt == 4} for attempt in range(1, 11)]
    runs: dict[str, dict[str, Any]] = {
        "as planned": {"updates": 10, "planned_updates": 10, "every": 2},
        "with a skip": {"updates": skipping, "planned_updates": 10, "every": 2},
        "short": {"updates": 8, "planned_updates": 10, "every": 2},
    }
    messages = found(tmp_path, runs)
    assert {name: one for name, one in messages.items() if one} == {
        "short": {"ACC808": "warning: the run finished with 8 of 10 updates"},
    }
