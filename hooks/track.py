"""One attached optimizer: what it does, letter by letter, and where a transaction ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from operator import is_
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumaudit.hooks.closures import Arguments, WatchedClosure, closure_of, with_closure
from accumaudit.hooks.digest import digest_all
from accumaudit.hooks.frames import calling_frame, is_running
from accumaudit.hooks.gathering import Gathering
from accumaudit.hooks.handles import Hook
from accumaudit.hooks.optimizers import (
    frozen_rate,
    gradient_norm,
    own_copy,
    plain_number,
    shard_norm,
    state_step,
)
from accumaudit.hooks.probe import CLEARED, Candidate, Change, Probe, probe_candidates
from accumaudit.hooks.schedule import ScheduleWatch
from accumaudit.hooks.session import session
from accumaudit.hooks.shards import local, version
from accumaudit.hooks.window import Attempt, Backward, Clip, Event, Forward, MicroStep, Window

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder

DIGEST_EVERY: Final = 10
"""Parameters are hashed at the first update of a launch and at every tenth."""

EVENTS: Final = 4096
"""Events of an open window from which on those that say nothing are dropped."""

DISCARDED: Final = 1024
"""Micro-steps whose gradients were thrown away, from which on they are only counted."""

RECENT: Final = 64
"""The last ones, which are kept: their backward may be to come."""


class Track:
    """The open window of one optimizer and the counts that its records carry."""

    def __init__(
        self, recorder: Recorder, index: int, model: nn.Module, optimizer: Optimizer, scheduler: Any
    ) -> None:
        self._recorder = recorder
        self._model = model
        self._reducer = recorder.reducer
        self.index = index
        self.optimizer = optimizer
        self.parameters = self._reducer.parameters(optimizer)
        self._ids = {id(parameter) for parameter in self.parameters}
        self.probe = Probe(self._candidates(), self._reducer.gradient)
        self.fired: list[Tensor] = []
        """Parameters that got a gradient in the backward that runs; their hooks append to it."""
        self._gathering: Gathering | None = None
        """Tells of those whose hooks are silent."""
        self._awaits_gradient = False
        """Gradients of the last backward are still on their way: a later one waits for them."""
        self._reduces = True
        self._event_limit = EVENTS
        self._digest_due = 0
        self._moved_due = 0
        self._left_version = version(self.probe.parameter)
        """Version of the polled parameter when the last step had been made."""
        self.step_hook: Hook | None = None
        self._told_passed_over = False
        self.schedule = ScheduleWatch(optimizer, scheduler)
        self.attempts = 0
        self.updates = 0
        self._continued = False
        self.micro_steps = 0
        self.window = Window(accumulation_steps=recorder.accumulation_steps, schedule=self.schedule.state)
        self._attempt: Attempt | None = None
        self._step_frame: FrameType | None = None
        """The call of step that is running, or that raised."""
        self._scaler: Any = None
        """The scaler that unscaled or stepped and has not been updated since."""
        self._before: Tensor | None = None
        """The probe's slice before a clip, or before a scaler unscales."""
        self._collective: Literal["gradient", "other"] | None = None
        """The loop has just run a collective: on the polled gradient, or on something that can hold it."""
        self._in_closure = False
        self._cleared = all(parameter.grad is None for parameter in self.parameters)
        if not self._cleared and self.probe.slice is not None:
            self.window.events.append(Event("?", change=Change(None, self.probe.slice)))

    def _candidates(self) -> list[Candidate]:
        shown = [parameter for parameter in self.parameters if self._reducer.shows(parameter)]
        return probe_candidates(self._model, shown or self.parameters)

    def continue_from(self, updates: int, micro_steps: int) -> None:
        """Count on from an earlier launch."""
        self.updates, self.micro_steps, self._continued = updates, micro_steps, True

    # looking

    @property
    def is_between_windows(self) -> bool:
        """Whether what comes next may open a window."""
        return self.window.attempt is not None or not self.window.micro_steps

    @property
    def has_gradient(self) -> bool:
        """Whether a parameter has one now."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def trains_any(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of these is trained by this optimizer."""
        return any(id(parameter) in self._ids for parameter in parameters)

    def parameters_changed(self) -> bool:
        """Whether other parameters are trained now than before; they are taken over."""
        now = self._reducer.parameters(self.optimizer)
        if not now or (len(now) == len(self.parameters) and all(map(is_, now, self.parameters))):
            return False
        self.parameters, self._ids = now, {id(parameter) for parameter in now}
        self.probe.candidates = self._candidates()
        return True

    def poll(self) -> None:
        """Look at what no call tells: the scheduler, the rate and the gradient."""
        if self.step_hook is not None and self.step_hook.passed_over:
            self._forget_passed_over(self.step_hook)
        if self.fired:
            session.settle_unseen(self)
        steps, rate_changed = self.schedule.look()
        if steps:
            self.window.events.append(Event("S", schedule=self.schedule.state, times=steps))
        if rate_changed:
            self.window.events.append(Event("R"))
        collective, self._collective = self._collective, None
        change = None if self._awaits_gradient else self.probe.look()
        if change is CLEARED:
            self._cleared = True
        elif collective == "gradient":  # one that was not waited for may not show in the version
            self.probe.refresh()
            self._note_gradient()
        elif change is not None:
            if self._cleared:  # set by hand where there was none
                self.note("Z")
                self._cleared = False
            self.window.events.append(Event("?", change=change, collective=collective is not None))

    def _forget_passed_over(self, hook: Hook) -> None:
        """A compiled or captured step has used the open window: it makes no record."""
        hook.passed_over = False
        if not self._told_passed_over:
            self._told_passed_over = True
            self._recorder.step_passed_over(self.optimizer)
        if self.window.attempt is not None:
            self.close_window()
        self.window = Window(
            accumulation_steps=self._recorder.accumulation_steps, schedule=self.window.schedule
        )

    def note(self, letter: str, forward: Forward | None = None) -> None:
        """Add a letter."""
        self.window.events.append(Event(letter, forward=forward))
        if len(self.window.events) >= self._event_limit:
            self._forget_unused()

    def _forget_unused(self) -> None:
        """Drop forwards that no backward has used for long, and count what repeats: memory has an end."""
        used = {id(forward) for step in self.window.micro_steps for forward in step.forwards}
        events = self.window.events
        kept: list[Event] = []
        for event in events[:-RECENT]:
            if event.letter == "o" and kept and kept[-1].letter == "o":
                kept[-1].times += event.times
            elif event.forward is None or id(event.forward) in used:
                kept.append(event)
        self.window.events = kept + events[-RECENT:]
        self._event_limit = max(EVENTS, 2 * len(self.window.events))

    # backward

    def backward_begins(self) -> None:
        """Look, and note whether gradients will be reduced."""
        self.poll()
        self._reduces = self._reducer.backward_reduces()
        if not self._reducer.hears_parameters:
            self._gathering = Gathering(self._reducer, self.parameters)

    def backward_ended(self, backward: Backward) -> None:
        """Decide where the transaction began, and count the micro-step."""
        fired = self.fired.copy()
        self.fired.clear()  # the hooks hold this list
        if self._gathering is not None:
            fired += self._gathering.ended(self.probe.parameter)
            self._gathering = None
        if not fired or id(self) in backward.counted:
            return
        if self.window.attempt is not None:
            self.rotate(backward)
            # Of a parameter that lies on other ranks alone no gradient is seen to go.
            self._cleared = self._cleared or not local(self.probe.parameter).numel()
        events = self.window.events
        first = self._first_new_forward(backward)
        if self._cleared:
            place = len(events) if first is None else first
            if len(self.window.micro_steps) >= DISCARDED:
                self.window.discarded += len(self.window.micro_steps)
                self.window.micro_steps.clear()
                del events[:place]
                place = 0
            events.insert(place, Event("Z"))
            self._cleared = False
        joins = first is None and self.window.saw_forward and not self._has_own_forward(backward)
        micro_step = self.window.micro_steps[-1] if joins else self._begin_micro_step()
        events.append(Event("B" if self._reduces else "b", micro_step=micro_step))
        self._fill(micro_step, backward)
        self.probe.follow(fired)
        self._awaits_gradient = not self._reducer.settled
        if not self._awaits_gradient:
            self.probe.refresh()
            self._note_gradient()

    def _has_own_forward(self, backward: Backward) -> bool:
        """Whether no backward went before through one of its forwards: in a pipeline that is a micro-step."""
        if not self.window.micro_steps:
            return True
        if not self._recorder.pipelined:
            return False
        used = {id(forward) for step in self.window.micro_steps for forward in step.forwards}
        own = (forward for forward in backward.forwards if forward.recorder == id(self._recorder))
        return any(id(forward) not in used for forward in own)

    def reduced_late(self) -> None:
        """What the backwards gathered has been reduced, after the last of them: it is noted at that one."""
        last = next((event for event in reversed(self.window.events) if event.micro_step is not None), None)
        if last is None or last.letter == "B" or self.window.attempt is not None:
            return
        last.letter = "B"
        self._awaits_gradient = False
        self.probe.refresh()
        self._note_gradient()

    def _note_gradient(self) -> None:
        self.window.gradient = self.probe.slice
        self.window.gradient_scale = self._scale_on_gradients()

    def _begin_micro_step(self) -> MicroStep:
        micro_step = MicroStep()
        self.window.micro_steps.append(micro_step)
        self.micro_steps += 1
        return micro_step

    def _first_new_forward(self, backward: Backward) -> int | None:
        """Place of the first forward of this backward after the last one."""
        found = None
        for place in range(len(self.window.events) - 1, -1, -1):
            event = self.window.events[place]
            if event.micro_step is not None:
                break
            if event.forward is not None and event.forward.used_by is backward:
                found = place
        return found

    def _fill(self, micro_step: MicroStep, backward: Backward) -> None:
        recorder = id(self._recorder)
        own = [forward for forward in backward.forwards if forward.recorder == recorder]
        if own:
            self.window.saw_forward = True
        if len(own) > 1 or micro_step.forwards:
            together = {forward.number: forward for forward in (*micro_step.forwards, *own)}
            own = [together[number] for number in sorted(together)]
        micro_step.forwards = own
        if not micro_step.roots:
            micro_step.scale = backward.scale
        elif micro_step.scale is not backward.scale and micro_step.scale != backward.scale:
            micro_step.scale = None
        # Of several losses through models that are attached apart, it is not known which is whose.
        if len(backward.calls) == 1 or all(forward.recorder == recorder for forward in backward.forwards):
            micro_step.calls.extend(reversed(backward.calls))  # hooks fire in reverse
        micro_step.roots.append(backward.root)
        micro_step.note_scored()

    def rotate(self, backward: Backward | None = None) -> None:
        """Close the transaction before the earliest forward of the backward, else here."""
        events = self.window.events
        attempt = next(p for p in range(len(events) - 1, -1, -1) if events[p].letter in "OX")
        used = [] if backward is None else [p for p in range(len(events)) if _is_used(events[p], backward)]
        boundary = next((place for place in used if place > attempt), len(events))
        # A change of the gradients after the attempt belongs to the window that it opens, and a forward
        # that was run ahead of the attempt to the window that uses it.
        ahead = [place for place in used if place < attempt]
        ahead += [place for place in range(attempt, boundary) if events[place].letter in "?Z"]
        following = Window(
            events=[events[place] for place in ahead] + events[boundary:],
            accumulation_steps=self._recorder.accumulation_steps,
        )
        self.window.events = [events[place] for place in range(boundary) if place not in ahead]
        self.close_window()
        following.schedule = self.window.schedule
        self.window = following

    def close_window(self) -> None:
        """Give the window to the writer, once an attempt has closed it."""
        for event in self.window.events:
            if event.schedule is not None:
                self.window.schedule = event.schedule
        self._recorder.submit(self, self.window)

    def end(self) -> None:
        """Look a last time, and close the window if an attempt has."""
        self.poll()
        if self.window.attempt is not None:
            self.close_window()

    # clipping

    def clip_begins(self, parameters: list[Tensor]) -> None:
        """Just before a clip."""
        if any(id(parameter) in self._ids for parameter in parameters):
            self.poll()
            self._before = self.probe.slice

    def clip_ended(
        self, kind: str, parameters: list[Tensor], limit: Any, norm: Any, whole: bool = False
    ) -> None:
        """Just after a clip; `whole`: its norm is that of all ranks' shards."""
        given = {id(parameter) for parameter in parameters if parameter.grad is not None}
        if given and not given & self._ids:
            return  # of another optimizer; a clip of nothing at all is everybody's
        self.probe.refresh()
        scope: str | None = "global"
        if not isinstance(norm, Tensor):
            norm = None
        elif not whole:
            norm, scope = self._reducer.returned_norm(norm)
        self.window.clips.append(
            Clip(
                micro_step=len(self.window.micro_steps),
                kind=kind,
                limit=limit.detach().clone() if isinstance(limit, Tensor) else float(limit),
                norm=None if norm is None else norm.detach().clone(),
                scope=scope,
                complete=bool(given) and not self._have_gradients(self._ids - given),
                before=self._before if id(self.probe.parameter) in given else None,
                after=self.probe.slice if id(self.probe.parameter) in given else None,
                scale=self._scale_on_gradients(),
            )
        )
        if given and (isinstance(limit, Tensor) or float(limit) != float("inf")):
            self.note("C")

    def _have_gradients(self, ids: set[int]) -> bool:
        return bool(ids) and any(id(p) in ids and p.grad is not None for p in self.parameters)

    # scaling

    def _scale_on_gradients(self) -> Tensor | float | None:
        """The loss scale that the gradients carry now."""
        if self.window.scaling.unscaled or not self.window.micro_steps:
            return 1.0
        return self.window.micro_steps[-1].scale

    @property
    def _is_used_up(self) -> bool:
        """Whether a runtime's step goes on behind the optimizer's: with the next group, which is no news."""
        return self._attempt is not None and self._attempt.placed

    def touched_by(self, scaler: Any) -> None:
        """A scaler unscales the gradients or is asked to step."""
        if self._is_used_up:
            return
        self._scaler = scaler
        self._begin_attempt()
        self.window.scaling.scale = session.scale_of(scaler)

    def unscale_begins(self, scaler: Any) -> None:
        """Just before a scaler unscales the gradients."""
        self.touched_by(scaler)
        if self._is_used_up:
            self.probe.refresh()
        self._before = self.probe.slice

    def unscale_ended(self) -> None:
        """Just after it."""
        self.probe.refresh()
        scaling = self.window.scaling
        if self._reducer.gives(self.probe.parameter):
            scaling.before, scaling.after = self._before, self.probe.slice
        if not self._is_used_up:
            scaling.unscaled = True
            self.window.events.append(Event("U", scale=scaling.scale))

    def skipped_by_scaler(self) -> None:
        """The scaler has not called the step: gradients and parameters are as they were before."""
        try:
            self.step_begins((), {})
            self._skip_attempt()
            self.step_ended()
        finally:
            self._step_frame = None  # it is the loop's own: whatever failed, the loop goes on

    def _skip_attempt(self) -> None:
        if self._attempt is not None:
            self._take_back(self._attempt)
            self.window.scaling.skipped = True

    def _take_back(self, attempt: Attempt) -> None:
        attempt.event.letter = "X"
        attempt.optimizer_update_id -= 1
        self.updates -= 1

    def scaler_updated(self, scaler: Any) -> None:
        """After the update of the scaler, if it served this optimizer."""
        if self._scaler is scaler:
            self._scaler = None
            self.window.scaling.scale_after = session.scale_of(scaler)
            self.note("G")

    # averages and collectives

    def averaged(self, updates: Tensor | int | None, decay: float | None) -> None:
        """A moving average took the parameters in."""
        self.window.ema = (updates, decay)
        self.note("E")

    @property
    def is_stepping(self) -> bool:
        """Whether the optimizer's step runs now: what happens inside it belongs to it."""
        return self._attempt is not None and self._step_frame is not None and is_running(self._step_frame)

    def collective_begins(self) -> None:
        """The loop runs a collective."""
        if not self.is_stepping:
            self.poll()

    def collective_ended(self, tensors: list[Any], finished: bool) -> None:
        """The loop has run a collective on these tensors, or begun one."""
        gradient = self.probe.parameter.grad
        gradient = None if gradient is None else local(gradient)
        if gradient is None or not self.window.micro_steps or gradient.layout != torch.strided:
            return
        if self.is_stepping:
            return
        storage = gradient.untyped_storage().data_ptr()
        dense = [t for t in tensors if isinstance(t, Tensor) and t.layout == torch.strided]
        if any(tensor.untyped_storage().data_ptr() == storage for tensor in dense):
            self.note("A")
            self._collective = "gradient"
            if finished:
                self.poll()
        elif any(t.is_floating_point() and t.numel() >= max(2, gradient.numel()) for t in dense):
            self._collective = self._collective or "other"

    # the step

    def _begin_attempt(self) -> None:
        """What follows is no longer of the window that an attempt has closed."""
        self.poll()
        if self.window.attempt is not None:
            self.rotate()

    def step_begins(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments | None:
        """Just before the optimizer's step; one inside another, of a parent class, is part of it.

        Returns:
            The arguments that it is to have instead, if any.
        """
        if self._step_frame is not None and is_running(self._step_frame):
            return None
        self._step_frame = calling_frame()
        self._forget_failed_attempt()
        closure = closure_of(arguments, keywords)
        if closure is None or not self._recorder.contract.closure_is_window:
            self._attempt_begins(closure is not None)
            return None
        guard = self._recorder.guard
        watched = WatchedClosure(
            closure,
            lambda call: guard(self._closure_begins, call),
            lambda call: guard(self._closure_returned, call),
        )
        return with_closure(arguments, keywords, watched)

    def _closure_begins(self, call: int) -> None:
        """The closure that makes the window is called; from the second time on the optimizer searches."""
        if call == 2 and self._attempt is not None:
            self._attempt.norm = self._attempt.gradient = None
            self._in_closure = True
            self.note("(")

    def _closure_returned(self, call: int) -> None:
        if call == 1:
            self._attempt_begins(closure=False)

    def _attempt_begins(self, closure: bool) -> None:
        """The optimizer is about to change the parameters, or to call what makes the gradients for it."""
        if session.is_foreign:
            self._recorder.thread = threading.get_ident()  # it trains here, past the model's own forward
        session.settle()
        session.stepped_inside(self)
        self._begin_attempt()
        if self._cleared and not closure:
            self.note("Z")
        if self.attempts == 0 and not self._continued:
            self.updates = state_step(self.optimizer, self.parameters) or 0
        written = self.attempts % self._recorder.every == 0
        self._attempt = Attempt(
            attempt_id=self.attempts + 1,
            optimizer_update_id=self.updates + 1,
            micro_step_id=self.micro_steps,
            epoch=self._recorder.epoch,
            learning_rates=[frozen_rate(group["lr"]) for group in self.optimizer.param_groups],
            weight_decays=[plain_number(group.get("weight_decay")) for group in self.optimizer.param_groups],
            norm=self._norm_at_step() if written and not closure else None,
            norm_scope=self._reducer.norm_scope,
            gradient=None if closure else self.probe.slice,
            parameter_before=self.probe.value(),
            probe_name=self.probe.name,
            event=Event("O"),
            written=written,
            divisor_ratio=self._recorder.divisor_ratio,
            grad_scale=own_copy(getattr(self.optimizer, "grad_scale", None)),
            found_inf=own_copy(getattr(self.optimizer, "found_inf", None)),
            state_step_before=self._state_step(),
            digest_before=self._digest_before() if written else None,
        )
        if closure:
            self._in_closure = True
            self.note("(")

    def _norm_at_step(self) -> Tensor | None:
        return self._norm()

    def _norm(self) -> Tensor | None:
        if self._reducer.norm_scope == "global":
            return gradient_norm(self.optimizer)
        return shard_norm(self.optimizer, self._reducer.copies)

    def _digest_before(self) -> Tensor | None:
        """With other ranks: where the digest after the step is due, and where parameters were written to."""
        moved = version(self.probe.parameter) != self._left_version and self.updates >= self._moved_due
        if not self._recorder.several_ranks or not (moved or self.updates + 1 >= self._digest_due):
            return None
        if moved:
            self._moved_due = self.updates + DIGEST_EVERY
        return digest_all([local(parameter) for parameter in self.parameters])

    def _forget_failed_attempt(self) -> None:
        """A step that raised was none, whatever it did: the window goes on."""
        if self._attempt is not None and self._attempt.placed:
            self.window.events.remove(self._attempt.event)
        self._attempt = None
        if self._in_closure:
            self._in_closure = False
            self.window.events = [event for event in self.window.events if event.letter != "("]

    def step_ended(self) -> None:
        """Just after it."""
        if calling_frame() is self._step_frame:
            self._attempt_ended()

    def _attempt_ended(self) -> None:
        self._step_frame = None
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._in_closure:
            self._in_closure = False
            self.note(")")
        self.attempts += 1
        self.updates += 1
        attempt.micro_step_id = self.micro_steps
        attempt.parameter_after = self.probe.value()
        attempt.state_step = self._state_step()
        if attempt.written and self.updates >= self._digest_due:
            attempt.digest = digest_all([local(parameter) for parameter in self.parameters])
            self._digest_due = (self.updates // DIGEST_EVERY + 1) * DIGEST_EVERY
        self.window.attempt = attempt
        self._left_version = version(self.probe.parameter)
        if not attempt.placed:
            self.window.events.append(attempt.event)
        self.probe.resync()
        self._recorder.attempt_ended(self)

    def _state_step(self) -> Tensor | int | None:
        """The optimizer's count, of the polled parameter first."""
        found: Tensor | int | None = state_step(
            self.optimizer, [self.probe.parameter, *self.parameters], keep=True
        )
        return found

    @property
    def leftover(self) -> Window | None:
        """The window that no attempt has closed."""
        return self.window if self.window.attempt is None and self.window.micro_steps else None


def _is_used(event: Event, backward: Backward) -> bool:
    return event.forward is not None and event.forward.used_by is backward
