"""`accumaudit diff`: real trainings beside each other, and hand-made ledgers in which one field differs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from accumaudit.cli import main
from accumaudit.comparison import By, Comparison
from accumaudit.comparison.comparing import ComparisonError, compare
from accumaudit.comparison.sides import run_of, unnumbered
from accumaudit.ledger.reader import Ledger, read_ledger
from accumaudit.ledger.sources import LedgerError
from accumaudit.outputs.comparison import rendered
from tests.diffed import train
from tests.processes import Pair
from tests.records import write_run

pytestmark = pytest.mark.slow  # trains, and reads two ledgers for each comparison

HOSTILE: Final = "<img src=x onerror=alert(1)> | `x`"

TRAININGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "eight": {},
    "four": {"steps": 4},
    "seed": {"seed": 1, "data_seed": 1},
    "half": {"samples": 8, "steps": 4, "updates": 24},
    "jump": {"jump": 7},
    "double": {"dtype": "float64"},
}


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["diff", *map(str, arguments)], prog_name="accumaudit")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Ledger:
    """All trainings in one ledger."""
    folder = tmp_path_factory.mktemp("trained")
    for name, plan in TRAININGS.items():
        train(folder / name, **plan)
    train(folder / "resumed", updates=12, start=8, state=train(folder / "resumed", updates=8))
    pair.call("tests.diffed:train_here", folder=str(folder / "two-ranks"), steps=4)
    return read_ledger([folder])


class TestTrainings:
    def test_accumulation_8_is_accumulation_4_of_twice_the_batch(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "four")
        assert found.same
        assert (found.by, found.places, found.only) == ("update", 12, (0, 0))
        assert found.verdict[0].startswith(
            "The same update to 1e-06 until update 12, the last that both have;"
        )
        assert "gradient norm at the step" in found.verdict[0]
        assert "digests are of whole micro-batches, and these are of 2 and of 4 samples" in found.data
        assert found.data.endswith("their samples and valid tokens agree at every place.")
        assert [side.micro_steps for side in found.sides] == [8, 4]

    def test_other_seeds_see_other_data(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "seed")
        assert found.verdict[0] == "The data differ, from update 1 on."
        assert found.first is not None
        assert (found.first.field, found.first.at) == ("data_digest", 1)
        assert found.data.endswith("different micro-batches of eight, the record of seed holds none.")

    def test_half_the_batch_is_aligned_by_tokens(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "half")
        assert (found.by, found.axis, found.places) == ("tokens", "valid tokens", 12)
        assert found.first is not None
        assert (found.first.field, found.first.values) == ("updates", (1, 2))
        assert found.first.where == "104 valid tokens (update 1 and updates 1 to 2)"
        assert found.only == (0, 0)
        assert found.data == (
            "Both saw the same micro-batches at all 12 places, "
            "divided into other updates or over other ranks."
        )
        assert "total weight T" in {one.label for one in found.not_compared}

    def test_a_rate_that_jumps_is_the_first_difference(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "jump")
        assert found.first is not None
        assert (found.first.field, found.first.at, found.beside) == ("learning_rate", 7, ())
        assert found.first.relative == pytest.approx(0.5)
        assert {(one.field, one.at) for one in found.later} >= {("loss", 8), ("grad_norm", 8)}
        assert found.verdict[1] == "The same update to 1e-06 until update 6, in all that was compared."
        assert found.data.startswith("Both saw the same data in the same order")

    def test_a_resumed_run_is_the_straight_one(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "resumed", tolerance=0)
        assert found.same
        assert found.verdict[0].startswith("The same update to the last digit until update 12")
        assert found.sides[1].launches == 2

    def test_another_precision_is_the_same_within_a_wider_tolerance(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "double", tolerance=1e-9)
        assert found.first is not None
        assert found.first.at == 1
        assert "loss" in {one.field for one in (found.first, *found.beside)}
        assert compare(trained, "eight", "double", tolerance=1e-4).same

    def test_two_ranks_are_one_of_twice_the_micro_steps(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "two-ranks")
        assert found.same, found.verdict
        assert found.why == "most updates have 8 micro-steps over all ranks, in both runs"
        assert found.data.startswith("Both saw the same micro-batches at all 12 places")

    def test_micro_steps_are_counted_through_updates(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "half", by="micro-step")
        assert found.first is not None
        assert found.first.where == "micro-step 8 (update 1 and updates 1 to 2)"
        with_itself = compare(trained, "half", "half", by="micro-step")
        assert with_itself.same
        assert with_itself.remarks == ("both are the same run",)

    def test_curves_are_those_of_both(self, trained: Ledger) -> None:
        found = compare(trained, "eight", "jump", charts=True)
        rates = [side[0].curve("learning_rate") for side in found.histories]
        assert [rate.y[6] for rate in rates if rate] == pytest.approx([0.01 * 0.98**6, 0.02 * 0.98**6])


def two_runs(folder: Path, first: Any, second: Any) -> Ledger:
    """Two hand-made runs, a and b; each is the arguments of `write_run`, or such a list of its launches."""
    for name, run in (("a", first), ("b", second)):
        for launch in run if isinstance(run, list) else [run]:
            write_run(folder / name, **launch)
    return read_ledger([folder / "a", folder / "b"])


def ledger_of(folder: Path, first: Any, second: Any, **options: Any) -> Comparison:
    """The comparison of two such runs."""
    with two_runs(folder, first, second) as ledger:
        return compare(ledger, "a", "b", **options)


def fields(found: Comparison) -> Sequence[tuple[str, float]]:
    first = () if found.first is None else (found.first,)
    return [(one.field, one.at) for one in (*first, *found.beside, *found.later)]


USUAL: Final[dict[str, Any]] = {"grad_scale": 1024.0, "data_digest": ["f" * 16] * 4}

CHANGES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "rate": ("learning_rate", {"learning_rate": 5e-4, "learning_rates": [5e-4]}),
    "group": ("learning_rates", {"learning_rates": [0.000961538461538462, 1e-5]}),
    "decay": ("weight_decays", {"weight_decays": [0.1]}),
    "loss": ("loss", {"loss": [2.0, 2.0, 2.0, 2.1]}),
    "no-number": ("loss", {"loss": [2.0, 2.0, 2.0, math.nan]}),
    "norm": ("grad_norm", {"grad_norm_after_clip": 0.6}),
    "scale": ("grad_scale", {"grad_scale": 512.0}),
    "samples": ("samples", {"samples": [4, 4, 4, 3]}),
    "tokens": ("valid_tokens", {"valid_tokens": [100.0, 110.0, 120.0, 129.0]}),
    "weight": ("total_weight", {"total_weight": 0.5}),
    "data": ("data_digest", {"data_digest": ["0" * 16] * 4}),
}
"""The field that differs, and what is written in its place, in the fourth of five updates."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A run, and one for each change of it."""
    folder = tmp_path_factory.mktemp("changed")
    write_run(folder / "usual", [USUAL] * 5, ranks=1)
    for name, (_, change) in CHANGES.items():
        write_run(folder / name, [*[USUAL] * 3, USUAL | change, USUAL], ranks=1)
    return read_ledger([folder])


class TestFields:
    @pytest.mark.parametrize("name", CHANGES)
    def test_a_field_that_differs_is_told_at_its_update(self, changed: Ledger, name: str) -> None:
        found = compare(changed, "usual", name)
        assert found.first is not None
        assert (found.first.field, found.first.at) == (CHANGES[name][0], 4)
        assert found.verdict[-1] == "The same update to 1e-06 until update 3, in all that was compared."
        assert not found.same

    def test_one_rank_that_differs_is_seen(self, tmp_path: Path) -> None:
        slow = {"on": {1: {"learning_rate": 1e-5}}}
        found = ledger_of(tmp_path, {"updates": 4}, {"updates": [{}, {}, slow, {}]})
        assert fields(found) == [("learning_rate_min", 3)]

    def test_a_skipped_attempt_stands_before_its_update(self, tmp_path: Path) -> None:
        found = ledger_of(tmp_path, {"updates": 5}, {"updates": [{}, {}, {"skipped": True}, {}, {}, {}]})
        assert fields(found) == [("skips", 3)]
        assert found.places == 5
        assert found.first is not None
        assert found.first.values == (0, 1)

    def test_a_skipped_attempt_moves_the_data_behind_it(self, tmp_path: Path) -> None:
        straight = [{"data_digest": [f"{update:016x}"] * 4} for update in range(5)]
        shifted = [*straight[:2], {**straight[2], "skipped": True}, *straight[3:]]
        runs = [{"updates": run, "ranks": 1} for run in (straight, shifted)]
        found = ledger_of(tmp_path, *runs)
        assert fields(found)[:2] == [("skips", 3), ("data_digest", 3)]
        assert found.data.startswith("Not the same data in the updates that were applied, first at update 3:")

    def test_what_was_skipped_after_the_last_update_is_no_update(self, tmp_path: Path) -> None:
        found = ledger_of(tmp_path, {"updates": 3}, {"updates": [{}, {}, {}, {"skipped": True}]})
        assert found.same
        assert found.only == (0, 0)
        assert found.remarks == ("b: 1 skipped attempt before no recorded update, not compared",)

    def test_data_of_a_rank_without_record_are_not_compared(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{"data_digest": [f"{update:016x}"] * 4} for update in range(3)]
        lacking = [updates[0], {**updates[1], "on": {1: None}}, updates[2]]
        found = ledger_of(tmp_path, {"updates": updates}, {"updates": lacking})
        assert found.same, found.verdict
        assert "data (at 2 of 3 places)" in found.verdict[0]
        assert found.data.endswith("in the same order, at the 2 places of which both have the digests.")

    def test_digests_alone_do_not_prove_other_data(self, tmp_path: Path) -> None:
        def run(digit: str, torch: str) -> dict[str, Any]:
            digests = [f"{digit}{place:015x}" for place in range(4)]
            attempt = {"data_digest": digests, "loss": None}
            return {"updates": [attempt] * 3, "ranks": 1, "versions": {"torch": torch}}

        weak = ledger_of(tmp_path, run("1", "2.13.0"), run("2", "2.13.0+cpu"))
        assert weak.verdict[0] == "The digests of the data differ, from update 1 on."
        assert weak.data.endswith("as another integer type, or on another kind of device.")
        proof = ledger_of(tmp_path / "proof", run("1", "2.13.0+cpu"), run("2", "2.12.0+cpu"))
        assert proof.verdict[0] == "The data differ, from update 1 on."

    def test_losses_that_each_rank_reports_are_not_compared_over_other_ranks(self, tmp_path: Path) -> None:
        apart: dict[str, Any] = {"on": {0: {"reported_loss": 2.0}, 1: {"reported_loss": 3.0}}}
        one: dict[str, Any] = {"reported_loss": 2.0, "on": {1: None}}
        found = ledger_of(tmp_path, {"updates": [apart] * 3}, {"updates": [one] * 3, "recorded_ranks": [0]})
        assert found.same
        assert "reported loss" in {one.label for one in found.not_compared}

    def test_tokens_are_counted_whatever_the_tolerance(self, tmp_path: Path) -> None:
        runs = [{"updates": [{"valid_tokens": [100.0] * 3 + [last]}] * 2} for last in (100.0, 99.0)]
        assert fields(ledger_of(tmp_path, *runs, tolerance=0.02))[0] == ("valid_tokens", 1)

    def test_values_that_are_no_numbers_count_as_the_same_and_are_told(self, tmp_path: Path) -> None:
        runs = [{"updates": [{}, {"grad_norm_after_clip": norm}]} for norm in (math.nan, math.inf)]
        found = ledger_of(tmp_path, *runs)
        assert found.same
        assert found.remarks == (
            "the gradient norm at the step is not finite in both at 1 place, which counts as the same",
        )

    def test_data_in_another_order_is_the_same_update(self, tmp_path: Path) -> None:
        digests = [f"{place:016x}" for place in range(4)]
        runs = [{"updates": [{"data_digest": one}] * 3, "ranks": 1} for one in (digests, digests[::-1])]
        with two_runs(tmp_path, *runs) as ledger:
            found, strict = (compare(ledger, "a", "b", tolerance=tolerance) for tolerance in (1e-6, 0))
        assert found.same
        assert found.data.endswith("the micro-batches of update 1 are the same in another order.")
        assert strict.verdict[0] == "The micro-batches of update 1 are the same in another order."
        assert strict.first is not None
        assert strict.first.values == (digests[0], digests[3])

    def test_data_at_other_places_are_counted(self, tmp_path: Path) -> None:
        digests = [[f"{4 * update + place:016x}" for place in range(4)] for update in range(4)]
        moved = [*digests[:2], digests[3], ["e" * 16] * 4]
        runs = [{"updates": [{"data_digest": one} for one in run], "ranks": 1} for run in (digests, moved)]
        found = ledger_of(tmp_path, *runs)
        assert found.data == (
            "Not the same data, first at update 3: "
            "of the 16 different micro-batches of a, the record of b holds 12."
        )

    def test_digests_of_another_kind_of_device_are_not_compared(self, tmp_path: Path) -> None:
        runs = [{"updates": [{"data_digest": [digit * 16] * 4}] * 3, "ranks": 1} for digit in "12"]
        found = ledger_of(tmp_path, *runs)
        assert found.same
        assert found.data.startswith(
            "Whether both saw the same data is not known: every digest differs though"
        )

    def test_what_one_record_lacks_is_not_compared(self, tmp_path: Path) -> None:
        bare = {"grad_norm_after_clip": None, "loss": None}
        found = ledger_of(tmp_path, {"updates": 3}, {"updates": [{}, bare, bare]})
        assert found.same
        reasons = {one.label: one.reason for one in found.not_compared}
        assert reasons["gradient norm at the step"] == "a alone tells it at 2 places"
        assert reasons["data"] == "neither record tells it"
        assert found.data == "Whether both saw the same data is not known: neither record tells it."
        none = ledger_of(tmp_path / "none", {"updates": 3}, {"updates": [bare] * 3})
        assert {one.label: one.reason for one in none.not_compared}[
            "loss"
        ] == "the record of b does not tell it"
        assert "loss" not in none.verdict[0]

    def test_the_largest_difference_lies_where_both_tell_the_field(self, tmp_path: Path) -> None:
        second = [{"loss": [loss] * 4} for loss in (None, 2.0, 4.0)]
        found = ledger_of(tmp_path, {"updates": 3}, {"updates": second})
        (loss,) = [one for one in found.fields if one.field == "loss"]
        assert (loss.compared, loss.largest, loss.largest_at) == (2, 0.5, "update 3")

    def test_the_tolerance_is_a_share_of_the_larger(self, tmp_path: Path) -> None:
        runs = [{"updates": [{"grad_norm_after_clip": norm}] * 2} for norm in (1.0, 1.001)]
        with two_runs(tmp_path, *runs) as ledger:
            narrow, wide = (compare(ledger, "a", "b", tolerance=tolerance) for tolerance in (1e-6, 0.01))
        assert fields(narrow) == [("grad_norm", 1)]
        assert wide.same
        largest = {one.field: one.largest for one in wide.fields}
        assert largest["grad_norm"] == pytest.approx(0.001 / 1.001)

    def test_weights_in_16_bits_are_known_to_a_hundredth(self, tmp_path: Path) -> None:
        runs = [
            {"updates": [{"weight_dtype": "bfloat16", "total_weight": weight}] * 2} for weight in (1.0, 1.005)
        ]
        assert ledger_of(tmp_path, *runs).same

    def test_bits_of_parameters_count_without_a_tolerance(self, tmp_path: Path) -> None:
        runs = [{"updates": [{"param_digest": digit * 16}] * 2} for digit in "12"]
        with two_runs(tmp_path, *runs) as ledger:
            loose, strict = (compare(ledger, "a", "b", tolerance=tolerance) for tolerance in (1e-6, 0))
        assert loose.same
        assert "The digests of the parameters differ at update 1" in loose.verdict[1]
        assert fields(strict) == [("param_digest", 1)]

    def test_optimizers_are_compared_each(self, tmp_path: Path) -> None:
        def both(rate: float) -> list[dict[str, Any]]:
            return [{"optimizer": 0}, {"optimizer": 1, "learning_rate": rate}]

        optimizers = [{"index": index, "class": "SGD", "name": None} for index in (0, 1)]
        runs = [{"updates": both(rate) * 3, "optimizers": optimizers} for rate in (1e-3, 1e-4)]
        found = ledger_of(tmp_path, *runs)
        assert found.first is not None
        assert found.first.optimizer == 1
        assert found.first.where.endswith("of optimizer 1")


class TestAlignment:
    def test_what_a_later_launch_did_again_is_compared(self, tmp_path: Path) -> None:
        wrong = [{}, {}, {}, {"grad_norm_after_clip": 9.0}]
        resumed = {
            "updates": 3,
            "launch": "bbbb",
            "first_update": 4,
            "started_at": 1.8e9,
            "resumed_from_update": 3,
        }
        found = ledger_of(tmp_path, {"updates": 6}, [{"updates": wrong}, resumed])
        assert found.same, found.verdict
        assert found.remarks == (
            "b: 1 attempt of earlier launches done again by a later one, which is compared",
        )

    def test_numbers_that_start_again_are_counted_through(self, tmp_path: Path) -> None:
        later = {"updates": 3, "launch": "bbbb", "started_at": 1.8e9, "optimizer_state_step_at_attach": 3}
        found = ledger_of(tmp_path, {"updates": 6}, [{"updates": 3}, later])
        assert found.places == 6
        assert "b: the record's own numbers of updates start again" in found.remarks[0]

    def test_a_shorter_run_is_compared_as_far_as_it_goes(self, tmp_path: Path) -> None:
        found = ledger_of(tmp_path, {"updates": 3}, {"updates": 5})
        assert found.same
        assert found.only == (0, 2)
        assert found.verdict[-1] == "The record of b has 2 updates that the other has not."

    def test_records_of_every_third_attempt_are_compared_there(self, tmp_path: Path) -> None:
        found = ledger_of(tmp_path, {"updates": 7}, {"updates": 7, "every": 3})
        assert (found.places, found.only) == (3, (4, 0))
        assert found.same
        assert "until update 7, the last that both have, where both have a record;" in found.verdict[0]
        assert "skipped attempts (at 1 of 3 places)" in found.verdict[0]

    def test_updates_that_cannot_be_counted_are_not_compared(self, tmp_path: Path) -> None:
        later = {"launch": "bbbb", "started_at": 1.8e9, "optimizer_state_step_at_attach": 9}
        gaps: dict[str, Any] = {"updates": 9, "every": 3}
        with pytest.raises(ComparisonError, match="the updates of b cannot be counted"):
            ledger_of(tmp_path, {"updates": 18}, [gaps, {**gaps, **later}])

    def test_a_run_without_updates_is_not_compared(self, tmp_path: Path) -> None:
        with pytest.raises(ComparisonError, match="b has no update"):
            ledger_of(tmp_path, {"updates": 1}, {"updates": 0})

    def test_tokens_that_are_not_all_known_are_not_counted(self, tmp_path: Path) -> None:
        unknown = {"valid_tokens": [100.0, None, 120.0, 130.0], "global_valid_tokens_in_update": None}
        bare = {**unknown, "cumulative_train_tokens": None}
        with pytest.raises(ComparisonError, match="valid tokens cannot be counted from the start of b"):
            ledger_of(tmp_path, {"updates": 2}, {"updates": [bare, bare]}, by="tokens")

    def test_updates_that_end_nowhere_together_are_compared_inside(self, tmp_path: Path) -> None:
        odd = {"valid_tokens": [101.0, 103.0, 107.0, 60.0]}
        found = ledger_of(
            tmp_path, {"updates": 4, "ranks": 1}, {"updates": [odd] * 5, "ranks": 1}, by="tokens"
        )
        assert {one.field for one in found.fields} == {"learning_rate", "weight_decays"}
        assert "too few updates of both end at the same count of valid tokens" in found.remarks[-1]

    def test_no_update_in_common_is_nothing_compared(self, tmp_path: Path) -> None:
        found = ledger_of(tmp_path, {"updates": 3}, {"updates": 2, "first_update": 10})
        assert not found.same
        assert found.verdict[0] == "Nothing was compared: the runs have no update in common."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of which one has another rate, in a folder of theirs."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", 4)
    write_run(folder / HOSTILE, [{}, {}, {"learning_rate": 1e-5}, {}])
    return folder


class TestCommand:
    def test_the_text_and_the_exit_status(self, runs: Path) -> None:
        result = invoke(runs / "a", runs / HOSTILE)
        assert (result.exit_code, result.stderr) == (1, "")
        first = "The first difference is in the learning rate at update 3: 0.000970873786 in a and"
        assert first in result.stdout

    def test_the_memory_of_the_database_is_limited(self, runs: Path) -> None:
        assert invoke(runs / "a", runs / "a", "--memory", "much").exit_code == 2
        small = invoke(runs / "a", runs / "a", "--memory", "1KB")
        assert small.exit_code == 2
        assert "the records cannot be read" in small.stderr

    def test_a_run_is_the_same_as_itself(self, runs: Path) -> None:
        result = invoke(runs / "a", runs / "a", "--memory", "300MB")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "both are the same run" in result.stdout

    def test_json_has_every_field(self, runs: Path) -> None:
        result = invoke(runs / "a", runs / HOSTILE, "--format", "json")
        told = json.loads(result.stdout)
        assert (told["schema"], told["same"], told["by"]) == (1, False, "update")
        assert told["first"]["field"] == "learning_rate"
        assert told["first"]["moments"][0]["attempt_id"] == 3
        assert {one["field"] for one in told["fields"]} >= {"loss", "grad_norm", "skips"}

    def test_names_in_markdown_and_in_the_page_are_text(self, runs: Path, tmp_path: Path) -> None:
        page, text = tmp_path / "diff.html", tmp_path / "diff.md"
        assert invoke(runs / "a", runs / HOSTILE, "-o", page).exit_code == 1
        assert invoke(runs / "a", runs / HOSTILE, "-o", text).exit_code == 1
        assert "<img" not in page.read_text()
        assert "<img" not in text.read_text()
        assert "learning rate at update 3" in page.read_text()
        assert "| learning rate " in text.read_text()

    def test_a_folder_of_several_runs_is_no_run(self, runs: Path) -> None:
        result = invoke(runs, runs / "a")
        assert result.exit_code == 2
        assert "2 runs" in result.stderr
        assert "give the folder or the file of one" in result.stderr
        assert invoke(runs / "a", runs / "none").exit_code == 2
        assert invoke(runs / "a", runs / "a", "--tolerance", "-1").exit_code == 2

    def test_nothing_in_common_is_trouble(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", 3)
        write_run(tmp_path / "b", 3, first_update=100)
        result = invoke(tmp_path / "a", tmp_path / "b")
        assert result.exit_code == 2
        assert "Nothing was compared" in result.stdout

    def test_the_second_run_of_a_folder_has_a_number(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", 3)
        write_run(tmp_path / "a", 3, launch="bbbb", started_at=1.8e9)
        places = [f"{tmp_path / 'a'}#1", f"{tmp_path / 'a'}#2"]
        with read_ledger([unnumbered(place) for place in places]) as ledger:
            assert [run_of(ledger, place) for place in places] == ["a", "a#2"]
            with pytest.raises(LedgerError, match="a#2 is the second run"):
                run_of(ledger, tmp_path / "a")

    def test_every_form_is_the_same_each_time(self, runs: Path) -> None:
        with read_ledger([runs]) as ledger:
            first, second = (compare(ledger, "a", HOSTILE) for _ in range(2))
        assert first == second
        for form in ("text", "markdown", "json"):
            assert rendered(first, form) == rendered(second, form)


def test_logs_of_other_programs_are_compared_by_step(tmp_path: Path) -> None:
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        rows = [f"{step},{3.0 / step},{rate if step > 5 else 1e-3}" for step in range(1, 9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["it,loss,lr", *rows]))
    columns = "step=it,loss=loss,learning_rate=lr"
    result = invoke(tmp_path / "a.csv", tmp_path / "b.csv", "--map", columns)
    assert result.exit_code == 1, result.output
    assert "The first difference is in the learning rate at step 6: 0.001 in a.csv and 0.002" in result.stdout


def test_the_ways_to_count_are_those_of_the_command(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 3)
    ways: tuple[By, ...] = ("tokens", "micro-step")
    for by in ways:
        assert f"Aligned by {by}, 3 places" in invoke(tmp_path / "a", tmp_path / "a", "--by", by).stdout
