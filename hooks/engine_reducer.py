"""What a DeepSpeed engine tells when it is asked: how it reduces, and where the gradients are."""

from __future__ import annotations

from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from accumaudit.hooks.optimizers import optimizer_parameters
from accumaudit.hooks.reducers import Reducer

PARAMETER_GROUPS: Final = ("bit16_groups", "bf16_groups", "fp16_groups")
"""Where optimizers of the engine keep the model's own parameters."""


class EngineReducer(Reducer):
    """The engine: replicated parameters, of which ZeRO parts what belongs to them.

    Stage 1 parts the optimizer's state, stage 2 the gradients too, stage 3 the parameters themselves.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.module)
        self.engine = engine
        self.stage = int(engine.zero_optimization_stage())
        self.name = f"deepspeed-zero{self.stage}"
        self.world_size = int(engine.dp_world_size)
        self.frame: FrameType | None = None
        """Of the call of engine.step that runs now."""
        self.steps: int = engine.gradient_accumulation_steps()
        self.basic: Optimizer = engine.basic_optimizer
        self._parameters = [p for p in self._found_parameters() if p.requires_grad]
        self._copies = self._found_copies()
        self._stepped = {id(parameter) for parameter in optimizer_parameters(self.basic)}
        self._scale: Tensor | None = None

    # what the record says

    @property
    def norm_scope(self) -> str:
        """The optimizer steps a part of everything on each rank, but for stage 0."""
        return "shard" if self.stage and self.world_size > 1 else "global"

    @property
    def cpu_offload(self) -> bool:
        """Of the optimizer's state, or of the parameters."""
        return any(ask(self.engine, name, False) for name in ("zero_cpu_offload", "zero_offload_param"))

    def gradient_divisor(self, world_size: int) -> float | None:
        """The ranks with different data, however the division is shared out before and after the sum."""
        del world_size
        return float(self.world_size) if ask(self.engine, "gradient_average", True) else 1.0

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
        return bool(ask(self.engine, "managed_gradient_accumulation", True))

    @property
    def is_at_boundary(self) -> bool:
        """Whether a step that is asked for now is made."""
        return not self.is_managed or bool(self.engine.is_gradient_accumulation_boundary())

    def backward_reduces(self) -> bool:
        """From stage 2 on in every backward, below in the last of a window, where the engine ends that."""
        if ask(self.engine, "inside_no_sync_ctxt", False):
            return False
        if not ask(self.engine, "enable_backward_allreduce", True):
            return False
        return self.stage >= 2 or (self.is_managed and self.is_at_boundary)

    # what it counts

    @property
    def skipped(self) -> int:
        """Attempts that it says to have skipped."""
        return int(ask(self.engine, "skipped_steps", 0))

    @property
    def updates(self) -> int:
        """Those that it says to have applied."""
        return int(self.engine.global_steps) - self.skipped

    # where the gradients are

    def _found_parameters(self) -> list[Tensor]:
        for name in PARAMETER_GROUPS:
            if groups := getattr(self.engine.optimizer, name, None):
                return [parameter for group in groups for parameter in group]
        return optimizer_parameters(self.basic)

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
                flat = self.basic.param_groups[part.param_group_index]["params"][0]
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

    def is_given(self, parameter: Tensor, arguments: tuple[Any, ...]) -> bool:
        """Whether a call that is given gradients of some parameters, or of all, is given this one's."""
        used = self.used(parameter)
        if used is None or not arguments or not isinstance(arguments[0], list):
            return used is not None
        storages = {g.untyped_storage().data_ptr() for g in arguments[0] if isinstance(g, Tensor)}
        return used.untyped_storage().data_ptr() in storages

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Of the parameter itself until the engine takes it away: then of its part, if this rank has that."""
        if (used := self.used(parameter)) is not None:
            return used
        if (part := averaged(parameter)) is not None:
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


def ask(engine: Any, name: str, without: Any) -> Any:
    """What an attribute or a method of the engine tells, if this version has it."""
    found = getattr(engine, name, without)
    return found() if callable(found) else found


def averaged(parameter: Tensor) -> Tensor | None:
    """This rank's part of a gradient that ZeRO has averaged over ranks and keeps for the step."""
    part = getattr(parameter, "_hp_mapping", None)
    if part is None:
        return None
    gradients = part.offload_gradient_dict if part.use_offload else part.gradient_dict
    group = gradients.get(part.param_group_index)
    found = None if group is None else group[parameter._index_in_param_group]  # type: ignore[attr-defined]
    return found if isinstance(found, Tensor) else None
