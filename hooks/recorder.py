"""The recorder of one attach: it hears every event of a loop and gives each to its tracks."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from accumaudit.hooks import patches
from accumaudit.hooks.handles import Hook
from accumaudit.hooks.inputs import argument_names, describe, differentiable, lasting
from accumaudit.hooks.loss import LossCall, call_site
from accumaudit.hooks.running import Running
from accumaudit.hooks.schedule import moves_unseen
from accumaudit.hooks.session import session
from accumaudit.hooks.settle import Settler
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.track import Track
from accumaudit.hooks.window import Backward, Forward, Window
from accumaudit.ledger.schema import SCHEMA_VERSION
from accumaudit.ledger.writer import LedgerWriter

log = logging.getLogger("accumaudit")


def inner_module(model: nn.Module) -> nn.Module:
    """The module inside its wrapper."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class LossSource:
    """Where the attached model's own loss and its labels are found, for source "model_loss"."""

    def __init__(self, model: nn.Module, labels: str | None, ignore_index: int, reduction: str) -> None:
        self._labels = labels
        self._ignore_index = ignore_index
        self._reduction = reduction
        self._signature = inspect.signature(inner_module(model).forward) if labels is not None else None

    def call(
        self, output: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, LossCall] | None:
        """The scalar that the model returned, as a loss call; None where labels are not declared."""
        if self._signature is None or self._labels is None:
            return None
        named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        loss = named if isinstance(named, Tensor) else next(differentiable(output), None)
        target = self._signature.bind(*args, **kwargs).arguments.get(self._labels)
        if loss is None or loss.grad_fn is None or loss.numel() != 1 or not isinstance(target, Tensor):
            return None
        return loss, LossCall(
            site=("model", 0, 0),
            reduction=self._reduction,
            value=loss.detach().clone(),
            source="model_loss",
            target=target,
            ignore_index=self._ignore_index,
        )


class Recorder:
    """Hooks a model and its optimizers, and hands finished transactions to the writer."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        *,
        accumulation_steps: int | None,
        dataloader: Any,
        settler: Settler,
        loss_source: LossSource,
    ) -> None:
        self.model = model
        self.accumulation_steps = accumulation_steps
        self.settler = settler
        self.writer: LedgerWriter | None = None
        self.epoch: int | None = None
        self.faults = 0
        self.tracks = [
            Track(self, index, model, optimizer, scheduler)
            for index, (optimizer, scheduler) in enumerate(zip(optimizers, schedulers, strict=True))
        ]
        self._dataloader = dataloader
        self._loss_source = loss_source
        self._argument_names = argument_names(inner_module(model))
        self._running = Running()
        self._handles: list[Any] = []
        self._parameter_handles: dict[int, list[Any]] = {}

    # life

    def start(self) -> None:
        """Set every hook."""
        model = self.model
        self._keep(model.register_forward_pre_hook(self._hook(self._forward_begins, model), with_kwargs=True))
        self._keep(
            model.register_forward_hook(
                self._hook(self._forward_ended, model), with_kwargs=True, always_call=True
            )
        )
        if isinstance(model, DistributedDataParallel):
            inner = model.module
            self._keep(
                inner.register_forward_pre_hook(self._hook(self._inner_begins, inner), with_kwargs=True)
            )
            self._keep(
                inner.register_forward_hook(
                    self._hook(self._forward_ended, inner), with_kwargs=True, always_call=True
                )
            )
        for track in self.tracks:
            self._hook_optimizer(track)
        self._keep(register_optimizer_step_post_hook(self._hook(self._other_stepped)))
        for scheduler in {id(t.schedule.scheduler): t.schedule.scheduler for t in self.tracks}.values():
            if moves_unseen(scheduler):
                patches.watch_scheduler(scheduler)
        if self._dataloader is not None:
            patches.watch_data(self._dataloader)

    def _hook_optimizer(self, track: Track) -> None:
        optimizer = track.optimizer
        self._keep(
            optimizer.register_step_pre_hook(
                self._hook(lambda _optimizer, args, kwargs: track.step_begins(args, kwargs), optimizer)
            )
        )
        self._keep(optimizer.register_step_post_hook(self._hook(lambda *_: track.step_ended(), optimizer)))
        self._hook_parameters(track)

    def _hook_parameters(self, track: Track) -> None:
        """Hear every parameter that is trained now."""
        for handle in self._parameter_handles.get(track.index, ()):
            handle.remove()
        accumulated = _Accumulation(functools.partial(session.accumulated, track), self.fault, id(track))
        self._parameter_handles[track.index] = [
            parameter.register_post_accumulate_grad_hook(accumulated) for parameter in track.parameters
        ]

    def _hook(self, function: Callable[..., None], owner: object = None) -> Any:
        return Hook(function, self.fault, owner)

    def _keep(self, handle: Any) -> None:
        self._handles.append(handle)

    def unhook(self) -> None:
        """Take every hook away."""
        for handle in (*self._handles, *(h for handles in self._parameter_handles.values() for h in handles)):
            handle.remove()
        self._handles, self._parameter_handles, self._running = [], {}, Running()

    def stop(self) -> None:
        """Give what is left to the writer."""
        for track in self.tracks:
            self.guard(track.end)

    def guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something; what goes wrong is counted and goes no further."""
        try:
            action(*arguments)
        except Exception as error:
            self.fault(error)

    def fault(self, error: Exception) -> None:
        """Count a fault of the hooks; tell it once and mark it. The loop goes on."""
        self.faults += 1
        if self.faults > 1:
            return
        log.warning("accumaudit: a hook failed and the training goes on: %s: %s", type(error).__name__, error)
        log.debug("accumaudit: the failed hook", exc_info=error)
        self.mark("hook_error", name=f"{type(error).__name__}: {error}"[:500])

    # events

    def poll(self) -> None:
        """Look at what no call tells."""
        for track in self.tracks:
            track.poll()

    def window_begins(self) -> None:
        """Where a window may begin: parameters may be trained now that were not before, or not any more."""
        for track in self.tracks:
            if track.is_between_windows and track.parameters_changed():
                self._hook_parameters(track)

    def backward_begins(self) -> None:
        """A backward begins."""
        self.poll()
        self.window_begins()

    def _forward_begins(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin("F" if self.tracks[0].reduces() else "f", sys._getframe(2), args, kwargs)

    def _inner_begins(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin("D", sys._getframe(2), args, kwargs)

    def _begin(self, letter: str, caller: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins; it may be one of training if it lies in no other and is no recomputation."""
        outermost = self._running.begin(caller)
        if not outermost or not torch.is_grad_enabled() or session.in_backward:
            return
        self.poll()
        self.window_begins()
        forward = Forward(letter)
        self.guard(describe, forward, self._argument_names, args, kwargs)
        for track in self.tracks:
            track.note(letter, forward)
        self._running.note(forward)

    def _forward_ended(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        forward = self._running.end()
        if forward is None:
            return
        nodes = {lasting(tensor).grad_fn for tensor in differentiable(output)}
        use = _Use(forward)
        for node in nodes:
            if node is not None:
                node.register_prehook(use)
        own = self._loss_source.call(output, args, kwargs) if nodes else None
        if own is not None:
            session.watch_loss(own[0], lambda _tensor: own[1])

    def _other_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        for track in self.tracks:
            if track.optimizer is not optimizer:
                track.note("o")

    def backward_ended(self, backward: Backward) -> None:
        """A backward has ended, its reduction included."""
        for track in self.tracks:
            track.backward_ended(backward)

    def clip_begins(self, parameters: list[Tensor]) -> None:
        """Just before a clip."""
        for track in self.tracks:
            track.clip_begins(parameters)

    def clip_ended(self, kind: str, parameters: list[Tensor], limit: Any, norm: Any) -> None:
        """Just after a clip."""
        for track in self.tracks:
            track.clip_ended(kind, parameters, limit, norm)

    def scheduler_stepped(self, scheduler: object) -> None:
        """A scheduler whose steps cannot be seen by looking has made one."""
        for track in self.tracks:
            if track.schedule.scheduler is scheduler:
                track.note("S")
                track.schedule.follow(scheduler)

    def reads(self, data: object) -> bool:
        """Whether this is the declared dataloader."""
        return data is self._dataloader

    def data_begins(self, data: object) -> None:
        """A new iteration over the data."""
        if self.reads(data):
            if self.epoch is not None:
                self.mark("epoch_end")
            self.epoch = (self.epoch or 0) + 1

    def data_ended(self, data: object) -> None:
        """The data is exhausted."""
        if self.reads(data):
            self.mark("end_of_data")
            self._note_data_end()

    def _note_data_end(self) -> None:
        for track in self.tracks:
            if track.leftover is not None:
                track.note("|")

    # records

    def submit(self, track: Track, window: Window) -> None:
        """Hand a finished transaction to the writer thread."""
        if self.writer is None:
            return
        shipment = Shipment(window.tensors())
        self.writer.submit(lambda: self.settler.update(track.index, window, shipment))

    def mark(self, kind: str, **fields: Any) -> None:
        """Write a mark at this point of the run."""
        if self.writer is None:
            return
        first = self.tracks[0]
        place = {"attempt_id": first.attempts, "micro_step_id": first.micro_steps, "epoch": self.epoch}
        moment = time.time()
        self.writer.submit(lambda: self.settler.mark(kind, {**place, "time": moment, **fields}))

    def _mark_close(self, track: Track, reason: str, finished: bool) -> None:
        """The last record of an optimizer: what no attempt has used, by then."""
        left = track.leftover
        shipment = Shipment(left.tensors() if left is not None else ())
        fields = {
            "optimizer": track.index,
            "attempt_id": track.attempts,
            "micro_step_id": track.micro_steps,
            "epoch": self.epoch,
            "time": time.time(),
            "reason": reason,
            "finished": finished,
        }
        if self.writer is not None:
            self.writer.submit(
                lambda: self.settler.mark("close", {**fields, **self.settler.leftover(left, shipment)})
            )

    def finish(self, reason: str, finished: bool) -> None:
        """Write the last record and end the writer."""
        for track in self.tracks:
            self.guard(self._mark_close, track, reason, finished)
        if self.writer is not None:
            self.writer.close()
        self.tracks.clear()  # they refer to this recorder: without them all is let go of at once

    # what the loop tells

    def report(self, values: Mapping[str, Any]) -> None:
        """What the loop says of the transaction that is open."""
        self.poll()
        for name, value in values.items():
            kept = value.detach().clone() if isinstance(value, Tensor) else value
            for track in self.tracks:
                track.window.reported[name] = kept

    def declared_mark(self, kind: str, name: str | None) -> None:
        """A mark that the loop makes; the end of the data is part of the word too."""
        if kind == "epoch_end" and self._dataloader is None:
            self.epoch = (self.epoch or 1) + 1
        self.mark(kind, **({} if name is None else {"name": str(name)}))
        if kind in ("epoch_end", "end_of_data"):
            self._note_data_end()

    def declare(self, values: Mapping[str, Any]) -> None:
        """What the loop declares, from the next window on."""
        others = dict(values)
        if "accumulation_steps" in others:
            self.accumulation_steps = others.pop("accumulation_steps")
            for track in self.tracks:
                if track.window.attempt is None and not track.window.micro_steps:
                    track.window.accumulation_steps = self.accumulation_steps
        if "loss_coefficients" in others:
            self.settler.coefficients = dict(others.pop("loss_coefficients"))
        if others:
            self.mark("declare", name=json.dumps(others, sort_keys=True))

    def follow_scheduler(self, scheduler: Any) -> None:
        """A scheduler that was made after attach."""
        self.tracks[0].schedule.follow(scheduler)
        self.tracks[0].window.schedule = self.tracks[0].schedule.state
        if moves_unseen(scheduler):
            patches.watch_scheduler(scheduler)

    def state_dict(self) -> dict[str, Any]:
        """The counts that a resumed run continues."""
        tracks = [{"updates": track.updates, "micro_steps": track.micro_steps} for track in self.tracks]
        return {"schema": SCHEMA_VERSION, "epoch": self.epoch, "optimizers": tracks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the counts."""
        self.epoch = state["epoch"]
        for track, counts in zip(self.tracks, state["optimizers"], strict=True):
            track.continue_from(counts["updates"], counts["micro_steps"])
        self.declare({"resumed_from_update": self.tracks[0].updates})

    def observe_loss(self, loss: Tensor, valid_tokens: Any, reduction: str) -> None:
        """A loss that no patched function makes, declared by the loop."""
        tokens = valid_tokens.detach().clone() if isinstance(valid_tokens, Tensor) else float(valid_tokens)
        call = LossCall(
            site=call_site(),
            reduction=reduction,
            value=loss.detach().clone(),
            source="declared",
            valid_tokens=tokens,
        )
        session.watch_loss(loss, lambda _tensor: call)


class _Accumulation(Hook):
    """The hook on a parameter: the first of a backward opens it for a track, all others are only noted."""

    def __init__(
        self, function: Callable[..., None], on_fault: Callable[[Exception], None], track: int
    ) -> None:
        super().__init__(function, on_fault)
        self._track = track

    def __call__(self, first: Tensor, *args: Any, **kwargs: Any) -> None:
        backward = session.backward  # read once: another thread may end it
        fired = None if backward is None else backward.fired.get(self._track)
        if fired is None:
            super().__call__(first, *args, **kwargs)
        else:
            fired.append(first)


class _Use:
    """The hook on a forward's output: a backward went through it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def __call__(self, _gradients: object) -> None:
        try:
            self._forward.used_by = session.current_backward()
        except Exception as error:
            session.fault(error)
