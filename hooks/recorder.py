"""The recorder of one attach: it hears every event of a loop and gives each to its tracks."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from accumaudit.hooks import patches
from accumaudit.hooks.average import decay_of
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.engine_track import EngineTrack
from accumaudit.hooks.handles import Hook
from accumaudit.hooks.inputs import argument_names, describe, differentiable, lasting
from accumaudit.hooks.loss import LossCall, call_site
from accumaudit.hooks.model_loss import LossSource
from accumaudit.hooks.options import Options
from accumaudit.hooks.reducers import Reducer
from accumaudit.hooks.running import Running
from accumaudit.hooks.schedule import moves_unseen
from accumaudit.hooks.session import session
from accumaudit.hooks.settle import Settler
from accumaudit.hooks.shards import is_distributed
from accumaudit.hooks.shipment import Shipment
from accumaudit.hooks.stopping import Stopper
from accumaudit.hooks.track import Track
from accumaudit.hooks.watching import FaultFoundError
from accumaudit.hooks.window import Backward, Forward, Window
from accumaudit.ledger.schema import SCHEMA_VERSION
from accumaudit.ledger.writer import LedgerWriter

log = logging.getLogger("accumaudit")

STATE_TIMEOUT: Final = 10.0
"""Seconds that a checkpoint waits for the writer."""


class Recorder:
    """Hooks a model and its optimizers, and hands finished transactions to the writer."""

    def __init__(
        self,
        contract: Contract,
        reducer: Reducer,
        options: Options,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        *,
        several_ranks: bool,
        pipelined: bool,
        scaler: Any,
        settler: Settler,
        loss_source: LossSource,
    ) -> None:
        self.contract = contract
        self.reducer = reducer
        self.model = model
        self.accumulation_steps = options.accumulation_steps
        self.every = options.every
        self.several_ranks = several_ranks
        self.pipelined = pipelined
        """A schedule runs forwards ahead of other micro-steps' backwards."""
        self._divisor = self._divisor_now()
        self.settler = settler
        self.writer: LedgerWriter | None = None
        self.stopper: Stopper | None = None
        self.epoch: int | None = None
        self.faults = 0
        self.thread = threading.get_ident()
        """The one that trains: another of the program's may run backwards that are none of this run's."""
        self._told_replaced = False
        self.tracks = [
            (EngineTrack if contract.tells_steps else Track)(self, index, model, optimizer, scheduler)
            for index, (optimizer, scheduler) in enumerate(zip(optimizers, schedulers, strict=True))
        ]
        self._dataloader = options.dataloader
        self._scaler = scaler
        self._loss_source = loss_source
        self._argument_names = argument_names(reducer.inner)
        self._running = Running()
        self._forwards = itertools.count()
        self._looked = False
        """Parameters have been looked at since the last backward."""
        self._steps_seen = 0
        self._steps_before = 0
        """Steps of all optimizers that torch knows, now and when a scaler was asked for one."""
        self._averages = 0
        self._handles: list[Any] = []
        self._parameter_handles: dict[int, list[Any]] = {}

    # life

    def start(self) -> None:
        """Set every hook."""
        if self.stopper is not None:
            self.stopper.watch(self)
        if not self.contract.tells_forwards:
            self._hook_forwards(self.model)
        for track in self.tracks:
            self._hook_parameters(track)
            if not self.contract.tells_steps:
                self._hook_optimizer(track)
        self._keep(register_optimizer_step_post_hook(self._hook(self._other_stepped)))
        for scheduler in {id(t.schedule.scheduler): t.schedule.scheduler for t in self.tracks}.values():
            if moves_unseen(scheduler):
                patches.watch_scheduler(scheduler)
        if self._dataloader is not None:
            patches.watch_data(self._dataloader)
        if self._scaler is not None:
            patches.watch_scaler(self._scaler)
        self.reducer.watch(self)

    def _hook_forwards(self, model: nn.Module) -> None:
        self._keep(model.register_forward_pre_hook(self._hook(self._forward_begins, model), with_kwargs=True))
        self._keep(
            model.register_forward_hook(
                self._hook(self._forward_ended, model), with_kwargs=True, always_call=True
            )
        )
        if (inner := self.reducer.bypassed) is not None:
            self._keep(
                inner.register_forward_pre_hook(self._hook(self._inner_begins, inner), with_kwargs=True)
            )
            self._keep(
                inner.register_forward_hook(
                    self._hook(self._forward_ended, inner), with_kwargs=True, always_call=True
                )
            )

    def attempt_ended(self, track: Track) -> None:
        """The attempt of an optimizer is over."""
        if self.stopper is not None and track is self.tracks[0]:
            self.stopper.attempt_ended()

    def _hook_optimizer(self, track: Track) -> None:
        optimizer = track.optimizer
        track.step_hook = self._hook(
            lambda _optimizer, args, kwargs: track.step_begins(args, kwargs), optimizer
        )
        self._keep(optimizer.register_step_pre_hook(track.step_hook))
        self._keep(optimizer.register_step_post_hook(self._hook(lambda *_: track.step_ended(), optimizer)))

    def _hook_parameters(self, track: Track) -> None:
        """Hear every parameter that is trained now."""
        if not self.reducer.hears_parameters:
            return  # some wrappers work another way where a parameter has a hook
        for handle in self._parameter_handles.get(track.index, ()):
            handle.remove()
        # The cheapest of hooks: it is called for every parameter in every backward.
        self._parameter_handles[track.index] = [
            parameter.register_post_accumulate_grad_hook(track.fired.append) for parameter in track.parameters
        ]

    def _divisor_now(self) -> float | None:
        return self.reducer.gradient_divisor(2 if self.several_ranks else 1)

    @property
    def divisor_ratio(self) -> float | None:
        """The reduction's divisor at attach over that of now; None where it is not known any more."""
        now = self._divisor_now()
        return 1.0 if now == self._divisor or not self._divisor else self._divisor / now if now else None

    def _hook(self, function: Callable[..., Any], owner: object = None) -> Hook:
        return Hook(function, self.fault, owner)

    def keep(self, handle: Any) -> None:
        """Take the hook of this handle away with all others."""
        self._handles.append(handle)

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
        """Do something; what goes wrong is counted and goes no further, but for a stop that was asked for."""
        try:
            action(*arguments)
        except FaultFoundError:
            raise
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
        for track in self.tracks:
            track.backward_begins()
        if not self._looked:
            self.window_begins()
        self._looked = False

    def unseen_backward_begins(self) -> None:
        """A backward has begun, and has been seen by what it goes through."""
        for track in self.tracks:
            track.backward_begins()

    def _forward_begins(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin("F" if self.reducer.forward_reduces() else "f", sys._getframe(2), args, kwargs)

    def _inner_begins(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin("D", sys._getframe(2), args, kwargs)

    def _begin(self, letter: str, caller: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins; it may be one of training if it lies in no other and is no recomputation."""
        outermost = self._running.begin(caller)
        if not outermost or not torch.is_grad_enabled():
            return
        if session.backward is not None and session.in_backward:
            return  # a recomputation, perhaps in a thread of autograd's
        self.thread = threading.get_ident()
        self.poll()
        self.window_begins()
        self._looked = True
        forward = self._note_forward(letter)
        self._running.note(forward)
        describe(forward, self._argument_names, args, kwargs)

    def _note_forward(self, letter: str) -> Forward:
        forward = Forward(letter, number=next(self._forwards), recorder=id(self))
        for track in self.tracks:
            track.note(letter, forward)
        return forward

    def forward_told(self, inputs: object, loss: Tensor) -> Forward:
        """A forward that has just ended, by what it was given and the loss that came of it."""
        self.thread = threading.get_ident()
        self.poll()
        forward = self._note_forward("F" if self.reducer.forward_reduces() else "f")
        describe(forward, (), (inputs,), {})
        self.loss_told(forward, loss)
        return forward

    def loss_told(self, forward: Forward, loss: Tensor) -> None:
        """A loss that came of a forward, about to be called backward on."""
        session.watch_use(forward, [node for node in (lasting(loss).grad_fn,) if node is not None])

    def _forward_ended(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        forward = self._running.end()
        if forward is None:
            return
        found = (output,) if type(output) is Tensor else tuple(differentiable(output))
        nodes = {node for tensor in found if (node := lasting(tensor).grad_fn) is not None}
        session.watch_use(forward, nodes)
        if not nodes or not self._loss_source.is_declared:
            return
        own = self._loss_source.call(output, args, kwargs)
        if own is not None:
            session.watch_loss(own[0], lambda _tensor: own[1])

    def _other_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self._steps_seen += 1
        self._note_other(optimizer)

        if not self._told_replaced and all(track.optimizer is not optimizer for track in self.tracks):
            self._tell_if_replaced(optimizer)

    def _tell_if_replaced(self, optimizer: Optimizer) -> None:
        """Say that one which is not attached uses up gradients of one that is.

        An optimizer around an attached one steps the same parameters too, but then the attached one has
        stepped as well. One inside an attached one, such as that of ZeroRedundancyOptimizer, is part of it.
        """
        waiting = [track for track in self.tracks if track.leftover is not None and not track.is_stepping]
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(track.trains_any(trained) for track in waiting):
            self._told_replaced = True
            self.not_recorded(
                f"a {type(optimizer).__name__} that is not attached steps parameters of one that is: "
                "its updates are not recorded"
            )

    def _note_other(self, optimizer: Optimizer) -> None:
        for track in self.tracks:
            if track.optimizer is not optimizer:
                track.note("o")

    def backward_ended(self, backward: Backward) -> None:
        """A backward has ended, its reduction included."""
        for track in self.tracks:
            track.backward_ended(backward)

    def reduced_late(self, model: nn.Module) -> None:
        """What the backwards of this model gathered has been reduced, after the last of them."""
        if any(module is model for module in self.model.modules()):
            for track in self.tracks:
                track.reduced_late()

    def clip_begins(self, parameters: list[Tensor]) -> None:
        """Just before a clip."""
        for track in self.tracks:
            track.clip_begins(parameters)

    def clip_ended(
        self, kind: str, parameters: list[Tensor], limit: Any, norm: Any, whole: bool = False
    ) -> None:
        """Just after a clip; `whole`: its norm is that of all ranks' shards."""
        for track in self.tracks:
            track.clip_ended(kind, parameters, limit, norm, whole)

    def unscale_begins(self, scaler: Any, optimizer: Any) -> None:
        """Just before a scaler unscales the gradients of an optimizer."""
        for track in self._tracks_of(optimizer):
            track.unscale_begins(scaler)

    def unscale_ended(self, optimizer: Any) -> None:
        """Just after it."""
        for track in self._tracks_of(optimizer):
            track.unscale_ended()

    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        """A scaler is asked to step an optimizer."""
        self._steps_before = self._steps_seen
        for track in self._tracks_of(optimizer):
            track.touched_by(scaler)

    def scaler_step_ended(self, optimizer: Any) -> None:
        """It has; where no step was made it skipped it."""
        if self._steps_seen != self._steps_before:
            return
        for track in self._tracks_of(optimizer):
            track.skipped_by_scaler()
        self._note_other(optimizer)

    def scaler_updated(self, scaler: Any) -> None:
        """A scaler has looked at the overflows and set its scale for the next updates."""
        for track in self.tracks:
            track.scaler_updated(scaler)

    def _tracks_of(self, optimizer: Any) -> list[Track]:
        return [track for track in self.tracks if track.optimizer is optimizer]

    def model_averaged(self, average: Any, model: Any) -> None:
        """A moving average took in the parameters of a model."""
        count = getattr(average, "n_averaged", None)
        updates = count.detach().clone() if isinstance(count, Tensor) else count
        for track in self.tracks:
            if track.trains_any(model.parameters()):
                track.averaged(updates, decay_of(average))

    def ema_updated(self, decay: float | None) -> None:
        """The loop says that its own moving average took in the parameters."""
        self.poll()
        self._averages += 1
        for track in self.tracks:
            track.averaged(self._averages, decay)

    def collective_begins(self) -> None:
        """Just before the loop runs a collective."""
        for track in self.tracks:
            track.collective_begins()

    def collective_ended(self, tensors: list[Any], finished: bool) -> None:
        """Just after it; one that is not waited for may be unfinished."""
        for track in self.tracks:
            track.collective_ended(tensors, finished)

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
            self.epoch_begins((self.epoch or 0) + 1)

    def data_ended(self, data: object) -> None:
        """The data is exhausted."""
        if self.reads(data):
            self.end_of_data()

    def epoch_begins(self, epoch: int) -> None:
        """The data begins from its start; epochs count from 1."""
        if self.epoch is not None:
            self.mark("epoch_end")
        self.epoch = epoch

    def end_of_data(self, **fields: Any) -> None:
        """No more data in this epoch."""
        self.mark("end_of_data", **fields)
        self._note_data_end()

    def _note_data_end(self) -> None:
        for track in self.tracks:
            if track.leftover is not None:
                track.note("|")

    def step_passed_over(self, optimizer: Optimizer) -> None:
        """Torch has made a step part of a program, which runs without the hooks."""
        name = type(optimizer).__name__
        self.not_recorded(f"a step of {name} was compiled, or captured in a CUDA graph: it is not recorded")

    # records

    def not_recorded(self, what: str) -> None:
        """Say, and mark, that the records have a hole."""
        log.warning("accumaudit: %s", what)
        self.mark("not_recorded", name=what)

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
            if isinstance(value, Tensor) and is_distributed(value):
                continue  # it may have to be asked of other ranks
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
        tracks = [
            {"updates": track.updates - self._late_skips(track), "micro_steps": track.micro_steps}
            for track in self.tracks
        ]
        return {"schema": SCHEMA_VERSION, "epoch": self.epoch, "optimizers": tracks}

    def _late_skips(self, track: Track) -> int:
        """Attempts so far that only the writer knows to be skipped; it is waited for."""
        window, done = track.window, threading.Event()
        shipment = Shipment(window.tensors())
        found = [0]

        def count() -> None:
            shipment.unload()
            found[0] = self.settler.late_skips(track.index, window, shipment)
            done.set()

        if self.writer is not None:
            self.writer.submit(count, urgent=True)
            done.wait(STATE_TIMEOUT)
        return found[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the counts; the state of an audit that recorded nothing tells none."""
        if not state.get("optimizers"):
            return
        self.epoch = state["epoch"]
        for track, counts in zip(self.tracks, state["optimizers"], strict=True):
            track.continue_from(counts["updates"], counts["micro_steps"])
        self.declare({"resumed_from_update": self.tracks[0].updates})

    def observe_loss(self, loss: Tensor, valid_tokens: Any, reduction: str, divisor: Any = None) -> None:
        """A loss that no patched function makes, declared by the loop; a sum may be divided already."""
        tokens = valid_tokens.detach().clone() if isinstance(valid_tokens, Tensor) else float(valid_tokens)
        call = LossCall(
            site=call_site(),
            reduction=reduction,
            value=loss.detach().clone(),
            source="declared",
            valid_tokens=tokens,
            divisor=divisor,
        )
        session.watch_loss(loss, lambda _tensor: call)
