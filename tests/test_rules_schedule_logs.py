"""Rules ACC305 to 309 and 808 on logs: what the schedule and its end tell from the rates alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accumaudit import schedules
from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED, Verdict
from accumaudit.ledger.reader import read_ledger
from tests.rates import Logged, logged, transformers_cosine, transformers_linear

pytestmark = pytest.mark.slow  # each test reads a folder of logs

COSINE = transformers_cosine(1e-4, 0, 2_000)
WARM = transformers_linear(1e-4, 200, 2_000)
CODES = ("ACC305", "ACC306", "ACC307", "ACC308", "ACC309", "ACC808")


@dataclass
class Log:
    """A log in the form of LLaMA-Factory, and what lies beside it."""

    rows: Logged
    planned: int | None = 2_000
    finished: bool = True
    end: int | None = None
    """The last step, where it has no record."""
    epochs: int | None = None
    """Updates of each, where it tells them."""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        last = self.end or self.rows[-1][0]
        lines: list[dict[str, Any]] = []
        for place, (step, rate) in enumerate(self.rows):
            loss = 2.0 + 0.01 * (place % 7)
            line = {"current_steps": step, "total_steps": self.planned, "loss": loss, "lr": rate}
            lines.append(line | ({"epoch": step / self.epochs} if self.epochs else {}))
        if self.finished:
            lines.append({"current_steps": last, "total_steps": self.planned})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "trainer_log.jsonl").write_text(text)
        if self.arguments:
            (folder / "training_args.json").write_text(json.dumps(dict(self.arguments)))


def verdicts(folder: Path, logs: Mapping[str, Log]) -> dict[str, dict[str, Verdict]]:
    """What the rules say of each log, all read together."""
    for name, log in logs.items():
        log.write(folder / name)
    found: dict[str, dict[str, Verdict]] = {}
    for run in check_paths([folder], select=CODES).runs:
        name = Path(run.path).relative_to(folder).parts[0]
        assert name not in found, "one run in each log"
        found[name] = {verdict.code: verdict for verdict in run.verdicts}
    assert {*found} == {*logs}
    return found


def findings(folder: Path, logs: Mapping[str, Log]) -> dict[str, dict[str, str]]:
    """Severities and messages of the findings alone."""
    return {
        name: {
            code: f"{verdict.severity}: {verdict.finding.message}"
            for code, verdict in by_code.items()
            if verdict.status == FAILED and verdict.finding is not None
        }
        for name, by_code in verdicts(folder, logs).items()
    }


def ten_to(last: int, rate: float) -> Logged:
    return [(step, rate) for step in range(10, last + 1, 10)]


def test_honest_logs_are_silent(tmp_path: Path) -> None:
    logs = {
        "cosine": Log(logged(COSINE, 2_000)),
        "warm-up": Log(logged(WARM, 2_000)),
        "the rate that was used": Log(logged(WARM, 2_000, habit=1)),
        "constant": Log(ten_to(2_000, 1e-4), arguments={"lr_scheduler_type": "constant"}),
        "16 updates short": Log(logged(transformers_linear(1e-4, 0, 4_016), 4_000), planned=4_000),
        "restarts": Log(logged(lambda step: COSINE(step % 500 * 4), 2_000)),
        "a warm-up of one step": Log(
            logged(transformers_cosine(1e-4, 1, 20), 20, every=1, habit=1),
            planned=20,
            arguments={"lr_scheduler_type": "cosine", "warmup_steps": 1, "learning_rate": 1e-4},
        ),
        "the end far behind the last record": Log(
            logged(transformers_cosine(1e-4, 0, 88), 88),
            planned=88,
            end=88,
            arguments={"lr_scheduler_type": "cosine", "warmup_steps": 0, "learning_rate": 1e-4},
        ),
        "no end is told": Log(
            logged(transformers_cosine(1e-4, 0, 88), 88),
            planned=88,
            finished=False,
            arguments={"lr_scheduler_type": "cosine", "warmup_steps": 0, "learning_rate": 1e-4},
        ),
        "the end between two records": Log(logged(transformers_cosine(1e-4, 0, 2_004), 2_004), planned=2_004),
    }
    assert not {name: found for name, found in findings(tmp_path, logs).items() if found}


def test_skips_are_counted_and_placed(tmp_path: Path) -> None:
    many = range(100, 1_800, 200)
    logs = {
        "two": Log(logged(COSINE, 2_000, skips=(515, 1_238))),
        "one": Log(logged(COSINE, 2_000, skips=(1_238,))),
        "early": Log(logged(WARM, 2_000, skips=(3, 6, 77))),
        "many": Log(logged(COSINE, 2_000, skips=many)),
    }
    found = {name: messages["ACC309"] for name, messages in findings(tmp_path, logs).items()}
    assert found["two"] == (
        "note: 2 skips: between 510 and 520, between 1,230 and 1,240; the schedule moved less than the "
        "counter by as much, as it does where a scaler skips: at step 2,000 the cosine schedule of 2,000 "
        "steps stands at 1,998"
    )
    assert found["one"].startswith("note: 1 skip: between 1,230 and 1,240; ")
    assert found["early"].startswith("note: 3 skips: 2 by 10, between 70 and 80; ")
    assert found["early"].endswith(
        "; one fewer if the log writes the rate that was used and not the next one"
    )
    assert found["many"].startswith("note: 9 skips: between 90 and 100, between 290 and 300")
    assert " and in 3 more places; " in found["many"]


def test_skips_are_not_told_where_no_schedule_is_known(tmp_path: Path) -> None:
    logs = {
        "short": Log(logged(COSINE, 150, skips=(55,)), finished=False),
        "exponential": Log([(step, 1e-4 * 0.999**step) for step in range(10, 2_001, 10)]),
    }
    for by_code in verdicts(tmp_path, logs).values():
        verdict = by_code["ACC309"]
        assert verdict.status == "not_checked"
        assert verdict.reason == "no schedule is declared or recognised whose rates tell positions"


def test_a_schedule_of_another_length_than_the_run_is_found(tmp_path: Path) -> None:
    over = Log(logged(transformers_linear(1e-4, 0, 1_000), 2_000))
    half = Log(logged(transformers_cosine(1e-4, 0, 4_000), 2_000))
    line = Log(logged(transformers_linear(1e-4, 0, 4_000), 2_000))
    logs = {"over": over, "half": half, "line": line}
    found = findings(tmp_path, logs)
    assert found == {
        "over": {
            "ACC305": "warning: the linear schedule ended at update 1,000 of 2,000: the last 1,000 ran at a "
            "rate of 0"
        },
        "half": {
            "ACC305": "warning: the run ended after 2,000 updates of a cosine schedule of 4,000: its last "
            "rate, 5e-05, is 50 % of the peak"
        },
        "line": {
            "ACC305": "note: the run ended after 2,000 updates of a linear schedule of 4,000, if it falls to "
            "0: its last rate, 5e-05, is 50 % of the peak"
        },
    }


def test_a_second_rise_is_found(tmp_path: Path) -> None:
    past = transformers_cosine(1e-4, 0, 1_000)
    rows = logged(lambda step: past(step) if step <= 1_000 else past(2_000 - step), 2_000)
    declared = {"lr_scheduler_type": "cosine"}
    restarts = {"lr_scheduler_type": "cosine_with_restarts"}
    logs = {
        "undeclared": Log(rows),
        "declared": Log(rows, arguments=declared),
        "on purpose": Log(rows, arguments=restarts),
        "a little": Log(rows[:105], planned=1_000),
    }
    found = findings(tmp_path, logs)
    text = "the rate rose again: 0.0001 at update 2,000, where it had come down to 0 at update 1,000"
    assert found == {
        "undeclared": {"ACC305": f"note: {text}; a cycle on purpose looks the same"},
        "declared": {"ACC305": f"warning: {text}"},
        "on purpose": {},
        "a little": {},
    }


def test_a_run_that_stopped_short_is_found(tmp_path: Path) -> None:
    logs = {
        "far": Log(logged(COSINE, 1_505, every=5)),
        "an epoch before its end": Log(logged(COSINE, 1_500), end=1_505, epochs=500),
        "by one": Log(logged(COSINE, 1_999, every=1)),
        "between two records": Log(logged(COSINE, 1_990), planned=1_995),
        "without an end": Log(logged(COSINE, 1_000), finished=False),
        "without a plan": Log(ten_to(1_000, 1e-4), planned=None),
    }
    found = findings(tmp_path, logs)
    assert found == {
        "far": {"ACC808": "warning: the run finished with 1,505 of 2,000 updates"},
        "an epoch before its end": {
            "ACC808": "warning: the run finished with 1,505 of 2,000 updates, epoch 3 at 1,500"
        },
        "by one": {"ACC808": "note: the run finished with 1,999 of 2,000 updates"},
        "between two records": {},
        "without an end": {"ACC808": "note: the record ends at 1,000 of 2,000 updates"},
        "without a plan": {},
    }


def state(
    folder: Path, *, steps: int, planned: int, epochs: int, epoch: float, finished: bool = True
) -> None:
    """A `trainer_state.json` with its arguments beside it."""
    folder.mkdir(parents=True)
    per_epoch = steps / epoch
    history: list[dict[str, Any]] = [
        {
            "epoch": round(step / per_epoch, 2),
            "step": step,
            "loss": 1.0 + step % 70 / 100,
            "learning_rate": 1e-4,
        }
        for step in range(10, steps + 1, 10)
    ]
    if finished:
        history.append({"epoch": round(epoch, 2), "step": steps, "train_loss": 1.0, "train_runtime": 9.0})
    whole = {"epoch": epoch, "global_step": steps, "max_steps": planned, "num_train_epochs": epochs}
    (folder / "trainer_state.json").write_text(json.dumps({**whole, "log_history": history}, indent=1))
    arguments = {"gradient_accumulation_steps": 4, "num_train_epochs": epochs}
    (folder / "training_args.json").write_text(json.dumps(arguments))


def test_epochs_that_are_missing_are_explained(tmp_path: Path) -> None:
    # 807 micro-batches at 4: 201 whole windows an epoch, and 201.75 that the loop makes of them.
    state(tmp_path / "tails", steps=2_010, planned=2_010, epochs=10, epoch=2_010 * 4 / 807)
    state(tmp_path / "even", steps=2_000, planned=2_000, epochs=10, epoch=10.0)
    # The last record is of update 50, and epoch 4.55.
    state(tmp_path / "behind the last record", steps=55, planned=55, epochs=5, epoch=5.0)
    # The plan is one of updates, and the epochs follow from it.
    state(tmp_path / "updates", steps=2_000, planned=2_000, epochs=10, epoch=9.3)
    state(tmp_path / "checkpoint", steps=1_000, planned=2_010, epochs=10, epoch=4_000 / 807, finished=False)
    state(tmp_path / "under one update", steps=2_010, planned=2_010, epochs=10, epoch=2_010 / 201.05)
    runs = {
        Path(run.path).parent.name: run.verdicts for run in check_paths([tmp_path], select=["ACC808"]).runs
    }
    found = {name: verdict.finding and verdict.finding.message for name, [verdict] in runs.items()}
    assert found == {
        "tails": "9.96 of 10 epochs: 807 micro-batches are no multiple of 4, and 2,010 updates of 4 take "
        "8,040 of 8,070",
        "even": None,
        "behind the last record": None,
        "updates": None,
        "checkpoint": None,
        "under one update": None,
    }
    assert {name: verdict.status for name, [verdict] in runs.items() if verdict.finding is None} == {
        "even": "passed",
        "behind the last record": "passed",
        "updates": "passed",
        "checkpoint": "not_checked",
        "under one update": "passed",
    }


def test_a_rate_that_stays_where_the_declared_schedule_moves_is_found(tmp_path: Path) -> None:
    linear = {"lr_scheduler_type": "linear", "learning_rate": 1e-4, "warmup_steps": 0}
    logs = {
        "stays": Log(ten_to(2_000, 1e-4), arguments=linear),
        "so far": Log(ten_to(1_000, 1e-4), arguments=linear, finished=False),
        "moves": Log(logged(transformers_linear(1e-4, 0, 2_000), 2_000), arguments=linear),
        "undeclared": Log(ten_to(2_000, 1e-4)),
    }
    found = {name: by_code["ACC307"] for name, by_code in verdicts(tmp_path, logs).items()}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "stays": "failed",
        "so far": "not_checked",
        "moves": "passed",
        "undeclared": "not_checked",
    }
    finding = found["stays"].finding
    assert finding is not None
    assert (found["stays"].severity, finding.message) == (
        "warning",
        "the rate is 0.0001 in all 200 records up to step 2,000, where the declared linear schedule of 2,000 "
        "updates falls to 0 % of its peak by then; what was declared may be another run's",
    )


def test_a_log_that_begins_at_the_peak_of_a_declared_warm_up_is_found(tmp_path: Path) -> None:
    declared = {"lr_scheduler_type": "linear", "learning_rate": 1e-4, "warmup_steps": 200}
    without = logged(transformers_linear(1e-4, 0, 2_000), 2_000)
    logs = {
        "no warm-up": Log(without, arguments=declared),
        "warm-up": Log(logged(WARM, 2_000), arguments=declared),
        "begins behind it": Log([row for row in without if row[0] > 150], arguments=declared),
        "short": Log(without, arguments={**declared, "warmup_steps": 15}),
    }
    found = {name: by_code["ACC308"] for name, by_code in verdicts(tmp_path, logs).items()}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "no warm-up": "failed",
        "warm-up": "passed",
        "begins behind it": "not_checked",
        "short": "not_checked",
    }
    finding = found["no warm-up"].finding
    assert finding is not None
    assert finding.message.startswith("the first logged update, 10, ran at 9.95e-05, ")


def resumed(after: Logged) -> Log:
    """A log in which a second launch goes on after step 1,000; the first came to 1,200."""
    return Log([*logged(COSINE, 1_200), *after])


def test_rates_after_a_resume_are_held_against_those_before(tmp_path: Path) -> None:
    second: Sequence[int] = range(1_010, 2_001, 10)
    logs = {
        "goes on": resumed([(step, COSINE(step)) for step in second]),
        "after a skip": resumed([(step, COSINE(step - 1)) for step in second]),
        "too far": resumed([(step, COSINE(step + 100)) for step in second][:-10]),
        "begins again": resumed([(step, COSINE(step - 1_000)) for step in second]),
        "another": resumed([(step, transformers_cosine(1e-4, 0, 3_000)(step)) for step in second]),
    }
    found = {name: by_code["ACC306"] for name, by_code in verdicts(tmp_path, logs).items()}
    messages = {
        name: verdict.finding and f"{verdict.severity}: {verdict.finding.message}"
        for name, verdict in found.items()
    }
    stands = "error: resumed after step 1,000; by its rate at step 1,010 the schedule stands at"
    assert messages == {
        "goes on": None,
        "after a skip": None,
        "too far": f"{stands} 1,110 where 1,010 was due: 100 too far",
        "begins again": f"{stands} 10 where 1,010 was due: 1,000 back, so it has begun again",
        "another": "warning: resumed after step 1,000 with another schedule, cosine of 3,000 updates from "
        "0.0001, where it was cosine of 2,000 updates from 0.0001; a second stage that is not declared looks "
        "the same",
    }


def test_of_very_many_rates_every_so_many_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "LOGGED", 60)
    Log(logged(COSINE, 2_000, skips=(515, 1_238))).write(tmp_path / "run")
    with read_ledger([tmp_path]) as ledger:
        query = "SELECT attempt_id, lag FROM positions WHERE position IS NOT NULL ORDER BY attempt_id"
        rows = ledger.connection.execute(query).fetchall()
    assert 40 <= len(rows) <= 60
    assert [lag for _, lag in rows] == [(step >= 515) + (step >= 1_238) for step, _ in rows]
