"""The track of an optimizer that an engine steps: it tells what it does to the gradients, and when."""

from __future__ import annotations

from types import FrameType

import torch
from torch import Tensor

from accumaudit.hooks.optimizers import state_step
from accumaudit.hooks.probe import Change
from accumaudit.hooks.track import Track
from accumaudit.hooks.window import Attempt, Clip, Event


class EngineTrack(Track):
    """A step of the engine's is the attempt, with what it does before and after the optimizer's own."""

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt whose step runs now."""
        return self._attempt

    def runtime_step_begins(self, frame: FrameType) -> None:
        """The runtime is about to use the gradients, in a call that has this frame."""
        self._step_frame = frame
        self._forget_failed_attempt()
        self._attempt_begins(closure=False)

    def runtime_uses(self, gradients_of_probe: bool) -> None:
        """It calls the optimizer's own step, for all parameters or for some of them."""
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.written and (norm := self._norm()) is not None:
            attempt.norm = norm if attempt.norm is None else torch.hypot(attempt.norm, norm)
        if gradients_of_probe:
            self.probe.refresh()
            attempt.gradient = self.probe.slice

    def runtime_used(self) -> None:
        """The optimizer's own step has returned; that of the runtime goes on."""
        if self._attempt is not None and not self._attempt.placed:
            self._attempt.placed = True
            self.window.events.append(self._attempt.event)

    def runtime_step_ended(self) -> None:
        """The runtime's step has returned."""
        self._attempt_ended()

    def runtime_skipped(self, evidence: str) -> None:
        """The runtime says that it has left the parameters as they were."""
        if self._attempt is not None and self._attempt.event.letter == "O":
            self._attempt.skipped_by = evidence
            self._take_back(self._attempt)

    def runtime_clips(self, limit: float, norm: Tensor | float | None) -> Clip:
        """It clips all gradients, of all ranks, by their norm."""
        clip = Clip(
            micro_step=len(self.window.micro_steps),
            kind="norm",
            limit=limit,
            norm=norm.detach().clone() if isinstance(norm, Tensor) else norm,
            scope="global",
            complete=True,
            before=None,
            after=None,
            scale=self._scale_on_gradients(),
        )
        self.window.clips.append(clip)
        self.note("C")
        return clip

    def runtime_unscales(self, scale: float) -> None:
        """It divides all gradients by the scale of its own that the losses were multiplied by."""
        self.window.scaling.unscaled = True
        self.window.events.append(Event("U", scale=scale))

    def runtime_multiplies(self, factor: float) -> None:
        """It multiplies all gradients."""
        if (now := self.window.gradient) is not None:
            self.window.events.append(Event("?", change=Change(now, now * factor)))

    def runtime_reduced(self) -> None:
        """It has reduced the gradients, outside of any backward."""
        self.note("A")
        self._collective = None
        self.probe.refresh()
        self._note_gradient()

    def runtime_cleared(self) -> None:
        """It has cleared the gradients, wherever they were."""
        self.probe.refresh()
        self._cleared = True

    def skipped_by_scaler(self) -> None:
        """The scaler has not called the optimizer's step, which is a part of the engine's."""
        if self._is_used_up:
            return
        if self.is_stepping:
            self._skip_attempt()
            self.runtime_used()
        else:
            super().skipped_by_scaler()

    def _norm_at_step(self) -> None:
        """It is told, or taken of what the optimizer's own steps are given."""

    def _state_step(self) -> Tensor | int | None:
        """The optimizer may hold copies of the parameters, or parts of them."""
        found: Tensor | int | None = state_step(self.optimizer, list(self.optimizer.state), keep=True)
        return found
