"""Rule ACC608: data ranks that were given the same data, and what only looks like it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.tables import by_rank
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC608"
Window = Sequence[Sequence[str | None]]


def window(*digests: Sequence[str | None], **more: Any) -> dict[str, Any]:
    """An attempt of which each rank has inputs of its own."""
    return more | by_rank(*({"data_digest": list(own), "microbatches": len(own)} for own in digests))


def stream(name: str, windows: int, steps: int = 2) -> list[list[str]]:
    """Inputs that never repeat, a window at a time."""
    return [[f"{name}-{place}-{step}" for step in range(steps)] for place in range(windows)]


def windows_of(*streams: Iterable[Sequence[str | None]], **more: Any) -> list[dict[str, Any]]:
    """The attempts of ranks with these inputs."""
    return [window(*digests, **more) for digests in zip(*streams, strict=True)]


SAME = windows_of(stream("a", 4), stream("a", 4))


def test_the_same_data_on_two_ranks_is_found(tmp_path: Path) -> None:
    rows = judge(CODE, write_run(tmp_path / "run", SAME))
    assert [(row.attempt, row.rank, row.fault, row.severity) for row in rows] == [
        (attempt, None, True, "warning") for attempt in range(1, 5)
    ]
    assert (rows[0].observed, rows[0].expected) == (1, 0)
    assert rows[0].message == (
        "ranks 0 and 1 were given the same input in 2 micro-steps of this window; "
        "in the launch they share 8 of 8 micro-steps"
    )


@pytest.mark.parametrize(("windows", "verdicts"), [(2, [False] * 2), (3, [True] * 3)])
def test_three_windows_are_needed(tmp_path: Path, windows: int, verdicts: list[bool]) -> None:
    run = write_run(tmp_path / "run", windows_of(stream("a", windows, 1), stream("a", windows, 1)))
    assert faults(CODE, run) == verdicts


def test_a_partial_overlap_is_named(tmp_path: Path) -> None:
    """Every window of rank 1 begins with an input that rank 0 has at another place of the same window."""
    own, other = stream("a", 12, 4), stream("b", 12, 4)
    shifted = [[first[3], *second[1:]] for first, second in zip(own, other, strict=True)]
    shifted[4] = other[4]
    rows = judge(CODE, write_run(tmp_path / "run", windows_of(own, shifted)))
    assert [row.fault for row in rows] == [place != 4 for place in range(12)]
    assert rows[0].observed == pytest.approx(11 / 48)
    assert rows[0].message == (
        "ranks 0 and 1 were given the same input in 1 micro-step of this window; "
        "in the launch they share 11 of 48 micro-steps, in 11 of 12 windows: their data overlaps in part"
    )


def test_the_first_window_of_an_overlap_is_the_first_fault(tmp_path: Path) -> None:
    """From the fifth window on the loader of rank 1 is that of rank 0."""
    one, two = stream("a", 40), stream("b", 40)
    run = write_run(tmp_path / "run", windows_of(one, two[:4] + one[4:]))
    assert faults(CODE, run) == [False] * 4 + [True] * 36


def test_groups_of_ranks_are_told_apart(tmp_path: Path) -> None:
    a, b = stream("a", 5), stream("b", 5)
    rows = judge(CODE, write_run(tmp_path / "run", windows_of(a, b, b, a, stream("c", 5)), 5))
    assert rows[0].message.startswith("ranks 0, 1, 2, 3 were given the same input in 4 micro-steps")
    many = windows_of(*[a] * 6)
    assert judge(CODE, write_run(tmp_path / "many", many, 6))[0].message.startswith(
        "ranks 0, 1, 2 and 3 more"
    )


def test_passes_over_the_same_batches_are_the_same_data(tmp_path: Path) -> None:
    twice = [[step for step in own for _ in (1, 2)] for own in stream("a", 4)]
    rows = judge(CODE, write_run(tmp_path / "run", windows_of(twice, twice)))
    assert [row.fault for row in rows] == [True] * 4
    assert rows[0].message.endswith("in the launch they share 16 of 16 micro-steps")


def test_epochs_over_the_same_order_are_found_in_each(tmp_path: Path) -> None:
    updates = [update for epoch in (1, 2, 3) for update in windows_of(*[stream("a", 4)] * 2, epoch=epoch)]
    assert faults(CODE, write_run(tmp_path / "run", updates)) == [True] * 12


def shuffled(windows: int, batches: int, seed: int) -> list[list[str]]:
    """Epochs over a few batches, in an order of this rank's own."""
    generator = random.Random(seed)
    found: list[list[str]] = []
    while len(found) < windows:
        found += [[f"batch {place}"] for place in generator.sample(range(batches), batches)]
    return found[:windows]


HONEST = {
    "other data": windows_of(stream("a", 6), stream("b", 6)),
    "a constant batch": windows_of(*[[["constant"] * 2] * 6] * 2),
    "two batches by turns": windows_of(*[[["one", "two"]] * 6] * 2),
    "many fixed batches by turns": windows_of(*[stream("fixed", 6) * 3] * 2),
    "a batch of padding at the end of each epoch": [
        update
        for epoch in range(1, 9)
        for update in [
            *windows_of(stream(f"a{epoch}", 3), stream(f"b{epoch}", 3), epoch=epoch),
            window([f"a{epoch}", "padding"], [f"b{epoch}", "padding"], epoch=epoch),
        ]
    ],
    "a few batches that each rank shuffles by itself": [
        update | {"epoch": 1 + place // 6}
        for place, update in enumerate(windows_of(shuffled(120, 6, seed=1), shuffled(120, 6, seed=2)))
    ],
    "a chance meeting now and then": windows_of(
        stream("a", 60, 1),
        [[f"a-{place}-0" if place in (7, 30, 41) else f"b-{place}"] for place in range(60)],
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_it_leaves_alone(tmp_path: Path, case: str) -> None:
    assert set(faults(CODE, write_run(tmp_path / "run", HONEST[case]))) == {False}


def layout(axis: str) -> dict[int, dict[str, Any]]:
    """Four ranks: two shares of the data, and two ranks to each along this axis."""
    return {
        rank: {
            f"{axis}_rank": rank % 2,
            f"{axis}_size": 2,
            "data_parallel_rank": rank // 2,
            "data_parallel_size": 2,
        }
        for rank in range(4)
    }


@pytest.mark.parametrize("axis", ["tensor", "context", "sequence", "pipeline"])
def test_ranks_of_one_model_share_their_samples(tmp_path: Path, axis: str) -> None:
    a, b = stream("a", 5), stream("b", 5)
    fields: dict[str, Any] = {"on": layout(axis), "gradient_divisor": 2.0}
    run = write_run(tmp_path / "right", windows_of(a, a, b, b), 4, **fields)
    assert faults(CODE, run) == [False] * 5
    rows = judge(CODE, write_run(tmp_path / "wrong", windows_of(a, a, a, a), 4, **fields))
    assert [(row.fault, row.severity) for row in rows] == [(True, "warning")] * 5
    last = axis == "pipeline"  # the stage that has the loss
    assert rows[0].message.startswith("ranks 1 and 3" if last else "ranks 0 and 2")


@pytest.mark.parametrize(
    ("run_fields", "more"),
    [
        pytest.param(
            {"wrapper": "none", "gradient_divisor": 2.0}, {"events": "ZFBFBAO"}, id="reduced by hand"
        ),
        pytest.param(
            {"wrapper": "none", "gradient_divisor": None},
            {"events": "ZFBFBO", "probe_parameter_moved": True},
            id="local SGD",
        ),
        pytest.param({"gradient_divisor": 1.0}, {}, id="DDP over a part of the ranks"),
        pytest.param({"gradient_divisor": None}, {}, id="a communication hook"),
    ],
)
def test_a_layout_that_nobody_declared_is_a_note(
    tmp_path: Path, run_fields: dict[str, Any], more: dict[str, Any]
) -> None:
    run = write_run(tmp_path / "run", [update | more for update in SAME], **run_fields)
    assert [(row.fault, row.severity) for row in judge(CODE, run)] == [(True, "note")] * 4


def test_independent_runs_and_single_ranks_are_out_of_scope(tmp_path: Path) -> None:
    apart = [update | {"events": "ZFBFBO"} for update in SAME]
    sweep = write_run(tmp_path / "sweep", apart, wrapper="none", gradient_divisor=None)
    assert faults(CODE, sweep) == []
    assert faults(CODE, write_run(tmp_path / "one", 3, 1)) == []
    alone = [update | {"on": update["on"] | {1: None}} for update in SAME]
    assert faults(CODE, write_run(tmp_path / "first", alone, recorded_ranks=[0])) == []


@pytest.mark.parametrize(
    ("updates", "run_fields"),
    [
        pytest.param(windows_of(*[[[None, None]] * 4] * 2), {}, id="no digest"),
        pytest.param(windows_of(stream("a", 4), [[None, None]] * 4), {}, id="a digest of one rank alone"),
        pytest.param([{}] * 4, {"microbatch_detail": "sums"}, id="sums"),
        pytest.param(SAME, {"data_parallel_rank": None}, id="no layout"),
        pytest.param(SAME, {"wrapper": None}, id="no wrapper"),
    ],
)
def test_unknown(tmp_path: Path, updates: list[dict[str, Any]], run_fields: dict[str, Any]) -> None:
    assert set(faults(CODE, write_run(tmp_path / "run", updates, **run_fields))) == {None}


def test_only_some_attempts_are_recorded(tmp_path: Path) -> None:
    rows = judge(CODE, write_run(tmp_path / "run", windows_of(*[stream("a", 13)] * 2), every=4))
    assert [(row.attempt, row.fault) for row in rows] == [(n, True) for n in (1, 5, 9, 13)]


def test_a_second_optimizer_over_the_same_data_says_nothing_more(tmp_path: Path) -> None:
    updates = [update | {"optimizer": optimizer} for update in SAME for optimizer in (0, 1)]
    run = write_run(tmp_path / "run", [u | {"attempt_id": 1 + n // 2} for n, u in enumerate(updates)])
    assert {row.optimizer for row in judge(CODE, run)} == {0}


def test_one_shared_window_in_a_short_run_is_no_fault(tmp_path: Path) -> None:
    a, b = stream("a", 6), stream("b", 6)
    with pytest.raises(AssertionError):
        the_fault(CODE, write_run(tmp_path / "run", windows_of(a, [a[0], *b[1:]])))
