"""Rule ACC811: micro-batches that come twice, and the many ways in which that is right."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import Record, write_run
from tests.tables import by_rank
from tests.verdicts import Row, faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC811"
END_OF_DATA = "end_of_data"


def window(*digests: str | None, **more: Any) -> dict[str, Any]:
    """An attempt with these inputs, on each rank that has none of its own."""
    return {"data_digest": list(digests), "microbatches": len(digests), **more}


def ended(*attempts: int, kind: str = END_OF_DATA, ahead: int = 0, **more: Any) -> list[Record]:
    """Marks that the data ended after these attempts, or as many before."""
    return [{"kind": kind, "attempt_id": attempt - ahead, **more} for attempt in attempts]


def distinct(name: str, steps: int = 4) -> list[str]:
    """Inputs that no other window has."""
    return [f"{name}.{step}" for step in range(steps)]


def run_of(folder: Path, updates: Iterable[dict[str, Any]], ranks: int = 1, **more: Any) -> Path:
    """A run of these attempts."""
    return write_run(folder / "run", list(updates), ranks, **more)


class TestWithinAWindow:
    def test_a_batch_that_is_drawn_once_for_a_window_is_found(self, tmp_path: Path) -> None:
        rows = judge(CODE, run_of(tmp_path, [window(*[f"batch {n}"] * 4) for n in range(5)]))
        assert [(row.rank, row.fault, row.severity) for row in rows] == [(0, True, "note")] * 5
        assert (rows[0].observed, rows[0].expected) == (1, 4)
        assert rows[0].message == (
            "3 of 4 micro-steps had an input that this window had used: 1 different micro-batch and not 4"
        )

    def test_one_that_comes_twice_is_found_where_it_does(self, tmp_path: Path) -> None:
        updates = [window(*distinct("a")), window("x", "y", "x", "z"), window(*distinct("b"))]
        row = the_fault(CODE, run_of(tmp_path, updates))
        assert row.attempt == 2
        assert row.message.endswith("had used: 3 different micro-batches and not 4")

    def test_ranks_are_looked_at_one_by_one(self, tmp_path: Path) -> None:
        """The same input on two ranks is another fault."""
        twice = by_rank(window("a", "b", "c"), window("d", "e", "d"))
        same = window("f", "g")
        rows = judge(CODE, run_of(tmp_path, [twice, same], 2))
        assert [(row.attempt, row.rank, row.fault) for row in rows] == [
            (1, 0, False), (1, 1, True), (2, 0, False), (2, 1, False),
        ]  # fmt: skip

    def test_without_epochs_it_is_judged_all_the_same(self, tmp_path: Path) -> None:
        assert faults(CODE, run_of(tmp_path, [window("a", "b", "a", epoch=None)])) == [True]

    def test_passes_that_some_windows_lack_are_found(self, tmp_path: Path) -> None:
        updates = [window("a", "a", "b", "b"), window("c", "c", "d", "d"), window("e", "f", "g", "h")]
        assert faults(CODE, run_of(tmp_path, updates)) == [True, True, False]

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        padding = {"valid_tokens": [100.0, 0.0, 0.0, 100.0]}
        few = random.Random(0)
        cases: dict[str, list[dict[str, Any]]] = {
            "other inputs": [window(*distinct(f"{n}")) for n in range(4)],
            "a constant synthetic batch": [window(*["same"] * 4)] * 6,
            "two by turns": [window("a", "b", "a", "b")] * 6,
            "padding": [window("a", "pad", "pad", "b", **padding), window("c", "pad", "pad", "d", **padding)],
            "draws from a small data set": [window(*few.choices("abcdef", k=4)) for _ in range(40)],
            "a duplicate in a large one": [
                window("x", "x", f"{n}.2", f"{n}.3") if n == 70 else window(*distinct(f"{n}"))
                for n in range(100)
            ],
            "two passes over each batch": [
                *(window(*[f"{n}.1", f"{n}.1", f"{n}.2", f"{n}.2"]) for n in range(3)),
                window("tail", "tail"),
            ],
            "two passes over one batch": [window(*[f"{n}"] * 2) for n in range(3)],
            "long windows of short rows": [
                window(*distinct(f"{n}", 120), *distinct(f"{n}", 8), valid_tokens=[9.0] * 128)
                for n in range(2)
            ],
            "a closure": [window("a", "a", events="(ZFBFB)O")],
        }
        found = {
            case: set(faults(CODE, run_of(tmp_path / str(n), updates)))
            for n, (case, updates) in enumerate(cases.items())
        }
        assert found == {case: set() if case == "a closure" else {False} for case in cases}

    def test_unknown(self, tmp_path: Path) -> None:
        updates = [
            window(None, None),
            window("a", None),
            window("b", "b", valid_tokens=[None, None]),
            {"data_digest": None},
        ]
        assert faults(CODE, run_of(tmp_path, updates)) == [None] * 4
        sums = run_of(tmp_path / "sums", [window("a", "a", "a")], microbatch_detail="sums")
        assert faults(CODE, sums) == [None]


def epochs(count: int, end: Sequence[str], *, shuffle: bool = True) -> list[dict[str, Any]]:
    """Epochs of three windows, the last of which ends with these inputs; {} is the epoch."""
    found = []
    for epoch in range(1, count + 1):
        name = f"epoch {epoch}" if shuffle else "epoch"
        last = [f"{name} last", *(entry.format(name) for entry in end)]
        contents = (distinct(f"{name} 1"), distinct(f"{name} 2"), last)
        found += [window(*digests, epoch=epoch) for digests in contents]
    return found


REFILLED = ("{} 1.0", "{} 1.1")
"""What the epoch began with."""


def faulty(rows: Iterable[Row]) -> list[tuple[int | None, int | None]]:
    """Attempts and ranks of the faults."""
    return [(row.attempt, row.rank) for row in rows if row.fault]


class TestAtTheEndOfAnEpoch:
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_last_window_that_is_filled_up_is_found(self, tmp_path: Path, shuffle: bool) -> None:
        run = run_of(tmp_path, epochs(3, REFILLED, shuffle=shuffle), marks=ended(3, 6, 9))
        rows = judge(CODE, run)
        assert faulty(rows) == [(3, 0), (6, 0), (9, 0)]
        assert (rows[2].severity, rows[2].observed, rows[2].expected) == ("note", 1, 3)
        assert rows[2].message == (
            "2 of the 3 micro-steps of the last window of epoch 1 had inputs that this epoch had used"
        )

    @pytest.mark.parametrize(
        ("marks", "attempts"),
        [
            pytest.param([], [3], id="the last epoch may go on"),
            pytest.param(ended(3, 6, kind="epoch_end"), [3, 6], id="the loop says so"),
            pytest.param(ended(3, 6, ahead=1), [3, 6], id="a loader that looks ahead"),
        ],
    )
    def test_where_an_epoch_ends(self, tmp_path: Path, marks: list[Record], attempts: list[int]) -> None:
        rows = judge(CODE, run_of(tmp_path, epochs(2, REFILLED), marks=marks))
        assert [attempt for attempt, _ in faulty(rows)] == attempts

    def test_a_single_process_needs_no_padding(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, epochs(1, ("{} 1.0",)), marks=ended(3))
        assert faulty(judge(CODE, run)) == [(3, 0)]

    def test_the_padding_of_a_distributed_sampler_passes(self, tmp_path: Path) -> None:
        """Seven batches of one row over four ranks: the last rank gets the first row again."""
        own = [("0", "4"), ("1", "5"), ("2", "6"), ("3", "0")]
        updates = [
            by_rank(*({"data_digest": [rows[place]], "microbatches": 1} for rows in own)) for place in (0, 1)
        ]
        run = run_of(tmp_path, updates, 4, marks=ended(2), accumulation_steps=1)
        assert set(faults(CODE, run)) == {False}

    def test_rows_that_the_loader_says_it_gave_again_are_found(self, tmp_path: Path) -> None:
        """Digests are those of whole micro-batches, and one is seldom filled up with another whole one."""
        updates = [by_rank(window(*distinct(f"{n}a")), window(*distinct(f"{n}b"))) for n in range(4)]
        marks = [*ended(2, repeated_samples=3), *ended(4, repeated_samples=0)]
        rows = [row for row in judge(CODE, run_of(tmp_path, updates, 2, marks=marks)) if row.fault]
        assert [(row.attempt, row.rank, row.severity) for row in rows] == [(2, 1, "note")]
        assert "with 3 rows that this epoch had used" in str(rows[0].message)

    def test_more_than_padding_is_found(self, tmp_path: Path) -> None:
        updates = [
            by_rank(window("a", "b"), window("c", "d")),
            by_rank(window("e", "a"), window("f", "b")),
        ]
        run = run_of(tmp_path, updates, 2, marks=ended(2))
        assert faulty(judge(CODE, run)) == [(2, 0), (2, 1)]

    def test_another_epoch_over_the_same_data_passes(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, epochs(4, (), shuffle=False), marks=ended(3, 6, 9, 12))
        assert set(faults(CODE, run)) == {False}

    def test_a_window_astride_two_epochs_is_in_neither(self, tmp_path: Path) -> None:
        """Ten batches in windows of four: the third window holds 8, 9, 0 and 1."""
        batches = [str(place % 10) for place in range(20)]
        updates = [
            window(*batches[first : first + 4], epoch=1 + (first + 3) // 10) for first in range(0, 20, 4)
        ]
        marks = [{"kind": "epoch_end", "attempt_id": 2, "micro_step_id": 10}, *ended(5)]
        assert set(faults(CODE, run_of(tmp_path, updates, marks=marks))) == {False}

    @pytest.mark.parametrize(
        ("updates", "more"),
        [
            pytest.param(
                [
                    window(*random.Random(n).choices([f"row {row}" for row in range(40)], k=4))
                    for n in range(10)
                ],
                {"marks": ended(10)},
                id="draws with replacement",
            ),
            pytest.param(
                [
                    *[window(*distinct(f"{n}", 3), "pad", valid_tokens=[9.0, 9.0, 9.0, 0.0]) for n in (1, 2)],
                    window("x", "pad", "pad", valid_tokens=[9.0, 0.0, 0.0]),
                ],
                {"marks": ended(3)},
                id="padding",
            ),
            pytest.param([window("same", "same")] * 5, {"marks": ended(5)}, id="a constant batch"),
            pytest.param(epochs(2, REFILLED), {"every": 2}, id="not every attempt is recorded"),
            pytest.param(
                [update | {"epoch": None} for update in epochs(2, REFILLED)],
                {"marks": ended(3, 6)},
                id="epochs are not recorded",
            ),
        ],
    )
    def test_it_leaves_alone(
        self, tmp_path: Path, updates: list[dict[str, Any]], more: dict[str, Any]
    ) -> None:
        assert set(faults(CODE, run_of(tmp_path, updates, **more))) == {False}


def test_ranks_of_one_model_count_once(tmp_path: Path) -> None:
    """The tensor-parallel peer of rank 0 sees what rank 0 sees."""
    peers = {
        rank: {"tensor_rank": rank, "tensor_size": 2, "data_parallel_rank": 0, "data_parallel_size": 1}
        for rank in range(2)
    }
    rows = judge(CODE, run_of(tmp_path, [window("a", "a", "a")], 2, on=peers))
    assert [(row.rank, row.fault) for row in rows] == [(0, True)]


def test_a_second_optimizer_over_the_same_data_says_nothing_more(tmp_path: Path) -> None:
    updates = [window("a", "a", "a", optimizer=optimizer, attempt_id=1) for optimizer in (0, 1)]
    assert [(row.optimizer, row.fault) for row in judge(CODE, run_of(tmp_path, updates))] == [(0, True)]
