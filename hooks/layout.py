"""A rank's coordinates in a parallel layout: read from a DeviceMesh, or as the loop tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "data_parallel": ("data", "dp", "dp_replicate", "dp_shard", "data_parallel", "replicate", "shard"),
    "tensor": ("tensor", "tp", "tensor_parallel"),
    "context": ("context", "cp", "context_parallel"),
    "sequence": ("sequence", "sp", "sequence_parallel"),
    "pipeline": ("pipeline", "pp", "pipeline_parallel"),
}
"""The axes of the run record, and what dimensions of each are called; several of one axis are multiplied."""


def coordinates(layout: Any, world_size: int) -> dict[str, int]:
    """Rank and size of every axis, as fields of the run record.

    Args:
        layout: a DeviceMesh with named dimensions, or {name: (rank, size)}.
        world_size: the number of processes, which the sizes must multiply to.

    Raises:
        TypeError: it is neither.
        ValueError: a name that is not known, a rank that is not below its size, or ranks that are left over.
    """
    found = {f"{axis}_{what}": int(what == "size") for axis in AXES for what in ("rank", "size")}
    for name, (rank, size) in _dimensions(layout):
        axis = _axis(name)
        if not 0 <= rank < size:
            raise ValueError(f"accumaudit: layout has rank {rank} of {size} for {name!r}; ranks count from 0")
        found[f"{axis}_rank"] = found[f"{axis}_rank"] * size + rank
        found[f"{axis}_size"] *= size
    ranks = 1
    for axis in AXES:
        ranks *= found[f"{axis}_size"]
    if ranks != world_size:
        raise ValueError(
            f"accumaudit: layout describes {ranks} {'rank' if ranks == 1 else 'ranks'}, and there are "
            f"{world_size}; name every dimension, that of the data too"
        )
    return found


def _axis(name: str) -> str:
    for axis, names in AXES.items():
        if name in names:
            return axis
    known = ", ".join(sorted({name for names in AXES.values() for name in names}))
    raise ValueError(f"accumaudit: layout has a dimension {name!r}; those that are known: {known}")


def _dimensions(layout: Any) -> Iterable[tuple[str, tuple[int, int]]]:
    if isinstance(layout, Mapping):
        return [(str(name), _place(str(name), place)) for name, place in layout.items()]
    names = getattr(layout, "mesh_dim_names", ())
    if names == ():
        raise TypeError(
            f"accumaudit: layout is a {type(layout).__name__}; give a DeviceMesh with named dimensions, or "
            "{name: (rank, size)}"
        )
    place = layout.get_coordinate()
    if names is None or place is None:
        lacks = "no names of its dimensions" if names is None else "not this rank"
        raise ValueError(f"accumaudit: layout is a DeviceMesh that has {lacks}; give {{name: (rank, size)}}")
    return list(zip(names, zip(place, layout.shape, strict=True), strict=True))


def _place(name: str, place: Any) -> tuple[int, int]:
    try:
        rank, size = place
        return int(rank), int(size)
    except (TypeError, ValueError):
        raise ValueError(f"accumaudit: layout has {place!r} for {name!r}; it must be (rank, size)") from None
