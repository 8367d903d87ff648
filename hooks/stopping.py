"""Stops a training on all ranks at the same update, once its watcher has found a fault.

The one thing here in which ranks talk to each other, and off unless `attach` is told `stop_on`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from accumaudit.hooks.handles import Hook
from accumaudit.hooks.session import session
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.watching import FaultFoundError, Finding, Watcher

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder

NAMED: Final = 3
"""Findings that the error names."""


class Stopper:
    """Asks at each attempt whether a rank is to stop, and stops all where one is.

    The answer of one attempt is read at the next, when it has long come: nobody waits for it. So all ranks
    stop an attempt after rank 0 knew, before the first forward of the window that follows; the update
    before is whole, with what the loop did after it. In a pipeline, whose later stages would wait for that
    forward's output, they stop as the step returns.

    Args:
        severity: the lowest that stops.
        watcher: of rank 0; the other ranks have none.
        several_ranks: there are others to agree with.
        pipelined: they are stages of a pipeline.
    """

    def __init__(
        self, severity: str, watcher: Watcher | None, *, several_ranks: bool, pipelined: bool
    ) -> None:
        self._severity = severity
        self._watcher = watcher
        self._several_ranks = several_ranks
        self._pipelined = pipelined
        self._question: _Question | None = None
        self._due = False
        self._over = False

    def watch(self, recorder: Recorder) -> None:
        """Hear where the training goes on: before a forward, or before a step where none was seen."""
        model, optimizer = recorder.model, recorder.tracks[0].optimizer
        # First of all: the wrapper may gather the parameters in a hook of its own.
        forward = Hook(lambda *_: self.micro_step_begins(), recorder.fault, model)
        recorder.keep(model.register_forward_pre_hook(forward, prepend=True))
        step = Hook(lambda *_: self._go_on(), recorder.fault, optimizer)
        recorder.keep(optimizer.register_step_pre_hook(step))

    def attempt_ended(self) -> None:
        """An attempt of the first optimizer is over: every rank comes here as often as the others.

        Raises:
            FaultFoundError: a pipeline is not to go on.
        """
        if self._due or self._over:
            return
        wanted = bool(self._findings())
        if not self._several_ranks:
            self._due = wanted
            return
        question, self._question = self._question, None
        self._due = question is not None and question.answer()
        if not self._due:
            self._question = _Question(wanted)
        elif self._pipelined:
            self._go_on()

    def micro_step_begins(self) -> None:
        """The training goes on, unless this is an evaluation.

        Raises:
            FaultFoundError: it is not to go on.
        """
        if torch.is_grad_enabled():
            self._go_on()

    def _go_on(self) -> None:
        if not self._due:
            return
        self._due, self._over = False, True
        findings = self._findings()
        named = "; ".join(one.text for one in findings[:NAMED])
        if len(findings) > NAMED:
            named += f"; and {len(findings) - NAMED} more"
        what = named or "rank 0 has found a fault, and names it on its console"
        raise FaultFoundError(f"accumaudit: stopped by stop_on={self._severity!r}: {what}", findings)

    def _findings(self) -> tuple[Finding, ...]:
        return () if self._watcher is None else self._watcher.at_or_above(self._severity)


class _Question:
    """Whether any rank wants to stop: one number, reduced over all ranks while the training goes on."""

    def __init__(self, wanted: bool) -> None:
        self._flag = torch.full((1,), float(wanted), device=_device())
        session.stepping += 1  # the loop's own collectives are looked at, and this is none
        try:
            self._work: Any = distributed.all_reduce(self._flag, distributed.ReduceOp.MAX, async_op=True)
        finally:
            session.stepping -= 1
        if not self._flag.is_cpu:
            self._work.wait()  # the device's queue does, not the host
        self._shipment = Shipment([self._flag])

    def answer(self) -> bool:
        """What all ranks know alike."""
        if self._flag.is_cpu:
            self._work.wait()
        self._shipment.unload()
        return bool(self._shipment.number(self._flag))


def _device() -> torch.device:
    """The host where the default group serves it, else its own kind of device."""
    served = [entry.partition(":")[0] for entry in distributed.get_backend_config().split(",")]
    return torch.device("cpu" if "cpu" in served else served[0])
