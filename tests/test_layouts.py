"""Ranks that share samples, layers or tensors have coordinates; only those that are alike are compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from accumaudit.hooks.layout import AXES, coordinates
from tests.faults.registry import PATIENCE
from tests.loops import TinyModel, read_records
from tests.processes import Processes
from tests.recorded import faults, marks, updates
from tests.tables import query


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    """Four gloo processes."""
    processes = Processes(4)
    yield processes
    processes.close()


def train(four: Processes, function: str, folder: Path, **how: Any) -> None:
    """Train on all four; the first time they load much of torch."""
    four.call(f"tests.parallel_loops:{function}", timeout=PATIENCE, folder=str(folder), **how)


def findings(folder: Path) -> dict[str, str]:
    """Code and severity of all that is found in a run."""
    (run,) = check_paths([folder]).runs
    assert faults(folder) == []
    return {verdict.code: verdict.severity for verdict in run.with_status(FAILED)}


SPLIT = [
    # (wrap, what the ranks of one sample are called, how the layout is told)
    ("DDP", "cp", "mesh"),
    ("DDP", "sp", "mapping"),
    ("FSDP1", "cp", "mapping"),
    ("FSDP2", "sp", "mesh"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrap", "axis", "told"), SPLIT)
def test_parts_of_a_sequence_are_added_up(
    wrap: str, axis: str, told: str, four: Processes, tmp_path: Path
) -> None:
    train(four, "split_sequences", tmp_path, wrap=wrap, axis=axis, told=told)
    assert findings(tmp_path) == {}
    name = {"cp": "context", "sp": "sequence"}[axis]
    places = f"data_parallel_rank, data_parallel_size, {name}_rank, {name}_size"
    assert query(tmp_path, f"SELECT {places} FROM runs ORDER BY rank") == [
        (0, 2, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 0, 2),
        (1, 2, 1, 2),
    ]
    for total, low, high, ranks, samples in query(
        tmp_path, "SELECT total_weight, distortion_min, distortion_max, token_ranks, samples FROM windows"
    ):
        assert (total, low, high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-5)
        assert (ranks, samples) == (4, 2 * 3 * 2)


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "factor", "name"), [("cp", 2.0, "cp"), ("sp", 0.5, "1/sp")])
def test_a_factor_of_the_group_is_named(
    axis: str, factor: float, name: str, four: Processes, tmp_path: Path
) -> None:
    train(four, "split_sequences", tmp_path, axis=axis, factor=factor)
    assert findings(tmp_path) == {"ACC104": "error"}
    assert query(tmp_path, "SELECT DISTINCT weight_factors FROM windows") == [([name],)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "schedule", "scaled"),
    [
        ("none", "1F1B", False),
        ("none", "GPipe", True),
        ("DDP", "1F1B", False),
        ("FSDP2", "1F1B", True),
        ("FSDP2", "GPipe", False),
    ],
)
def test_stages_of_a_pipeline(
    wrap: str, schedule: str, scaled: bool, four: Processes, tmp_path: Path
) -> None:
    """Each backward of the schedule is a micro-step, and the stage that has the loss is weighed."""
    how: dict[str, Any] = {"wrap": wrap, "schedule": schedule, "scaled": scaled}
    train(four, "pipeline", tmp_path, **how)
    # Micro-steps that are not reduced hold whole gradients, here as anywhere.
    assert findings(tmp_path) == ({"ACC506": "note"} if wrap == "FSDP2" else {})
    assert {update["microbatches"] for update in updates(tmp_path)} == {4}
    assert query(tmp_path, "SELECT rank FROM runs WHERE tokens_rank ORDER BY rank") == [(2,), (3,)]
    weights = query(tmp_path, "SELECT total_weight, distortion_min, distortion_max FROM windows")
    assert [one for window in weights for one in window] == pytest.approx([1.0] * 9, abs=1e-5)


@pytest.mark.slow
def test_words_of_a_pipeline(four: Processes, tmp_path: Path) -> None:
    """DDP and FSDP decide at the backward there; FSDP reduces when the last one has ended."""
    for wrap in ("DDP", "FSDP2"):
        train(four, "pipeline", tmp_path / wrap, wrap=wrap)
    words = {wrap: [u["events"] for u in updates(tmp_path / wrap)[::3]] for wrap in ("DDP", "FSDP2")}
    assert words == {
        "DDP": ["ZffbfbfbBO"] * 2 + ["ZfbfbfbfBO"] * 2,
        "FSDP2": ["ZFFbFbFbBO"] * 2 + ["ZFbFbFbFBO"] * 2,
    }


@pytest.mark.slow
def test_a_wrong_total_of_a_pipeline_is_found(four: Processes, tmp_path: Path) -> None:
    train(four, "pipeline", tmp_path, factor=4.0)
    assert findings(tmp_path) == {"ACC104": "error"}


@pytest.mark.slow
def test_ranks_beside_a_group_that_reduces_are_not_known(four: Processes, tmp_path: Path) -> None:
    """Without a layout two stages look like four data ranks, of which DDP reduces two."""
    train(four, "pipeline", tmp_path, told=False, factor=4.0)
    assert findings(tmp_path) == {}
    assert query(tmp_path, "SELECT DISTINCT token_ranks, parameter_part FROM runs") == [(None, None)]
    names = {mark["name"] for mark in marks(tmp_path, "not_recorded")}
    assert names == {
        "gradients are reduced over 2 of 4 ranks, and what the others do is not known: give layout, or "
        "ranks are not compared and no weights judged"
    }


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["FSDP2", "none"])
def test_tensor_groups_count_once(wrap: str, four: Processes, tmp_path: Path) -> None:
    train(four, "tensor_parallel", tmp_path, wrap=wrap)
    assert findings(tmp_path) == {}
    assert query(tmp_path, "SELECT rank, tensor_rank FROM runs WHERE tokens_rank ORDER BY rank") == [
        (0, 0),
        (2, 0),
    ]
    weights = query(tmp_path, "SELECT total_weight, distortion_min, distortion_max FROM windows")
    assert [one for window in weights for one in window] == pytest.approx([1.0] * 9, abs=1e-5)


@pytest.mark.slow
def test_the_mesh_of_fsdp_tells_of_tensor_ranks(four: Processes, tmp_path: Path) -> None:
    for told in (True, False):
        train(four, "tensor_parallel", tmp_path / str(told), told=told)
    axes = ", ".join(
        f"coalesce({axis}_{what}, {int(what == 'size')})" for axis in AXES for what in ("rank", "size")
    )
    places = [query(tmp_path / str(told), f"SELECT {axes} FROM runs ORDER BY rank") for told in (True, False)]
    assert places[0] == places[1]


# what attach may be told


def place(**sizes: int) -> dict[str, int]:
    """Coordinates of the first rank, but for those that are given."""
    return {f"{axis}_{what}": int(what == "size") for axis in AXES for what in ("rank", "size")} | sizes


def mesh(names: Any, coordinate: Any, shape: tuple[int, ...]) -> Any:
    """What is asked of a DeviceMesh."""
    return SimpleNamespace(mesh_dim_names=names, get_coordinate=lambda: coordinate, shape=shape)


def test_dimensions_of_one_axis_are_multiplied() -> None:
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    found = coordinates(mesh(names, [1, 1, 2, 0, 1], (2, 2, 3, 1, 2)), 24)
    assert found == place(
        pipeline_rank=1,
        pipeline_size=2,
        data_parallel_rank=5,
        data_parallel_size=6,
        tensor_rank=1,
        tensor_size=2,
    )
    assert coordinates({}, 1) == place()


@pytest.mark.parametrize(
    ("layout", "error", "told"),
    [
        (
            {"rows": (0, 2)},
            ValueError,
            "layout has a dimension 'rows'; those that are known: context, ",
        ),
        ({"cp": (2, 2)}, ValueError, "layout has rank 2 of 2 for 'cp'; ranks count from 0"),
        ({"cp": 2}, ValueError, "layout has 2 for 'cp'; it must be (rank, size)"),
        ({"cp": (0, 2)}, ValueError, "layout describes 2 ranks, and there are 4; name every dimension"),
        ({}, ValueError, "layout describes 1 rank, and there are 4"),
        (4, TypeError, "layout is a int; give a DeviceMesh with named dimensions, or {name: (rank, size)}"),
        (mesh(None, [0], (4,)), ValueError, "layout is a DeviceMesh that has no names of its dimensions"),
        (mesh(("dp",), None, (4,)), ValueError, "layout is a DeviceMesh that has not this rank"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=re.escape(f"accumaudit: {told}")):
        coordinates(layout, 4)


def test_attach_refuses_it_before_anything_is_hooked(tmp_path: Path) -> None:
    import torch

    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="layout describes 2 ranks, and there are 1"):
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "run", layout={"tp": (0, 2)})
    assert not (tmp_path / "run").exists()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path / "run", layout={}, summary=False):
        pass
    (run,) = [entry for entry in read_records(tmp_path / "run") if entry["record"] == "run"]
    assert run | place() == run
