"""What the hooks hold of one transaction until the writer makes a record of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from accumaudit.hooks.loss import LossCall
from accumaudit.hooks.probe import Change


@dataclass(slots=True, eq=False)
class Forward:
    """One forward through the attached model, and its input."""

    letter: str
    samples: int | None = None
    input_positions: int | None = None
    attended_positions: Tensor | int | None = None
    digest: Tensor | int | None = None
    used_by: Backward | None = None
    """The last backward that went through it; None: an evaluation, or an exception."""
    number: int = 0
    """Its place among the forwards of this recorder."""
    recorder: int = 0
    """Id of the recorder that heard it: a backward goes through those of others too."""


@dataclass(slots=True, eq=False)
class Backward:
    """One call of backward, from the outside; a recomputation's nested ones are part of it."""

    root: Tensor | None = None
    """Value that backward was called on, scaled; None where it was not seen."""
    calls: list[LossCall] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    """Those that it went through, the last first."""
    scale: Tensor | float | None = 1.0
    """The loss scale that it went through; None where there were two."""
    counted: set[int] = field(default_factory=set)
    """Tracks whose optimizer has stepped inside it: their micro-step is counted already."""
    awaits_root: bool = False
    """It lies in a call of the runtime's: what it is called on is seen when it begins there."""
    factor: float = 1.0
    """What the runtime has multiplied the gradient by on its way through the model's output."""

    def scaled(self, scale: Tensor | None) -> None:
        """It went through a loss that was multiplied by this scale."""
        first = isinstance(self.scale, float)
        self.scale = scale if first or self.scale is scale else None

    def multiplied(self, factor: float) -> None:
        """The runtime multiplies the gradient at the model's output: the calls behind it have arrived."""
        if self.factor == 1.0:  # a model may have several outputs
            self.factor = factor
            for call in self.calls:
                call.factor = factor

    def release(self) -> None:
        """Let go of what only its end needs: forwards that it went through may be kept for long."""
        for call in self.calls:
            call.valid = None
        self.calls, self.forwards = [], []


@dataclass(slots=True, eq=False)
class MicroStep:
    """Forwards and the backwards through them."""

    forwards: list[Forward] = field(default_factory=list)
    calls: list[LossCall] = field(default_factory=list)
    roots: list[Tensor | None] = field(default_factory=list)
    scale: Tensor | float | None = 1.0
    """Loss scale of its backward; None where it had several."""
    scored_rows: Tensor | None = None
    """Which samples have a valid token, where that is known."""
    scored: Tensor | None = None
    """Which positions have one, where the writer is to look."""
    row_length: int = 0
    """Positions of a sample."""

    def note_scored(self) -> None:
        """Note which samples have a valid position; unknown where calls of the loss share the samples."""
        self.scored_rows = self.scored = None
        if len(self.calls) != 1:
            return
        call = self.calls[0]
        samples = 0
        for forward in self.forwards:
            samples += forward.samples or 0
        if call.valid is None or not samples or call.valid.numel() % samples:
            return
        self.row_length = call.valid.numel() // samples
        if call.uncounted is None:
            self.scored_rows = call.valid.reshape(samples, -1).any(1)
        else:
            self.scored = call.uncounted


@dataclass(slots=True, eq=False)
class Clip:
    """One call of a clipping function."""

    micro_step: int
    kind: str
    limit: float | Tensor
    norm: Tensor | float | None
    scope: str | None
    """What the norm is taken over: global, shard, or not known."""
    complete: bool
    before: Tensor | None
    after: Tensor | None
    scale: Tensor | float | None
    """Loss scale that the gradients carried then."""


@dataclass(slots=True, eq=False)
class Attempt:
    """What is read when the optimizer is asked to step, and just after."""

    attempt_id: int
    optimizer_update_id: int
    micro_step_id: int
    epoch: int | None
    learning_rates: list[float | Tensor]
    weight_decays: list[float | None]
    norm: Tensor | None
    norm_scope: str
    gradient: Tensor | None
    parameter_before: Tensor
    probe_name: str
    event: Event
    """Its letter, O until the writer knows better."""
    written: bool
    """Whether it becomes a record."""
    divisor_ratio: float | None = 1.0
    """The divisor of the reduction that the run record names, over that of now; None: not known any more."""
    grad_scale: Tensor | float | None = None
    """What a fused kernel divides the gradients by in the step."""
    found_inf: Tensor | None = None
    """What a fused kernel is told: not 0, it leaves everything as it is."""
    state_step_before: Tensor | float | None = None
    time: float = field(default_factory=time.time)
    parameter_after: Tensor | None = None
    state_step: Tensor | float | None = None
    digest: Tensor | None = None
    digest_before: Tensor | None = None
    skipped_by: str | None = None
    """Who said that it was skipped, where the runtime did."""
    told_norm: Tensor | float | None = None
    """The norm of all gradients before any clip, without loss scale, as the runtime tells it."""
    placed: bool = False
    """Its letter stands in the word already: a step of the runtime's goes on after it."""

    def tensors(self) -> tuple[object, ...]:
        """Everything that may be one."""
        return (
            self.norm,
            self.gradient,
            self.parameter_before,
            self.parameter_after,
            self.state_step,
            self.state_step_before,
            self.grad_scale,
            self.found_inf,
            self.digest,
            self.digest_before,
            self.told_norm,
            *self.learning_rates,
        )


@dataclass(slots=True, eq=False)
class Event:
    """One letter of the word, with what belongs to it; "?" is settled by the writer as Z, M or nothing."""

    letter: str
    forward: Forward | None = None
    micro_step: MicroStep | None = None
    change: Change | None = None
    collective: bool = False
    """The loop had just run a collective that can have made the change."""
    scale: Tensor | float | None = None
    """What a scaler divided the gradients by."""
    schedule: tuple[int | None, float | Tensor | None] | None = None
    times: int = 1


@dataclass(slots=True, eq=False)
class Scaling:
    """What a gradient scaler did in one transaction."""

    scale: Tensor | float | None = None
    """When it unscaled or stepped."""
    scale_after: Tensor | float | None = None
    """After its update; None before that."""
    before: Tensor | None = None
    after: Tensor | None = None
    """The probe's slice before and after it unscaled; None where it did not."""
    unscaled: bool = False
    skipped: bool = False
    """It did not call the optimizer's step."""


@dataclass(slots=True, eq=False)
class Window:
    """The open transaction of one optimizer."""

    events: list[Event] = field(default_factory=list)
    micro_steps: list[MicroStep] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    gradient: Tensor | None = None
    """The probe's slice after the last backward, or after the loop reduced it."""
    gradient_scale: Tensor | float | None = 1.0
    """The loss scale that it carries."""
    scaling: Scaling = field(default_factory=Scaling)
    ema: tuple[Tensor | int | None, float | None] | None = None
    """Updates of the average so far, and its decay."""
    discarded: int = 0
    """Micro-steps that are only counted: their gradients were thrown away long ago."""
    saw_forward: bool = False
    """A backward of this window went through a forward that was seen."""
    accumulation_steps: int | None = None
    attempt: Attempt | None = None
    reported: dict[str, Tensor | float | None] = field(default_factory=dict)
    schedule: tuple[int | None, float | Tensor | None] = (None, None)
    """The scheduler's step and rate when the transaction ended."""

    def tensors(self) -> Iterator[Tensor]:
        """Everything that is read by the writer; nothing is done before the first is asked for."""
        found: list[object] = [self.gradient, *self.reported.values(), self.schedule[1], *(self.ema or ())]
        for micro_step in self.micro_steps:
            found += (*micro_step.roots, micro_step.scale, micro_step.scored_rows)
            for call in micro_step.calls:
                found += call.tensors()
            for forward in micro_step.forwards:
                found += (forward.attended_positions, forward.digest)
        for event in self.events:
            if event.change is not None:
                found += (event.change.before, event.change.after)
            found.append(event.scale)
        for clip in self.clips:
            found += (clip.limit, clip.norm, clip.before, clip.after, clip.scale)
        scaling = self.scaling
        found += (scaling.scale, scaling.scale_after, scaling.before, scaling.after)
        if self.attempt is not None:
            found += self.attempt.tensors()
        yield from {id(value): value for value in found if isinstance(value, Tensor)}.values()
