"""Maps the names that people use for hyperparameters to the fields of the run record."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from accumaudit.importers import arguments
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number, whole

Value = TypeVar("Value")

COMPANIONS: Final = (
    "args.json",
    "training_args.json",
    "training_args.yaml",
    "training_args.txt",
    "hparams.yaml",
    "config.yaml",
    "README.md",
)
"""Files beside a log that hold the hyperparameters of its run."""

LONGEST_NAME: Final = 200
"""Characters of a value that may be of an enumeration."""

LONGEST_SHAPE: Final = 40
"""Characters of the name of a shape."""

_COUNTS: Final = {
    "accumulation_steps": "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps grad_accum "
    "accumulation_steps accum_iter update_freq",
    "planned_updates": "max_steps train_iters max_iters training_steps max_train_steps max_updates "
    "max_update num_iterations",
    "schedule_updates": "lr_decay_iters",
    "world_size": "world_size global_world_size num_devices",
    "data_parallel_size": "data_parallel_size",
    "tensor_size": "tensor_model_parallel_size",
    "pipeline_size": "pipeline_model_parallel_size",
    "context_size": "context_parallel_size",
    "sequence_size": "sequence_parallel_size",
}
"""Whole numbers from 1 on."""

_NUMBERS: Final = {
    "max_grad_norm": "max_grad_norm gradient_clip_val clip_grad grad_clip clip_norm gradient_clipping",
    "peak_learning_rate": "learning_rate lr",
    "min_learning_rate": "min_lr min_learning_rate",
    "planned_epochs": "num_train_epochs max_epochs num_epochs epochs max_epoch",
}
"""Numbers above 0."""

_WARMUPS: Final = [
    "warmup_steps",
    "lr_scheduler_warmup_steps",
    "num_warmup_steps",
    "lr_warmup_steps",
    "warmup_iters",
    "lr_warmup_iters",
    "warmup_updates",
]
_WARMUP_SHARES: Final = ["warmup_ratio", "lr_scheduler_warmup_ratio", "lr_warmup_fraction", "warmup_fraction"]
_SHAPES: Final = ["lr_scheduler_type", "lr_decay_style", "lr_scheduler"]

_SCHEDULES: Final = {
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "warmup_stable_decay": "wsd",
    "inverse_square_root": "inverse_sqrt",
    "inverse-square-root": "inverse_sqrt",
}
"""Names that others have for a shape; any other is kept."""

_DTYPES: Final = {"fp16": "float16", "bf16": "bfloat16"}

# <SchedulerType.COSINE: 'cosine'>, <SchedulerType ('linear',)>, SchedulerType.COSINE
_ENUMERATED: Final = re.compile(r"<.*'(\w+)'.*>|\w+\.(\w+)")


def declared(log: Log, planned_updates: int | None = None) -> dict[str, Any]:
    """The fields of the run record that `--args FILE` and the files beside a log state.

    Args:
        planned_updates: as the log itself tells; a warm-up may be a share of it.
    """
    return Companions(log).facts(planned_updates)


class Companions:
    """The files that state the hyperparameters of the run of a log; each is read once."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @cached_property
    def values(self) -> list[dict[str, Any]]:
        """What each of them states; the first that says something of a name holds."""
        return list(arguments.all_in(_files(self._log)))

    def facts(self, planned_updates: int | None) -> dict[str, Any]:
        """As `declared`."""
        found: dict[str, Any] = {}
        for values in self.values:
            for name, value in facts(values, planned_updates).items():
                found.setdefault(name, value)
        return found

    def count(self, name: str) -> int | None:
        """A whole number above 0 that is no field of the run record."""
        return _first(found for values in self.values if (found := _count(_plain(values.get(name)))))


def facts(values: Mapping[str, Any], planned_updates: int | None = None) -> dict[str, Any]:
    """The fields of the run record that these values tell, whatever framework named them.

    Args:
        planned_updates: as the log itself tells; it goes before the plan in the values.
    """
    values = {name: _plain(value) for name, value in arguments.flat(values).items()}
    found: dict[str, Any] = {}
    for field, names in _COUNTS.items():
        found[field] = _first(count for name in names.split() if (count := _count(values.get(name))))
    for field, names in _NUMBERS.items():
        found[field] = _first(size for name in names.split() if (size := _positive(values.get(name))))
    if found["planned_updates"]:
        found["planned_epochs"] = None  # the updates end the run, not the epochs
    found["precision"] = _precision(values)
    found |= _schedule(values, found)
    found["warmup_updates"] = _warmup(values, planned_updates or found["planned_updates"])
    if found["accumulation_steps"] is None:
        found["accumulation_steps"] = _accumulation(values)
    return {field: value for field, value in found.items() if value is not None}


def _files(log: Log) -> Iterator[Path]:
    if log.options.arguments is not None:
        yield log.options.arguments
    yield from log.beside(*COMPANIONS)
    folder = log.path.parent
    if re.fullmatch(r"checkpoint-\d+", folder.name):
        yield from Log(folder.parent / log.path.name).beside(*COMPANIONS)


def _plain(value: Any) -> Any:
    """A value without the quotes and the class that a text has around it."""
    if not isinstance(value, str):
        return value
    text = value.strip().rstrip(",").strip("'\"")
    enumerated = _ENUMERATED.fullmatch(text) if len(text) <= LONGEST_NAME else None
    if enumerated and number(text) is None:
        return (enumerated[1] or enumerated[2]).lower()
    return text


def _first(found: Iterator[Value]) -> Value | None:
    return next(found, None)


def _count(value: object) -> int | None:
    if isinstance(value, list) and len(value) == 1:  # one for all epochs, as fairseq writes it
        value = value[0]
    count = whole(value)
    return count if count is not None and count >= 1 else None


def _positive(value: object) -> float | None:
    size = number(value)
    return size if size is not None and math.isfinite(size) and size > 0 else None


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _is_false(value: object) -> bool:
    return value is False or (isinstance(value, str) and value.lower() == "false")


def _precision(values: Mapping[str, Any]) -> str | None:
    for name, dtype in _DTYPES.items():
        if _is_true(values.get(name)):
            return dtype
    names = ("mixed_precision_training", "precision", "dtype")
    stated = _first(value for name in names if isinstance(value := values.get(name), str)) or ""
    if stated.startswith("Native AMP"):
        return "float16"  # a model card says so of fp16 alone
    return next((dtype for name, dtype in _DTYPES.items() if name in stated or dtype == stated), None)


def _schedule(values: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The shape, with the numbers that it alone has."""
    if "decay_lr" in values:  # nanoGPT has but one shape, and its switch
        return {"schedule": "constant"} if _is_false(values["decay_lr"]) else {"schedule": "cosine"}
    name = _first(values[key].lower() for key in _SHAPES if isinstance(values.get(key), str) and values[key])
    if name is None or name in ("none", "null") or len(name) > LONGEST_SHAPE or _engine_schedules(values):
        return {}
    schedule = {"schedule": _SCHEDULES.get(name, name)}
    more = values.get("lr_scheduler_kwargs")
    if isinstance(more, Mapping):
        return schedule | _numbers_of(name, more, found["peak_learning_rate"])
    return schedule | _numbers_of(name, {}, None)


def _numbers_of(name: str, more: Mapping[str, Any], peak: float | None) -> dict[str, Any]:
    if name == "polynomial":
        power, end = _positive(more.get("power")), number(more.get("lr_end"))
        return {"schedule_power": power or 1.0, "min_learning_rate": 1e-7 if end is None else end}
    if name == "warmup_stable_decay":
        return {"decay_updates": _count(more.get("num_decay_steps"))}
    if name == "cosine_with_min_lr":
        lowest, share = number(more.get("min_lr")), number(more.get("min_lr_rate"))
        if lowest is None and share is not None and peak is not None:
            lowest = peak * share
        return {"min_learning_rate": lowest}
    unusual = [key for key in ("num_cycles", "timescale") if more.get(key) is not None]
    return {"schedule": f"{name} ({unusual[0]} {more[unusual[0]]})"} if unusual else {}


def _engine_schedules(values: Mapping[str, Any]) -> bool:
    """A configuration of DeepSpeed may hold the schedule, and then goes before the argument."""
    engine = values.get("deepspeed")
    return isinstance(engine, Mapping) and "scheduler" in engine


def _warmup(values: Mapping[str, Any], planned: int | None) -> int | None:
    """Updates of warm-up; a share is rounded up, as the Trainer does, and counts where no number is given."""
    if _is_false(values.get("decay_lr")):
        return 0
    steps = _first(found for name in _WARMUPS if (found := number(values.get(name))) is not None)
    share = _first(found for name in _WARMUP_SHARES if (found := number(values.get(name))) is not None)
    if steps is not None and 0 < steps < 1:  # version 5 gives a share by the name of the number
        steps, share = None, steps
    if steps and math.isfinite(steps):
        return whole(math.floor(steps))
    if share and 0 < share <= 1:
        of = _count(values.get("lr_decay_iters")) if "lr_warmup_fraction" in values else None
        length = of or planned
        return None if length is None else math.ceil(round(length * share, 9))
    return 0 if 0 in (steps, share) else None


def _accumulation(values: Mapping[str, Any]) -> int | None:
    """As Megatron's sizes give it."""
    names = ("global_batch_size", "micro_batch_size", "data_parallel_size")
    total, each, ranks = (_count(values.get(name)) for name in names)
    if total is None or each is None or ranks is None or total % (each * ranks):
        return None
    return total // (each * ranks)
