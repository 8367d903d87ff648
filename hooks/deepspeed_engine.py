"""DeepSpeed: the engine scales, reduces, clips, steps and clears, and its counter ends the windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.engine_reducer import EngineReducer, ask
from accumaudit.hooks.engine_track import EngineTrack
from accumaudit.hooks.framework import Framework
from accumaudit.hooks.handles import Hook, unreal
from accumaudit.hooks.optimizers import gradient_norm
from accumaudit.hooks.options import Options
from accumaudit.hooks.patches import watchable
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.session import session
from accumaudit.hooks.window import Clip
from accumaudit.hooks.wrappers import Function


def attach_deepspeed(engine: Any, scheduler: Any = None, *, log_dir: Any, **options: Any) -> Audit:
    """Record the updates of a training that a DeepSpeed engine makes.

    Args:
        engine: what `deepspeed.initialize` returned first.
        scheduler: the learning rate scheduler, where the engine does not step it itself.
        log_dir: the run's folder.
        options: those of `attach`. The engine tells accumulation_steps, max_grad_norm and the dataloader.

    Returns:
        The audit; close it, or use it in a with-statement.

    Raises:
        TypeError: an engine without an optimizer, or that trains a pipeline.
        ValueError: an engine that is attached already, or what `attach` refuses.
        OSError: log_dir cannot be written.
    """
    if os.environ.get("ACCUMAUDIT") == "0":
        return Audit(None)
    if getattr(engine, "pipeline_parallelism", False):
        raise TypeError("accumaudit: the engine trains a pipeline, which is not recorded")
    optimizer = getattr(engine, "basic_optimizer", None)
    if not isinstance(optimizer, Optimizer):
        raise TypeError("accumaudit: the engine has no optimizer of torch; there is no update to record")
    contract, reducer = engine_contract(engine)
    told: dict[str, Any] = {"accumulation_steps": reducer.steps}
    if reducer.limit:
        told["max_grad_norm"] = reducer.limit
    loader = getattr(engine, "training_dataloader", None)
    if loader is not None and watchable(loader, "__iter__"):
        told["dataloader"] = loader
    given = Options(log_dir=log_dir, **told | options)
    scheduler = getattr(engine, "lr_scheduler", None) if scheduler is None else scheduler
    return attach_runtime(contract, engine.module, optimizer, scheduler, None, given)


def engine_contract(engine: Any, around: Contract | None = None) -> tuple[Contract, HeardEngine]:
    """What an engine tells of itself, and its reducer; `around` is a runtime that trains with it."""
    version = str(getattr(sys.modules.get("deepspeed"), "__version__", "of an unknown version"))
    reducer = HeardEngine(engine, Framework("deepspeed", version))
    contract = Contract(runtime="deepspeed") if around is None else around
    told = replace(
        contract,
        versions={**contract.versions, "deepspeed": version},
        reducer=reducer,
        precision=_precision(engine),
        updates=reducer.updates,
        tells_steps=True,
    )
    return told, reducer


def _precision(engine: Any) -> str:
    names = sorted({str(p.dtype).removeprefix("torch.") for p in engine.module.parameters()})
    if ask(engine, "torch_autocast_enabled", False):
        names.append(f"autocast {str(engine.torch_autocast_dtype()).removeprefix('torch.')}")
    return ", ".join(names)


class HeardEngine(EngineReducer):
    """An engine whose methods are watched, and what is going on in them."""

    def __init__(self, engine: Any, framework: Framework) -> None:
        super().__init__(engine)
        self._framework = framework
        self.counted = 0
        """Updates before attach."""
        self.told_scaling = False
        """What it does to the gradients has been told."""
        self.clip: Clip | None = None
        """The one of the step that runs."""
        self.before: Tensor | None = None
        """The polled slice before it was divided."""
        self.skipped_before = 0
        """Attempts skipped before it."""

    def watch(self, recorder: Recorder) -> None:
        """Hear the engine and the optimizers around the user's."""
        track, basic = _track_of(recorder), self.basic
        self.counted = self.updates
        track.continue_from(self.counted, int(self.engine.micro_steps))
        recorder.keep(basic.register_step_pre_hook(Hook(lambda *_: self._uses(track), recorder.fault, basic)))
        recorder.keep(
            basic.register_step_post_hook(Hook(lambda *_: track.runtime_used(), recorder.fault, basic))
        )
        owner = type(self.engine)
        patch = self._framework.patch
        patch(owner, "backward", _wrap_backward, loses="backwards")
        patch(owner, "step", _wrap_step, loses="updates")
        patch(owner, "allreduce_gradients", _wrap_reduction, loses="reductions outside a backward")
        patch(
            owner,
            "_backward_prologue_per_tensor",
            _wrap_output_gradient,
            loses="divisions of loss.backward()",
        )
        if self.engine.optimizer is basic:
            patch(owner, "clip_fp32_gradients", _wrap_own_clip, loses="clips")
        for method in ("_flush_coalesced_reduction_zero12", "_flush_coalesced_reduction_zero3"):
            if hasattr(owner, method):
                patch(owner, method, _wrap_flush, loses="reductions outside a backward")
        self._watch_optimizer(type(self.engine.optimizer))
        self._framework.has(self.engine, "skipped_steps", loses="skips")
        self._framework.has(self.engine, "get_global_grad_norm", loses="norms before a clip")
        self._framework.has(self.engine, "inside_no_sync_ctxt", loses="no_sync")
        self._framework.tell(recorder)

    def _watch_optimizer(self, owner: type) -> None:
        patch = self._framework.patch
        if hasattr(owner, "scale_if_loss"):
            patch(owner, "scale_if_loss", _wrap_scale, loses="loss scales")
        if hasattr(owner, "unscale_and_clip_grads"):
            patch(owner, "unscale_and_clip_grads", _wrap_clip, loses="clips")

    def _uses(self, track: EngineTrack) -> None:
        """The optimizer's own step begins, with gradients to which everything has been done."""
        if self.frame is None:
            return
        given = self.used(track.probe.parameter) is not None
        if self.limit and not self.told_scaling:  # clipped in a way that cannot be heard
            self.told_scaling = True
            clip = track.runtime_clips(self.limit, getattr(self.engine.optimizer, "_global_grad_norm", None))
            if given:
                clip.before = track.window.gradient
                _measure(clip, track)
        track.runtime_uses(given)


def _engines(owner: object) -> Iterator[tuple[Recorder, HeardEngine]]:
    """The recorders of an engine, or of the engine that has this optimizer."""
    if not session.recorders or unreal():
        return
    for recorder in list(session.recorders):
        reducer = recorder.reducer
        if isinstance(reducer, HeardEngine) and (
            owner is reducer.engine or owner is reducer.engine.optimizer
        ):
            yield recorder, reducer


def _track_of(recorder: Recorder) -> EngineTrack:
    """The one of the engine's optimizer."""
    track = recorder.tracks[0]
    assert isinstance(track, EngineTrack)
    return track


def _wrap_backward(original: Function) -> Function:
    """`engine.backward`: the reduction follows the backward, inside this call."""

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(_engines(self), None) is None or session.is_foreign:
            return original(self, *args, **kwargs)
        session.runtime_backward_begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            session.backward_ends()

    return backward


def _wrap_step(original: Function) -> Function:
    """`engine.step`, which steps where the engine says that a window ends."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = next(_engines(self), None)
        if found is None:
            return original(self, *args, **kwargs)
        recorder, reducer = found
        recorder.guard(_step_begins, recorder, reducer, sys._getframe())
        session.stepping += 1
        try:
            result = original(self, *args, **kwargs)
            if reducer.frame is not None:
                recorder.guard(_step_ended, recorder, reducer)
            return result
        finally:
            session.stepping -= 1
            reducer.frame = None

    return step


def _step_begins(recorder: Recorder, reducer: HeardEngine, frame: FrameType) -> None:
    if not reducer.is_at_boundary or not recorder.tracks:
        return
    track = _track_of(recorder)
    if track.attempts == 0 and reducer.updates != reducer.counted == track.updates:  # loaded after attach
        track.continue_from(reducer.updates, track.micro_steps)
    track.runtime_step_begins(frame)
    carried = track.window.micro_steps[-1].scale if track.window.micro_steps else 1.0
    if isinstance(carried, Tensor):
        track.window.scaling.scale = carried
    reducer.told_scaling, reducer.clip, reducer.before = False, None, None
    reducer.skipped_before = reducer.skipped
    reducer.frame = frame


def _step_ended(recorder: Recorder, reducer: HeardEngine) -> None:
    engine, track = reducer.engine, _track_of(recorder)
    reducer.frame = None
    if reducer.skipped > reducer.skipped_before or not ask(engine, "was_step_applied", True):
        track.runtime_skipped("engine")
    elif (attempt := track.open_attempt) is not None:
        attempt.told_norm = _told_norm(engine, reducer, track)
    scaling = track.window.scaling
    track.runtime_step_ended()
    if reducer.scaler is None and scaling.scale is not None:
        scaling.scale_after = reducer.loss_scale()
        track.note("G")
    elif scaling.scale is not None and scaling.scale_after is None:
        scaling.scale_after = session.scale_of(reducer.scaler)
    track.runtime_cleared()
    recorder.report({"reported_global_step": engine.global_steps})
    if (steps := engine.gradient_accumulation_steps()) != reducer.steps:
        reducer.steps = steps
        recorder.declare({"accumulation_steps": steps})


def _told_norm(engine: Any, reducer: HeardEngine, track: EngineTrack) -> Tensor | float | None:
    norm = ask(engine, "get_global_grad_norm", None)
    if not isinstance(norm, (Tensor, float)):
        return None
    scale = track.window.scaling.scale
    norm = norm.detach().clone() if isinstance(norm, Tensor) else norm
    # The engine knows its own loss scale, and not that of a gradient scaler.
    return norm / scale if reducer.scaler is not None and scale is not None else norm


def _wrap_reduction(original: Function) -> Function:
    """`engine.allreduce_gradients`; inside a backward it belongs to that."""

    def allreduce_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = next(_engines(self), None)
        if found is None or session.backward is not None:
            return original(self, *args, **kwargs)
        recorder = found[0]
        session.stepping += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            session.stepping -= 1
        recorder.guard(_reduced, recorder)
        return result

    return allreduce_gradients


def _reduced(recorder: Recorder) -> None:
    _track_of(recorder).runtime_reduced()


def _wrap_flush(original: Function) -> Function:
    """The end of `engine.coalesce_grad_reduction`: what ran inside is one window, whatever was configured."""
    reduction = _wrap_reduction(original)

    def flush(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = reduction(self, *args, **kwargs)
        for recorder, _ in _engines(self):
            recorder.guard(_is_window, recorder)
        return result

    return flush


def _is_window(recorder: Recorder) -> None:
    window = _track_of(recorder).window
    window.accumulation_steps = len(window.micro_steps)


def _wrap_output_gradient(original: Function) -> Function:
    """The hook on the model's outputs, which divides the gradient of a plain loss.backward()."""

    def prologue(self: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, grad, *args, **kwargs)
        if result is not grad and (found := next(_engines(self), None)) is not None:
            factor = 1.0 / found[1].steps
            session.guard(lambda: session.current_backward().multiplied(factor))
        return result

    return prologue


def _wrap_scale(original: Function) -> Function:
    """`scale_if_loss` of the engine's optimizer: which backward goes through the scaled loss."""

    def scale_if_loss(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(self, value, *args, **kwargs)
        if scaled is not value and (found := next(_engines(self), None)) is not None:
            found[0].guard(_loss_scaled, found[1], scaled)
        return scaled

    return scale_if_loss


def _loss_scaled(reducer: HeardEngine, scaled: Any) -> None:
    if reducer.scaler is None and reducer.loss_scale() != 1.0:
        session.watch_scaled(reducer.scale_tensor(), scaled)


def _wrap_own_clip(original: Function) -> Function:
    """`engine.clip_fp32_gradients`, of stage 0: whole gradients, in the parameters."""

    def clip_fp32_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = next(_engines(self), None)
        if found is None or found[1].frame is None:
            return original(self, *args, **kwargs)
        recorder, reducer = found
        recorder.guard(_own_clip, _track_of(recorder), reducer)
        result = original(self, *args, **kwargs)
        if reducer.clip is not None:
            recorder.guard(_measure, reducer.clip, _track_of(recorder))
        return result

    return clip_fp32_gradients


def _own_clip(track: EngineTrack, reducer: HeardEngine) -> None:
    track.poll()
    reducer.told_scaling = True
    written = track.open_attempt is not None and track.open_attempt.written
    reducer.clip = track.runtime_clips(reducer.limit, gradient_norm(track.optimizer) if written else None)
    reducer.clip.before = track.probe.slice


def _measure(clip: Clip, track: EngineTrack) -> None:
    """What is left of the polled slice after the clip."""
    track.probe.refresh()
    clip.after = track.probe.slice


def _wrap_clip(original: Function) -> Function:
    """`unscale_and_clip_grads` of the engine's optimizer: one norm, and a call for each group or for all."""

    def unscale_and_clip_grads(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = next(_engines(self), None)
        if found is None or found[1].frame is None:
            return original(self, *args, **kwargs)
        recorder, reducer = found
        track = _track_of(recorder)
        recorder.guard(_division_begins, track, reducer, args, kwargs)
        result = original(self, *args, **kwargs)
        recorder.guard(_division_ended, track, reducer)
        return result

    return unscale_and_clip_grads


def _division_begins(
    track: EngineTrack, reducer: HeardEngine, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """The engine is about to divide by its own loss scale and to clip, in one."""
    if not reducer.told_scaling:
        reducer.told_scaling = True
        numbers = [value for value in arguments if isinstance(value, (Tensor, float))]
        _tell_scaling(track, reducer, keywords.get("total_norm", numbers[0] if numbers else None))
    reducer.before = None
    if reducer.is_given(track.probe.parameter, arguments):
        track.probe.refresh()
        reducer.before = track.probe.slice


def _tell_scaling(track: EngineTrack, reducer: HeardEngine, norm: Tensor | float | None) -> None:
    """It clips the norm that it divides by the scale that it has now, whatever the losses were scaled by."""
    own, scaling = reducer.loss_scale(), track.window.scaling
    if own != 1.0 and scaling.scale is None:  # no loss was multiplied by it
        scaling.scale = own
        track.runtime_multiplies(1.0 / own)
    elif own != 1.0:
        track.runtime_unscales(own)
    if reducer.limit:
        reducer.clip = track.runtime_clips(reducer.limit, None if norm is None else norm / own)


def _division_ended(track: EngineTrack, reducer: HeardEngine) -> None:
    own, before, scaling = reducer.loss_scale(), reducer.before, track.window.scaling
    if before is None:
        return  # of other parameters
    track.probe.refresh()
    unscaled = before / own
    if scaling.unscaled and own != 1.0:
        scaling.before, scaling.after = before, track.probe.slice if reducer.clip is None else unscaled
    if reducer.clip is not None:
        reducer.clip.before, reducer.clip.after = unscaled, track.probe.slice
