"""Accelerate: loops written by hand around an Accelerator and what its `prepare` returned.

An Accelerator calls nobody back. A few methods are watched: where it begins a micro-step, where a loader's
iteration begins and ends, and where it saves a state.
"""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import BatchSampler

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.framework import Framework
from accumaudit.hooks.options import Options
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.scaling import torch_scaler
from accumaudit.hooks.session import session
from accumaudit.hooks.wrappers import Function, Wrap


def attach_accelerate(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    scheduler: Any = None,
    *,
    log_dir: str | os.PathLike[str],
    **options: Any,
) -> Audit:
    """Record every optimizer update of a loop around an Accelerator.

    Args:
        accelerator: the Accelerator; it tells accumulation steps, data, scaler and its device mesh.
        model: what `prepare` returned for the model.
        optimizer: what it returned for the optimizer, or a list of them.
        scheduler: what it returned for the scheduler, or a list as long as that of the optimizers.
        log_dir: the run's folder; each rank writes one file in it.
        options: further keyword arguments of `accumaudit.attach`.

    Returns:
        The audit; close it, or use it in a with-statement. It has `state_dict` and `load_state_dict`:
        `accelerator.register_for_checkpointing(audit)` lets a resumed run go on counting.

    Raises:
        ValueError: as `accumaudit.attach` does, and where DeepSpeed trains.
        TypeError: likewise.
        OSError: log_dir cannot be written.
    """
    if str(getattr(accelerator.distributed_type, "value", "")) == "DEEPSPEED":
        raise ValueError("accumaudit: DeepSpeed trains here; give the engine to attach_deepspeed")
    accelerate = importlib.import_module("accelerate")
    contract = Contract(
        runtime="accelerate",
        versions={"accelerate": accelerate.__version__},
        scheduler_steps_per_update=_steps_per_update(accelerator, scheduler),
    )
    told: dict[str, Any] = {
        "accumulation_steps": accelerator.gradient_accumulation_steps,
        "layout": getattr(accelerator, "torch_device_mesh", None),  # version 1.3 has none
    }
    audit = attach_runtime(
        contract,
        model,
        _unwrapped(optimizer, "AcceleratedOptimizer", "optimizer"),
        _unwrapped(scheduler, "AcceleratedScheduler", "scheduler"),
        torch_scaler(accelerator),
        Options(log_dir=log_dir, **{**told, **options}),
    )
    if (recorder := audit.recorder) is not None:
        loop = AccelerateLoop(recorder, accelerator, options)
        _loops[recorder] = loop
        recorder.guard(_watch, recorder, accelerator, accelerate.__version__)
    return audit


class AccelerateLoop:
    """What an Accelerator does, told to the recorder of its training."""

    def __init__(self, recorder: Recorder, accelerator: Any, options: dict[str, Any]) -> None:
        self._recorder: Recorder = weakref.proxy(recorder)  # the key in `_loops` of this very value
        self._accelerator = weakref.ref(accelerator)
        self._steps_declared = "accumulation_steps" in options
        self._data_declared = options.get("dataloader") is not None
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        """Loaders whose iteration has begun, and of which no micro-step has been seen yet."""
        self._data: weakref.ref[Any] | None = None
        """The loader that the last micro-step's batch came from."""

    def is_of(self, accelerator: object) -> bool:
        """Whether this is the Accelerator of the loop."""
        return self._accelerator() is accelerator

    def micro_step(self, accelerator: Any) -> None:
        """A micro-step: with what the Accelerator says of it."""
        steps = accelerator.gradient_accumulation_steps
        if not self._steps_declared and steps != self._recorder.accumulation_steps:
            self._recorder.declare({"accumulation_steps": steps})
        data = accelerator.gradient_state.active_dataloader
        if not self._data_declared and data in self._begun:
            self._begun.discard(data)
            self._data = weakref.ref(data)
            self._recorder.epoch_begins((self._recorder.epoch or 0) + 1)

    def data_begins(self, data: Any) -> None:
        """A loader's iteration begins; it may be an evaluation's."""
        self._begun.add(data)

    def data_ends(self, data: Any) -> None:
        """A loader is exhausted."""
        if self._data is not None and self._data() is data:
            self._data = None
            self._recorder.end_of_data(repeated_samples=_repeated_samples(data))

    def state_saved(self, folder: object) -> None:
        """A checkpoint was written."""
        self._recorder.mark("checkpoint", name=Path(str(folder)).name)


_loops: weakref.WeakKeyDictionary[Recorder, AccelerateLoop] = weakref.WeakKeyDictionary()
"""By their recorders, which live as long as they record."""


def _tell(action: Callable[[AccelerateLoop], None]) -> None:
    """Tell every loop around an Accelerator that is recorded now."""
    for recorder in list(session.recorders):
        if (loop := _loops.get(recorder)) is not None:
            recorder.guard(action, loop)


def _watch(recorder: Recorder, accelerator: Any, version: str) -> None:
    framework = Framework("accelerate", version)
    kind = type(accelerator)
    for method in ("_do_sync", "backward"):
        framework.patch(kind, method, _wrap_micro_step, loses="epochs and changes of accumulation_steps")
    framework.patch(kind, "save_state", _wrap_save, loses="checkpoints")
    data = importlib.import_module("accelerate.data_loader").DataLoaderStateMixin
    framework.patch(data, "begin", _after(AccelerateLoop.data_begins), loses="epochs")
    framework.patch(data, "end", _after(AccelerateLoop.data_ends), loses="ends of the data")
    framework.tell(recorder)


def _after(action: Callable[[AccelerateLoop, Any], None]) -> Wrap:
    """A wrapper that tells every loop of the object, when its method has run."""

    def wrap(original: Function) -> Function:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            _tell(lambda loop: action(loop, self))
            return result

        return method

    return wrap


def _wrap_micro_step(original: Function) -> Function:
    """`Accelerator._do_sync`, with which `accumulate` begins; and `backward`, for loops without it."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(lambda loop: loop.micro_step(self) if loop.is_of(self) else None)
        return original(self, *args, **kwargs)

    return method


def _wrap_save(original: Function) -> Function:
    """`Accelerator.save_state`, which returns the folder."""

    def save_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        folder = original(self, *args, **kwargs)
        _tell(lambda loop: loop.state_saved(folder) if loop.is_of(self) else None)
        return folder

    return save_state


def _unwrapped(given: Any, kind: str, attribute: str) -> Any:
    """The inner ones of what `prepare` returned."""
    if isinstance(given, Sequence):
        return [_unwrapped(entry, kind, attribute) for entry in given]
    names = {cls.__name__ for cls in type(given).__mro__}
    return getattr(given, attribute) if kind in names else given


def _steps_per_update(accelerator: Any, scheduler: Any) -> float:
    """A prepared scheduler counts the updates that one process alone would have made."""
    first = scheduler[0] if isinstance(scheduler, Sequence) and scheduler else scheduler
    follows = getattr(first, "step_with_optimizer", False) and not getattr(first, "split_batches", False)
    return float(accelerator.num_processes) if follows else 1.0


def _repeated_samples(data: Any) -> int | None:
    """How many rows all ranks together were given again to have equally many; None where it is not known."""
    shard = getattr(data, "batch_sampler", None)
    inner = getattr(shard, "batch_sampler", None)
    ranks = getattr(shard, "num_processes", None)
    if not isinstance(inner, BatchSampler) or ranks is None or not isinstance(inner.sampler, Sized):
        return None
    if inner.drop_last or not getattr(shard, "even_batches", False):
        return 0
    together = inner.batch_size * (1 if getattr(shard, "split_batches", False) else ranks)
    return int(-len(inner.sampler) % together)
