"""DeepSpeed: the engine scales, reduces, clips, steps and clears, and its counter ends the windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.engine_track import EngineTrack
from accumaudit.hooks.framework import Framework
from accumaudit.hooks.handles import Hook, unreal
from accumaudit.hooks.optimizers import gradient_norm, optimizer_parameters
from accumaudit.hooks.options import Options
from accumaudit.hooks.patches import watchable
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.reducers import Reducer
from accumaudit.hooks.session import session
from accumaudit.hooks.window import Clip
from accumaudit.hooks.wrappers import Function

PARAMETER_GROUPS: Final = ("bit16_groups", "bf16_groups", "fp16_groups")
"""Where optimizers of the engine keep the model's own parameters."""


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


def engine_contract(engine: Any, around: Contract | None = None) -> tuple[Contract, EngineReducer]:
    """What an engine tells of itself, and its reducer; `around` is a runtime that trains with it."""
    version = str(getattr(sys.modules.get("deepspeed"), "__version__", "of an unknown version"))
    reducer = EngineReducer(engine, Framework("deepspeed", version))
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
    if _ask(engine, "torch_autocast_enabled", False):
        names.append(f"autocast {str(engine.torch_autocast_dtype()).removeprefix('torch.')}")
    return ", ".join(names)


def _ask(engine: Any, name: str, without: Any) -> Any:
    """What an attribute or a method of the engine tells, if this version has it."""
    found = getattr(engine, name, without)
    return found() if callable(found) else found


class EngineReducer(Reducer):
    """The engine: replicated parameters, of which ZeRO parts what belongs to them.

    Stage 1 parts the optimizer's state, stage 2 the gradients too, stage 3 the parameters themselves.
    """

    def __init__(self, engine: Any, framework: Framework) -> None:
        super().__init__(engine.module)
        self.engine = engine
        self.stage = int(engine.zero_optimization_stage())
        self.name = f"deepspeed-zero{self.stage}"
        self.world_size = int(engine.dp_world_size)
        self.cpu_offload = any(
            _ask(engine, name, False) for name in ("zero_cpu_offload", "zero_offload_param")
        )
        self.frame: FrameType | None = None
        """Of the call of engine.step that runs now."""
        self.told_scaling = False
        """What it does to the gradients has been told."""
        self.clip: Clip | None = None
        """The one of the step that runs."""
        self.before: Tensor | None = None
        """The polled slice before it was divided."""
        self.skipped_before = 0
        """Attempts skipped before it."""
        self.steps: int = engine.gradient_accumulation_steps()
        self.counted = 0
        """Updates before attach."""
        self._framework = framework
        self._basic: Optimizer = engine.basic_optimizer
        self._parameters = [p for p in self._found_parameters() if p.requires_grad]
        self._copies = self._found_copies()
        self._stepped = {id(parameter) for parameter in optimizer_parameters(self._basic)}
        self._scale: Tensor | None = None

    # what the record says

    @property
    def norm_scope(self) -> str:  # type: ignore[override]  # others have one for all
        """The optimizer steps a part of everything on each rank, but for stage 0."""
        return "shard" if self.stage and self.world_size > 1 else "global"

    def gradient_divisor(self, world_size: int) -> float | None:
        """The ranks with different data, however the division is shared out before and after the sum."""
        del world_size
        return float(self.world_size) if _ask(self.engine, "gradient_average", True) else 1.0

    def layout(self, rank: int, world_size: int) -> dict[str, int]:
        """Parameters are shards in stage 3 alone; elsewhere all ranks are replicas."""
        if self.world_size != world_size:
            return {"data_parallel_rank": int(self.engine.get_data_parallel_rank())} | {
                "data_parallel_size": self.world_size
            }
        one, all_ranks = (0, 1), (rank, world_size)
        shard, replica = (all_ranks, one) if self.stage == 3 else (one, all_ranks)
        return {
            "shard_rank": shard[0],
            "shard_size": shard[1],
            "replica_rank": replica[0],
            "replica_size": replica[1],
        }

    # when it reduces

    @property
    def is_managed(self) -> bool:
        """Whether the engine's counter ends a window; where not, each call of its step does."""
        return bool(_ask(self.engine, "managed_gradient_accumulation", True))

    @property
    def is_at_boundary(self) -> bool:
        """Whether a step that is asked for now is made."""
        return not self.is_managed or bool(self.engine.is_gradient_accumulation_boundary())

    def backward_reduces(self) -> bool:
        """From stage 2 on in every backward, below in the last of a window, where the engine ends that."""
        if _ask(self.engine, "inside_no_sync_ctxt", False):
            return False
        if not _ask(self.engine, "enable_backward_allreduce", True):
            return False
        return self.stage >= 2 or (self.is_managed and self.is_at_boundary)

    # what it counts

    @property
    def skipped(self) -> int:
        """Attempts that it says to have skipped."""
        return int(_ask(self.engine, "skipped_steps", 0))

    @property
    def updates(self) -> int:
        """Those that it says to have applied."""
        return int(self.engine.global_steps) - self.skipped

    # where the gradients are

    def _found_parameters(self) -> list[Tensor]:
        for name in PARAMETER_GROUPS:
            if groups := getattr(self.engine.optimizer, name, None):
                return [parameter for group in groups for parameter in group]
        return optimizer_parameters(self._basic)

    def _found_copies(self) -> dict[int, tuple[Tensor, int, int]]:
        """By id of a parameter: the tensor that the optimizer steps for it, and its place in that.

        Parameters of which this rank steps a part alone are left out, and so are all where the optimizer
        steps the parameters themselves.
        """
        found: dict[int, tuple[Tensor, int, int]] = {}
        masters = getattr(self.engine.optimizer, "fp32_groups", None)
        if masters:  # of the same shapes
            copies = (copy for group in masters for copy in group)
            for parameter, copy in zip(self._found_parameters(), copies, strict=False):
                found[id(parameter)] = copy, 0, copy.numel()
        for parameter in self._parameters:
            part = getattr(parameter, "_hp_mapping", None)
            if part is not None and part.lp_fragment_address.numel == parameter.numel():
                flat = self._basic.param_groups[part.param_group_index]["params"][0]
                place = part.hp_fragment_address
                found[id(parameter)] = flat, place.start, place.numel
        return found

    def parameters(self, optimizer: Optimizer) -> list[Tensor]:
        """The model's own; the optimizer may step copies in higher precision, or a part of them."""
        del optimizer
        return self._parameters

    def shows(self, parameter: Tensor) -> bool:
        """Whether gradients that the optimizer steps with can be looked at on this rank."""
        return id(parameter) in self._copies or id(parameter) in self._stepped

    def used(self, parameter: Tensor) -> Tensor | None:
        """What the optimizer's own step is given for a parameter; None outside of that."""
        if self.frame is None:
            return None
        if id(parameter) in self._stepped:
            return parameter.grad
        copy = self._copies.get(id(parameter))
        if copy is None or (gradient := copy[0].grad) is None:
            return None
        return gradient.reshape(-1).narrow(0, copy[1], copy[2])

    def gives(self, parameter: Tensor) -> bool:
        """The engine gives the optimizer one group after another."""
        return self.frame is None or self.used(parameter) is not None

    def gives_probe(self, track: EngineTrack, arguments: tuple[Any, ...]) -> bool:
        """Whether a call that is given gradients of some parameters, or of all, is given the polled one's."""
        used = self.used(track.probe.parameter)
        if used is None or not arguments or not isinstance(arguments[0], list):
            return used is not None
        storages = {g.untyped_storage().data_ptr() for g in arguments[0] if isinstance(g, Tensor)}
        return used.untyped_storage().data_ptr() in storages

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Of the parameter itself until the engine takes it away: then of its part, if this rank has that."""
        if (used := self.used(parameter)) is not None:
            return used
        if (part := _averaged(parameter)) is not None:
            return part if id(parameter) in self._copies else None
        accumulated = getattr(parameter, "grad_accum", None)
        return accumulated if isinstance(accumulated, Tensor) else parameter.grad

    # loss scale

    def loss_scale(self) -> float:
        """The engine's own, where it has one: not that of a gradient scaler."""
        own = getattr(self.engine.optimizer, "loss_scale", 1.0)
        return float(own) if isinstance(own, (int, float)) else 1.0

    def scale_tensor(self) -> Tensor:
        """The same as a tensor, the same one as long as it does not change."""
        if self._scale is None or float(self._scale) != self.loss_scale():
            self._scale = torch.tensor(self.loss_scale(), dtype=torch.float64)
        return self._scale

    @property
    def limit(self) -> float:
        """Of the gradient norm; 0 where nothing is clipped."""
        return float(self.engine.gradient_clipping())

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The one that comes with autocast in half precision."""
        own = getattr(self.engine, "torch_autocast_z0_gradscaler", None)
        found = own or getattr(self.engine.optimizer, "torch_autocast_gradscaler", None)
        return found if isinstance(found, torch.amp.GradScaler) else None

    # hooks

    def watch(self, recorder: Recorder) -> None:
        """Hear the engine and the optimizers around the user's."""
        track, basic = _track_of(recorder), self._basic
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


def _averaged(parameter: Tensor) -> Tensor | None:
    """This rank's part of a gradient that ZeRO has averaged over ranks and keeps for the step."""
    part = getattr(parameter, "_hp_mapping", None)
    if part is None:
        return None
    gradients = part.offload_gradient_dict if part.use_offload else part.gradient_dict
    group = gradients.get(part.param_group_index)
    found = None if group is None else group[parameter._index_in_param_group]  # type: ignore[attr-defined]
    return found if isinstance(found, Tensor) else None


def _engines(owner: object) -> Iterator[tuple[Recorder, EngineReducer]]:
    """The recorders of an engine, or of the engine that has this optimizer."""
    if not session.recorders or unreal():
        return
    for recorder in list(session.recorders):
        reducer = recorder.reducer
        if isinstance(reducer, EngineReducer) and (
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


def _step_begins(recorder: Recorder, reducer: EngineReducer, frame: FrameType) -> None:
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


def _step_ended(recorder: Recorder, reducer: EngineReducer) -> None:
    engine, track = reducer.engine, _track_of(recorder)
    reducer.frame = None
    if reducer.skipped > reducer.skipped_before or not _ask(engine, "was_step_applied", True):
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


def _told_norm(engine: Any, reducer: EngineReducer, track: EngineTrack) -> Tensor | float | None:
    norm = _ask(engine, "get_global_grad_norm", None)
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


def _loss_scaled(reducer: EngineReducer, scaled: Any) -> None:
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


def _own_clip(track: EngineTrack, reducer: EngineReducer) -> None:
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
    track: EngineTrack, reducer: EngineReducer, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """The engine is about to divide by its own loss scale and to clip, in one."""
    if not reducer.told_scaling:
        reducer.told_scaling = True
        numbers = [value for value in arguments if isinstance(value, (Tensor, float))]
        _tell_scaling(track, reducer, keywords.get("total_norm", numbers[0] if numbers else None))
    reducer.before = None
    if reducer.gives_probe(track, arguments):
        track.probe.refresh()
        reducer.before = track.probe.slice


def _tell_scaling(track: EngineTrack, reducer: EngineReducer, norm: Tensor | float | None) -> None:
    """It clips the norm that it divides by the scale that it has now, whatever the losses were scaled by."""
    own, scaling = reducer.loss_scale(), track.window.scaling
    if own != 1.0 and scaling.scale is None:  # no loss was multiplied by it
        scaling.scale = own
        track.runtime_multiplies(1.0 / own)
    elif own != 1.0:
        track.runtime_unscales(own)
    if reducer.limit:
        reducer.clip = track.runtime_clips(reducer.limit, None if norm is None else norm / own)


def _division_ended(track: EngineTrack, reducer: EngineReducer) -> None:
    own, before, scaling = reducer.loss_scale(), reducer.before, track.window.scaling
    if before is None:
        return  # of other parameters
    track.probe.refresh()
    unscaled = before / own
    if scaling.unscaled and own != 1.0:
        scaling.before, scaling.after = before, track.probe.slice if reducer.clip is None else unscaled
    if reducer.clip is not None:
        reducer.clip.before, reducer.clip.after = unscaled, track.probe.slice
