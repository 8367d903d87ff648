"""The handle that a training script holds: what it can tell, what it can ask, and the end."""

from __future__ import annotations

import atexit
import math
import os
import sys
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from torch import Tensor

from accumaudit.hooks import patches
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.session import session
from accumaudit.hooks.summary import Summary
from accumaudit.hooks.watching import Finding, Watcher

DECLARABLE: Final = (
    "accumulation_steps",
    "planned_updates",
    "warmup_updates",
    "peak_learning_rate",
    "min_learning_rate",
    "resumed_from_update",
    "schedule_unit",
    "scheduler_steps_per_update",
    "loss_coefficients",
)
PLACE: Final = ("rank", "optimizer", "time")
"""Numbers of a record that a logger knows itself, or that measure nothing."""
MARKS: Final = ("epoch_end", "end_of_data", "checkpoint", "resume", "eval")


class Audit:
    """A recorded run. Every method does nothing once it is closed, and where ACCUMAUDIT=0.

    Faults inside are logged and never reach the training; wrong arguments raise where they are given.
    """

    def __init__(
        self, recorder: Recorder | None, summary: Summary | None = None, watcher: Watcher | None = None
    ) -> None:
        self._recorder = recorder
        self._summary = summary
        self._watcher = watcher
        self._last_state: dict[str, Any] = {}
        if recorder is not None:
            atexit.register(self._exit)
            _open_audits.add(self)

    @property
    def recorder(self) -> Recorder | None:
        """What a runtime's adapter tells events to; None once closed, or where nothing is recorded."""
        return self._recorder

    # what the loop tells

    def report(
        self,
        *,
        global_valid_tokens: Tensor | float | None = None,
        cumulative_train_tokens: Tensor | float | None = None,
        global_step: Tensor | int | None = None,
        loss: Tensor | float | None = None,
    ) -> None:
        """What the loop itself counts and logs for the update just made (or being made).

        Tensors stay on their device; nothing waits for them.
        """
        if self._recorder is None:
            return
        values = {
            "global_valid_tokens_in_update": global_valid_tokens,
            "cumulative_train_tokens": cumulative_train_tokens,
            "reported_global_step": global_step,
            "reported_loss": loss,
        }
        self._recorder.guard(
            self._recorder.report, {name: value for name, value in values.items() if value is not None}
        )

    def mark(self, kind: str, name: str | None = None) -> None:
        """Something that belongs between updates: epoch_end, end_of_data, checkpoint, resume or eval.

        Raises:
            ValueError: another kind.
        """
        if kind not in MARKS:
            raise ValueError(f"accumaudit: mark kind {kind!r} is unknown; it is one of {', '.join(MARKS)}")
        if self._recorder is not None:
            self._recorder.guard(self._recorder.declared_mark, kind, name)

    def declare(self, **values: Any) -> None:
        """What the loop knows and the hooks cannot see, from the next window on.

        Args:
            values: accumulation_steps, planned_updates, warmup_updates, peak_learning_rate,
                min_learning_rate, resumed_from_update, schedule_unit, scheduler_steps_per_update or
                loss_coefficients.

        Raises:
            TypeError: another name.
        """
        unknown = [name for name in values if name not in DECLARABLE]
        if unknown:
            raise TypeError(
                f"accumaudit: {unknown[0]!r} cannot be declared; it is one of {', '.join(DECLARABLE)}"
            )
        if self._recorder is not None:
            self._recorder.guard(self._recorder.declare, values)

    def observe_loss(self, loss: Tensor, *, valid_tokens: Tensor | float, reduction: str = "mean") -> None:
        """A loss that no cross entropy of torch makes, before its backward.

        Args:
            loss: scalar, with its graph; it becomes the main term of its micro-step.
            valid_tokens: positions that it was reduced over.
            reduction: mean or sum.

        Raises:
            ValueError: another reduction.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"accumaudit: reduction {reduction!r} is unknown; it is mean or sum")
        if self._recorder is not None:
            self._recorder.guard(self._recorder.observe_loss, loss, valid_tokens, reduction)

    def ema_updated(self, *, decay: float | None = None) -> None:
        """A moving average of the parameters, made by the loop itself, has taken them in.

        Args:
            decay: the share that the average keeps of itself.
        """
        if self._recorder is not None:
            self._recorder.guard(self._recorder.ema_updated, decay)

    @property
    def scheduler(self) -> Any:
        """The scheduler that is watched (of the first optimizer); assign one that is made after attach."""
        return None if self._recorder is None else self._recorder.tracks[0].schedule.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        if self._recorder is not None:
            self._recorder.guard(self._recorder.follow_scheduler, scheduler)

    # what the loop asks

    def metrics(self) -> dict[str, float]:
        """The last written update as a flat dict of numbers, for a logger."""
        last = {} if self._recorder is None else self._recorder.settler.last
        return {
            f"accumaudit/{name}": float(value)
            for name, value in last.items()
            if name not in PLACE and isinstance(value, (bool, int, float)) and math.isfinite(value)
        }

    def findings(self) -> list[Finding]:
        """What has been found in this launch so far, the highest severity first.

        It is empty but on rank 0, where `attach` was told to watch. Once the audit is closed it is about all
        that was recorded.
        """
        return [] if self._watcher is None else list(self._watcher.findings)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a resumed run goes on counting."""
        return self._last_state if self._recorder is None else self._recorder.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting where `state_dict` left off."""
        if self._recorder is not None:
            self._recorder.guard(self._recorder.load_state_dict, state)

    # the end

    def close(self) -> None:
        """Take every hook away, write what is left, and print the verdict unless summary is off."""
        raised = sys.exc_info()[0] is not None
        self._close("exception" if raised else "closed", finished=not raised)

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close("closed" if kind is None else "exception", finished=kind is None)

    def _exit(self) -> None:
        self._close("exit", finished=False)

    def _close(self, reason: str, finished: bool) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._forget(recorder)
        recorder.stop()
        recorder.guard(lambda: self._last_state.update(recorder.state_dict()))
        recorder.finish(reason, finished)
        verdict = None if self._watcher is None else self._watcher.close()
        if self._summary is not None:
            self._summary.close(verdict)

    def _forget(self, recorder: Recorder) -> None:
        """Take away what stands in torch and in this process."""
        atexit.unregister(self._exit)
        _open_audits.discard(self)
        recorder.unhook()
        if recorder in session.recorders:
            session.recorders.remove(recorder)
        if not session.recorders:
            patches.undo()

    def _disown(self) -> None:
        """In a forked child, such as a data worker: the run is the parent's, and so is what it says."""
        recorder, self._recorder, self._summary = self._recorder, None, None
        if self._watcher is not None:
            self._watcher.disown()
        if recorder is not None:
            self._forget(recorder)


_open_audits: weakref.WeakSet[Audit] = weakref.WeakSet()


def _forked() -> None:
    for audit in list(_open_audits):
        audit._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
