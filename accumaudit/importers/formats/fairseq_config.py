"""The configuration that fairseq prints before it trains: a nested dict, or a Namespace, on one line."""

from __future__ import annotations

import re
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.reading.values import number, whole

_NAMES: Final = (
    "update_freq|max_update|max_epoch|clip_norm|lr|fp16|bf16|distributed_world_size|warmup_updates|lr_scheduler"
    "|total_num_update|end_learning_rate|power|lr_shrink|force_anneal"
)
_IN_DICT: Final = re.compile(rf"'({_NAMES})': (\[[^\]]*\]|'[^']*'|[^,}}]+)")
_IN_NAMESPACE: Final = re.compile(rf"\b({_NAMES})=(\[[^\]]*\]|'[^']*'|[^,)]+)")
_SCHEDULER: Final = re.compile(r"'lr_scheduler': \{'_name': '(\w+)'([^{}]*)\}")

_SHAPES: Final = {"polynomial_decay": "polynomial", "fixed": "constant"}


def facts(text: str) -> dict[str, Any]:
    """The fields of the run record in the line of a configuration."""
    pattern = _IN_NAMESPACE if "Namespace(" in text else _IN_DICT
    values: dict[str, str] = {}
    scheduler = _SCHEDULER.search(text)
    if scheduler:
        values |= {"lr_scheduler": scheduler[1], **_plain(_IN_DICT.findall(scheduler[2]))}
    for name, value in _plain(pattern.findall(text)).items():
        values.setdefault(name, value)
    shape = values.pop("lr_scheduler", "")
    # The name of the shape means another curve elsewhere, and a rate may be a list, one an epoch.
    found = hyperparameters.facts({name: value for name, value in values.items() if "," not in value})
    found["world_size"] = whole(values.get("distributed_world_size"))
    if re.fullmatch(r"\w+", shape):
        found["schedule"] = _SHAPES.get(shape, shape)
    if shape == "polynomial_decay":
        found["schedule_updates"] = whole(values.get("total_num_update"))
        found["schedule_power"] = number(values.get("power"))
        found["min_learning_rate"] = number(values.get("end_learning_rate"))
    return {name: value for name, value in found.items() if value is not None}


def _plain(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """The first value of each name, without quotes, and without the brackets of a list of one."""
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value.strip().strip("'[]").strip())
    return found
