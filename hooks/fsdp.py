"""FSDP1 (`FullyShardedDataParallel`) and FSDP2 (`fully_shard`), which keep a shard of every gradient.

Both reduce in the backward, and into a tensor of their own: the parameters that an optimizer holds are
shards, and torch accumulates into whole parameters that come and go.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from accumaudit.hooks.framework import Framework
from accumaudit.hooks.handles import unreal
from accumaudit.hooks.modules import uncompiled
from accumaudit.hooks.reducers import Kept, Reducer, data_ranks
from accumaudit.hooks.session import session
from accumaudit.hooks.wrappers import Function

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder

PACKAGE = "torch.distributed.fsdp"
PIPELINING = "torch.distributed.pipelining.stage"


def fsdp_reducer(model: nn.Module) -> Reducer | None:
    """The one that shards this model, or the first that shards a part of it."""
    package = sys.modules.get(PACKAGE)
    if package is None:
        return None  # nobody can have used it
    for name, reducer in (("FullyShardedDataParallel", FSDP1Reducer), ("FSDPModule", FSDP2Reducer)):
        kind = getattr(package, name, ())
        modules = [module for module in model.modules() if isinstance(module, kind)]
        if modules:
            try:
                return reducer(model, modules).checked()
            except AttributeError as error:
                return UnreadReducer(model, reducer.name, str(error))
    return None


class UnreadReducer(Reducer):
    """A version whose insides are not known: it is not even known when it reduces."""

    name = None
    hears_parameters = False
    norm_scope = "shard"

    def __init__(self, model: nn.Module, name: str, lacks: str) -> None:
        super().__init__(model)
        self._lacks = f"{name}: {lacks}"

    def gradient_divisor(self, world_size: int) -> float | None:
        """Not known."""
        del world_size
        return None

    def kept(self, parameters: Sequence[Tensor]) -> Iterator[tuple[Tensor, Kept]]:
        """Nowhere that could be looked at: each backward is taken to add to something, by a new tensor."""
        yield from ((parameter, (torch.empty(0),)) for parameter in parameters[:1])

    def watch(self, recorder: Recorder) -> None:
        """Say what is missing."""
        recorder.not_recorded(
            f"torch {torch.__version__} is not known well enough ({self._lacks}): "
            "no record of wrapper, divisor, shards and synchronisation"
        )


class ShardingReducer(Reducer):
    """What the two have in common: coordinates, and norms of shards."""

    hears_parameters = False

    def __init__(self, model: nn.Module, modules: Sequence[Any]) -> None:
        root = uncompiled(model)
        super().__init__(getattr(root, "_fsdp_wrapped_module", root))
        self._modules = modules
        self.shard_rank, self.shard_size, self.replica_rank, self.replica_size = max(
            self._places(), key=lambda place: place[1], default=(0, 1, 0, 1)
        )
        self.tensor_rank, self.tensor_size = self._tensor_place()

    def checked(self) -> Reducer:
        """Itself, once everything was asked that will be asked of this version of torch."""
        for _ in self.kept([*self.inner.parameters()]):
            pass
        _ = self.backward_reduces(), self.settled, self.gradient_divisor(1), self.cpu_offload, self.precision
        return self

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        """Shard rank and size, replica rank and size of each unit."""
        raise NotImplementedError

    def _tensor_place(self) -> tuple[int, int]:
        """Rank and size of a group over which parameters are sharded too, with the same data."""
        return 0, 1

    @property
    def norm_scope(self) -> str:
        """Gradients are whole where the shard is all there is."""
        return "shard" if self.shard_size * self.tensor_size > 1 else "global"

    def watch(self, recorder: Recorder) -> None:
        """Say where it is not known what gradients are divided by."""
        if recorder.settler.gradient_divisor is None:
            recorder.not_recorded(
                f"what {self.name} divides gradients by is not known (a communication hook, units that "
                f"differ, or torch {torch.__version__} does not tell): declare gradient_divisor, "
                "or no weights are judged"
            )

    def layout(self, rank: int, world_size: int) -> Mapping[str, int | None]:
        """Ranks of one shard are replicas of each other."""
        del rank
        found: dict[str, int | None] = {
            "shard_rank": self.shard_rank,
            "shard_size": self.shard_size,
            "replica_rank": self.replica_rank,
            "replica_size": self.replica_size,
        }
        if self.tensor_size > 1:
            found |= {"tensor_rank": self.tensor_rank, "tensor_size": self.tensor_size}
        size = self.shard_size * self.replica_size
        if size * self.tensor_size == 1:
            return found  # it reduces nothing, in silence: ranks of the data, as without a wrapper
        place = self.replica_rank * self.shard_size + self.shard_rank
        return found | data_ranks(place, size, size * self.tensor_size == world_size)


class FSDP1Reducer(ShardingReducer):
    """FullyShardedDataParallel: its units flatten their parameters into one."""

    name = "fsdp1"

    def __init__(self, model: nn.Module, modules: Sequence[Any]) -> None:
        super().__init__(model, modules)
        self._sharded = {
            id(parameter)
            for handle in self._handles
            if handle.uses_sharded_strategy
            for parameter in _parameters_of(handle)
        }

    @property
    def _handles(self) -> list[Any]:
        handles = (getattr(module, "_handle", None) for module in self._modules)
        return [handle for handle in handles if handle is not None]

    @property
    def cpu_offload(self) -> bool:
        """Whether a unit keeps its shard on the CPU."""
        return any(module.cpu_offload.offload_params for module in self._modules)

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        for module in self._modules:
            handle, group = getattr(module, "_handle", None), module.process_group
            rank, size = distributed.get_rank(group), distributed.get_world_size(group)
            if handle is not None and not handle.uses_sharded_strategy:
                yield 0, 1, rank, size
            elif (between := getattr(module, "_inter_node_pg", None)) is not None:
                yield rank, size, distributed.get_rank(between), distributed.get_world_size(between)
            else:
                yield rank, size, 0, 1

    def backward_reduces(self) -> bool:
        """The flag that no_sync takes away; it counts when gradients arrive."""
        return all(module._sync_gradients for module in self._modules)

    def gradient_divisor(self, world_size: int) -> float | None:
        """The two factors of the average; a communication hook may divide by anything."""
        del world_size
        found = {self._divisor_of(module) for module in self._modules}
        return found.pop() if len(found) == 1 else None

    @property
    def precision(self) -> Sequence[str]:
        """Of the whole parameters, and of the reduction."""
        return _dtypes(getattr(module, "mixed_precision", None) for module in self._modules)

    def _divisor_of(self, module: Any) -> float | None:
        before = getattr(module, "_gradient_predivide_factor", None)
        after = getattr(module, "_gradient_postdivide_factor", None)
        if getattr(module, "_comm_hook", None) is not None or before is None or after is None:
            return None
        return float(before * after)

    def kept(self, parameters: Sequence[Tensor]) -> Iterator[tuple[Tensor, Kept]]:
        """Gradients gather in the flat parameter, where the optimizer holds views of it too."""
        wanted = {id(parameter): parameter for parameter in parameters}
        for handle in self._handles:
            flat = handle.flat_param
            gathered = (flat.grad, getattr(flat, "_saved_grad_shard", None))
            for parameter in _parameters_of(handle):
                if wanted.pop(id(parameter), None) is not None:
                    yield parameter, gathered
        for parameter in wanted.values():
            yield parameter, (parameter.grad,)

    def copies(self, parameter: Tensor) -> int:
        """Units that are not sharded, and parameters of none, lie on every rank."""
        return 1 if id(parameter) in self._sharded else self.shard_size

    def returned_norm(self, norm: Tensor) -> tuple[Tensor | None, str | None]:
        """Torch's own functions see the shards that lie here."""
        return norm, self.norm_scope

    def watch(self, recorder: Recorder) -> None:
        """Hear its own clip, which knows of the other shards."""
        super().watch(recorder)
        framework = Framework("torch", torch.__version__)
        owner = sys.modules[PACKAGE].FullyShardedDataParallel
        framework.patch(owner, "clip_grad_norm_", _wrap_clip, loses="clips")
        framework.tell(recorder)


def _parameters_of(handle: Any) -> list[Tensor]:
    """What an optimizer may hold of a unit: the flat parameter, or the original ones."""
    flat = handle.flat_param
    return [flat, *(getattr(flat, "_params", None) or ())]


def _wrap_clip(original: Function) -> Function:
    """`FullyShardedDataParallel.clip_grad_norm_`, whose norm is that of all shards."""

    def clip_grad_norm_(self: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        # Without shards it calls torch's own function, which is heard.
        sharded = any(
            (handle := getattr(module, "_handle", None)) is not None and handle.uses_sharded_strategy
            for module in self.modules()
        )
        if not sharded or not session.recorders or unreal():
            return original(self, max_norm, *args, **kwargs)
        parameters = list(self.parameters())
        session.each(lambda recorder: recorder.clip_begins(parameters))
        norm = original(self, max_norm, *args, **kwargs)
        session.each(lambda recorder: recorder.clip_ended("norm", parameters, max_norm, norm, whole=True))
        return norm

    return clip_grad_norm_


def _wrap_reduction(original: Function) -> Function:
    """A stage's `perform_reduce_grad`, after the last backward of a schedule."""

    def perform_reduce_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        session.each(lambda recorder: recorder.reduced_late(self.submod))
        return result

    return perform_reduce_grad


def _wrap_scaling(original: Function) -> Function:
    """A stage's `scale_grads`: what is reduced is looked at before it is divided."""

    def scale_grads(self: Any, *args: Any, **kwargs: Any) -> Any:
        session.each(lambda recorder: recorder.reduced_late(self.submod))
        return original(self, *args, **kwargs)

    return scale_grads


def _dtypes(policies: Iterable[Any]) -> list[str]:
    found = {
        f"{what} {str(dtype).removeprefix('torch.')}"
        for policy in policies
        for what, name in (("forward", "param_dtype"), ("reduced", "reduce_dtype"))
        if (dtype := getattr(policy, name, None)) is not None
    }
    return sorted(found)


def _own_dimensions(group: Any) -> int:
    """Dimensions of a mesh over which FSDP shards and replicates; they come first."""
    mesh = group.mesh_info
    return sum(getattr(mesh, name, None) is not None for name in ("shard_mesh_dim", "replicate_mesh_dim"))


class FSDP2Reducer(ShardingReducer):
    """`fully_shard`: the optimizer's parameters and their gradients are DTensors."""

    name = "fsdp2"

    @property
    def _groups(self) -> list[Any]:
        """Parameters that are communicated together."""
        found: list[Any] = []
        for module in self._modules:
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)  # before torch 2.11 there is one at most
            found += [getattr(state, "_fsdp_param_group", None)] if groups is None else groups
        return [group for group in found if group is not None]

    @property
    def cpu_offload(self) -> bool:
        """Whether a group keeps its shard on the CPU."""
        return any(type(group.offload_policy).__name__ == "CPUOffloadPolicy" for group in self._groups)

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        for group in self._groups:
            mesh = group.mesh_info
            yield (
                getattr(mesh, "shard_mesh_rank", 0),
                getattr(mesh, "shard_mesh_size", 1),
                getattr(mesh, "replicate_mesh_rank", 0),
                getattr(mesh, "replicate_mesh_size", 1),
            )

    def _tensor_place(self) -> tuple[int, int]:
        """Where a parameter was a DTensor already, its mesh has dimensions behind those of FSDP."""
        for group in self._groups:
            for entry in group.fsdp_params:
                mesh = entry.sharded_param.device_mesh
                sizes, place = mesh.shape[_own_dimensions(group) :], mesh.get_coordinate()
                if place is not None and math.prod(sizes) > 1:
                    rank = 0
                    for coordinate, size in zip(place[_own_dimensions(group) :], sizes, strict=True):
                        rank = rank * size + coordinate
                    return rank, math.prod(sizes)
        return 0, 1

    def backward_reduces(self) -> bool:
        """The flags that set_requires_gradient_sync and set_requires_all_reduce set."""
        return all(
            group.reduce_grads
            and (group.all_reduce_grads or not hasattr(group.mesh_info, "replicate_mesh_size"))
            for group in self._groups
        )

    @property
    def settled(self) -> bool:
        """Reductions are waited for in what the loop calls the last backward."""
        contexts = (getattr(module._get_fsdp_state(), "_state_ctx", None) for module in self._modules)
        return all(getattr(context, "is_last_backward", True) for context in contexts)

    def gradient_divisor(self, world_size: int) -> float | None:
        """The factor that was set, else the average's; what the user's own code reduces is not known."""
        del world_size
        found = {self._divisor_of(group) for group in self._groups}
        return found.pop() if len(found) == 1 else None

    @property
    def precision(self) -> Sequence[str]:
        """Of the whole parameters, and of the reduction."""
        return _dtypes(getattr(group, "mp_policy", None) for group in self._groups)

    def _divisor_of(self, group: Any) -> float | None:
        own_reduction = getattr(group, "_reduce_scatter_comm", None)
        ours = own_reduction is None or type(own_reduction).__module__.startswith("torch.")
        # Before torch 2.8 a factor stands in an operator, from which it cannot be read.
        unread = getattr(group, "reduce_scatter_reduce_op", None) is not None
        if getattr(group, "_all_reduce_hook", None) is not None or not ours or unread:
            return None
        factor = getattr(group, "gradient_divide_factor", None)
        mesh = group.mesh_info
        ranks = getattr(mesh, "shard_mesh_size", 1) * getattr(mesh, "replicate_mesh_size", 1)
        return float(ranks if factor is None else factor)

    def kept(self, parameters: Sequence[Tensor]) -> Iterator[tuple[Tensor, Kept]]:
        """Gradients that are not reduced yet gather in the whole parameter, or beside it."""
        wanted = {id(parameter): parameter for parameter in parameters}
        for group in self._groups:
            partial = getattr(group, "_partial_reduce_output", None)
            for entry in group.fsdp_params if wanted else ():
                parameter = wanted.pop(id(entry.sharded_param), None)
                if parameter is not None:
                    whole = getattr(entry, "_unsharded_param", None)
                    yield (
                        parameter,
                        (
                            parameter.grad,
                            None if whole is None else whole.grad,
                            getattr(entry, "unsharded_accumulated_grad", None),
                            partial,
                        ),
                    )
        for parameter in wanted.values():
            yield parameter, (parameter.grad,)

    def watch(self, recorder: Recorder) -> None:
        """Hear the stages of torch's pipelines, which reduce when all backwards have ended."""
        super().watch(recorder)
        stages = sys.modules.get(PIPELINING)
        if stages is not None and recorder.pipelined:
            framework = Framework("torch", torch.__version__)
            stage = stages._PipelineStageBase
            framework.patch(stage, "perform_reduce_grad", _wrap_reduction, loses="reductions of pipelines")
            framework.patch(stage, "scale_grads", _wrap_scaling, loses="divisions of a pipeline's gradients")
            framework.tell(recorder)

    def copies(self, parameter: Tensor) -> int:
        """A parameter lies whole on ranks that do not shard it, and one that FSDP ignores on all of them."""
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None:
            return self.shard_size * self.tensor_size
        if self.tensor_size == 1:
            return 1
        sharded = [
            size
            for size, placement in zip(mesh.shape, getattr(parameter, "placements", ()), strict=True)
            if not placement.is_replicate()
        ]
        return int(self.shard_size * self.tensor_size // math.prod(sharded))

    def returned_norm(self, norm: Tensor) -> tuple[Tensor | None, str | None]:
        """One that is no DTensor was made whole by the loop."""
        found, scope = super().returned_norm(norm)
        return found, "global" if found is norm else scope
