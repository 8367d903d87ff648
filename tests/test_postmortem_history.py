"""The curves of a post-mortem: few points, every peak, gaps where values are missing, an axis that never goes
back."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.findings import RunReport
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import Ledger, read_ledger
from accumaudit.postmortem import history
from accumaudit.postmortem.history import COLUMNS, LABELS, NEAR, histories
from accumaudit.postmortem.model import Curve, History, Moment
from tests.benchmarks.long_ledgers import OVERFLOW, Size, spike_of, write_long
from tests.records import write_run

pytestmark = pytest.mark.slow  # a run of many thousand updates

LONG = Size(attempts=30_000, ranks=1)
HALF = LONG.attempts // 2
OPTIMIZERS = [{"index": 0, "class": "AdamW", "name": None}, {"index": 1, "class": "SGD", "name": "critic"}]


@dataclass(frozen=True)
class Runs:
    """Runs that were read together."""

    ledger: Ledger
    reports: Mapping[str, RunReport]

    def drawn(self, name: str, *marked: Moment) -> tuple[History, ...]:
        return histories(self.ledger.connection, self.reports[name], marked)

    def curve(self, name: str, field: str) -> Curve:
        (only,) = self.drawn(name)
        curve = only.curve(field)
        assert curve is not None
        return curve


def losses(value: float | None) -> dict[str, Any]:
    return {"loss": [value] * 4}


def second_optimizer(folder: Path) -> None:
    """Give every other attempt of a run to another optimizer."""
    for file in folder.rglob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["record"] == "update" and line["attempt_id"] % 2 == 0:
                line |= {"optimizer": 1, "attempt_id": line["attempt_id"] // 2, "optimizer_update_id": 1}
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_runs(folder: Path) -> None:
    write_long(folder / "long", LONG)
    gone = {"on": {0: None}}
    write_run(folder / "gaps", [{}] * 5 + [losses(None)] * 2 + [{}] * 5 + [gone] * 3 + [{}] * 5, 1)
    tenth = [{"reported_loss": 3.0 if n % 10 == 0 else None, **losses(None)} for n in range(60)]
    write_run(folder / "tenth", tenth, 1)
    write_run(folder / "every", 60, 1, every=10)
    nan = {"grad_norm_after_clip": math.inf}
    write_run(folder / "broken", [{}, losses(math.nan), nan, nan | {"skipped": True}, {}], 1)
    huge = {"loss_weight": [1e200] * 4, "loss_weight_sq": [1e300] * 4}
    write_run(folder / "huge", [{}, huge, {}], 1)
    write_run(folder / "storm", [{}] * 10 + [{"skipped": True, "grad_scale": 2.0**-n} for n in range(10)], 1)
    saved = {"kind": "checkpoint", "rank": 0, "attempt_id": 7}
    marks = [saved | {"name": "kept.pt"}, saved | {"name": "left.pt", "attempt_id": 10}]
    write_run(folder / "resumed", 10, 1, marks=marks, close=False)
    again: dict[str, Any] = {
        "launch": "bbbb",
        "first_update": 8,
        "resumed_from_update": 7,
        "started_at": 1_700_010_000.0,
    }
    write_run(folder / "resumed", 5, 1, **again)
    write_run(folder / "two", 10, 1, optimizers=OPTIMIZERS)
    second_optimizer(folder / "two")
    write_run(folder / "empty", 0, 1)
    log = [{"step": step, "loss": 2.5, "learning_rate": 1e-4} for step in range(10, 110, 10)]
    (folder / "foreign").mkdir()
    (folder / "foreign" / "trainer_state.json").write_text(
        json.dumps({"log_history": log, "global_step": 100, "max_steps": 100})
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("history")
    write_runs(folder)
    with read_ledger([folder]) as ledger:
        report = audit(ledger, load_rules(), select=["ACC804"])
        yield Runs(ledger, {run.run_id.partition("/")[0]: run for run in report.runs})


class TestPeaks:
    def test_one_update_of_many_thousand_is_seen(self, runs: Runs) -> None:
        curve = runs.curve("long", "grad_norm_before")
        spike = spike_of(LONG)
        assert (spike - spike // OVERFLOW, 50.0) in list(zip(curve.x, curve.y, strict=True))
        assert len(curve.x) <= 2 * COLUMNS

    def test_the_points_are_bounded_and_in_order(self, runs: Runs) -> None:
        (drawn,) = runs.drawn("long")
        assert drawn.attempts == LONG.attempts
        for curve in drawn.curves:
            assert list(curve.x) == sorted(curve.x)
            assert len(curve.x) <= 2 * COLUMNS + 10

    def test_every_attempt_beside_a_marked_moment_is_there(self, runs: Runs) -> None:
        """Over the end of a launch too."""
        first = HALF - HALF // OVERFLOW + 1
        moment = Moment(launch=2, attempt_id=1, number=first)
        (drawn,) = runs.drawn("long", moment)
        loss = drawn.curve("loss")
        assert loss is not None
        beside = [x for x in loss.x if abs(x - first) <= NEAR - 2]
        assert [*dict.fromkeys(beside)] == list(range(first - NEAR + 2, first + NEAR - 1))
        assert drawn.places == ((moment, first),)
        assert len(loss.x) <= 2 * COLUMNS + 2 * NEAR + 10

    def test_a_level_line_is_its_ends(self, runs: Runs) -> None:
        curve = runs.curve("long", "accumulation_steps")
        assert curve.y == (4.0, 4.0)
        assert (curve.x[0], curve.x[1]) == (1, LONG.attempts - LONG.attempts // OVERFLOW)

    def test_values_have_seven_digits(self, runs: Runs) -> None:
        curve = runs.curve("long", "learning_rate")
        assert all(value == float(f"{value:.7g}") for value in curve.y if value is not None)

    def test_it_is_the_same_each_time(self, runs: Runs) -> None:
        """The first of equal values is drawn, whichever thread has found it."""
        assert runs.drawn("long") == runs.drawn("long")

    def test_skips_are_told_over_the_whole_run(self, runs: Runs) -> None:
        (drawn,) = runs.drawn("long")
        wanted = [float(k - k // OVERFLOW) for k in range(OVERFLOW, LONG.attempts + 1, OVERFLOW)]
        assert list(drawn.skipped) == wanted


class TestGaps:
    def test_what_is_missing_is_a_gap(self, runs: Runs) -> None:
        """Losses that were not recorded, and records that are not there."""
        curve = runs.curve("gaps", "loss")
        assert list(zip(curve.x, curve.y, strict=True)) == [
            *((1, 2.0), (5, 2.0), (6.5, None), (8, 2.0), (12, 2.0), (14.0, None), (16, 2.0), (20, 2.0))
        ]

    def test_a_value_in_every_so_many_attempts_is_a_line(self, runs: Runs) -> None:
        assert runs.curve("tenth", "loss").y == (3.0, 3.0)
        assert runs.curve("every", "loss").y == (2.0, 2.0)
        assert None not in runs.curve("every", "learning_rate").y

    def test_a_value_that_is_none_is_a_place(self, runs: Runs) -> None:
        """A norm that overflowed in a step that was skipped is what skips are for."""
        loss, norm = runs.curve("broken", "loss"), runs.curve("broken", "grad_norm_after")
        assert loss.nonfinite == (2.0,)
        assert norm.nonfinite == (3.0,)
        assert all(value is None or math.isfinite(value) for curve in (loss, norm) for value in curve.y)

    def test_a_number_that_overflows_is_left_out(self, runs: Runs) -> None:
        """The square of a huge weight is none."""
        (drawn,) = runs.drawn("huge")
        assert {
            one for curve in drawn.curves for one in curve.y if one is not None and not math.isfinite(one)
        } == set()
        assert max(y for y in runs.curve("huge", "total_weight").y if y is not None) == 4e200

    def test_what_is_not_known_is_no_curve(self, runs: Runs) -> None:
        (drawn,) = runs.drawn("foreign")
        assert [curve.name for curve in drawn.curves] == ["loss", "learning_rate"]

    def test_a_run_without_updates_has_no_history(self, runs: Runs) -> None:
        assert runs.drawn("empty") == ()


class TestAxis:
    def test_updates_are_counted(self, runs: Runs) -> None:
        (drawn,) = runs.drawn("resumed")
        assert drawn.axis == "update"
        assert drawn.launches == ((8.0, "launch 2, resumed from update 7"),)

    def test_a_log_has_steps(self, runs: Runs) -> None:
        (drawn,) = runs.drawn("foreign")
        assert (drawn.axis, drawn.curves[0].x) == ("step", (10.0, 100.0))

    def test_a_storm_of_skips_is_drawn_by_attempts(self, runs: Runs) -> None:
        """All of them have the number of one update."""
        (drawn,) = runs.drawn("storm", Moment(launch=1, attempt_id=12, number=10))
        assert drawn.axis == "attempt"
        assert drawn.skipped == tuple(range(11, 21))
        scale = drawn.curve("grad_scale")
        assert scale is not None
        assert scale.x == tuple(range(11, 21))
        assert drawn.place(Moment(launch=1, attempt_id=12, number=10)) == 12.0

    def test_optimizers_have_histories_of_their_own(self, runs: Runs) -> None:
        first, second = runs.drawn("two", Moment(launch=1, attempt_id=2, optimizer=1, number=1))
        assert (first.title, second.title) == ("optimizer 0, AdamW", "optimizer 1, SGD (critic)")
        assert (first.axis, second.axis) == ("update", "attempt")
        assert (first.places, [x for _, x in second.places]) == ((), [2.0])

    def test_what_was_done_again_is_not_drawn(self, runs: Runs) -> None:
        """Nor is a checkpoint of it."""
        (drawn,) = runs.drawn("resumed")
        assert drawn.checkpoints == ((7.0, "kept.pt"),)
        assert drawn.attempts == 12

    def test_only_the_marks_nearest_to_the_moments_are_shown(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "MARKS", 1)
        end = LONG.attempts - LONG.attempts // OVERFLOW
        early, late = Moment(launch=1, attempt_id=5, number=5), Moment(launch=2, attempt_id=HALF, number=end)
        (near_start,), (near_end,) = runs.drawn("long", early), runs.drawn("long", late)
        assert [x for x, _ in near_start.checkpoints] == [HALF - HALF // OVERFLOW]
        assert [x for x, _ in near_end.checkpoints] == [end]

    def test_the_last_checkpoint_before_a_moment_is_among_them(
        self, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However near the next one is."""
        monkeypatch.setattr(history, "MARKS", 1)
        end = LONG.attempts - LONG.attempts // OVERFLOW
        (drawn,) = runs.drawn("long", Moment(launch=2, attempt_id=HALF - 1, number=end - 1))
        assert [x for x, _ in drawn.checkpoints] == [HALF - HALF // OVERFLOW]


def test_every_field_of_a_ledger_is_drawn(runs: Runs) -> None:
    (drawn,) = runs.drawn("long")
    assert [curve.name for curve in drawn.curves] == list(LABELS)
    assert all(itertools.chain.from_iterable((curve.label, curve.x) for curve in drawn.curves))


def test_nothing_is_left_in_the_database(runs: Runs) -> None:
    runs.drawn("gaps")
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'drawn'"
    assert runs.ledger.connection.execute(tables).fetchall() == [(0,)]
