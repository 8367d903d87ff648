"""Who adds up the ranks' gradients, when, and what the sum is divided by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from accumaudit.hooks.modules import data_parallel, uncompiled
from accumaudit.hooks.optimizers import optimizer_parameters
from accumaudit.hooks.shards import is_distributed, local

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder

Kept = tuple[Tensor | None, ...]
"""The tensors in which the gradient of one parameter gathers, in a fixed order."""


class Reducer:
    """No one: the process trains alone, or the loop reduces gradients itself."""

    name: str | None = "none"
    """The run record's wrapper; None where that is not known."""
    hears_parameters = True
    """Torch tells when a gradient is accumulated into a parameter of the optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.inner = uncompiled(model)
        """The user's own module."""

    @property
    def norm_scope(self) -> str:
        """Whether gradients are whole on each rank (global) or a part of them lies there (shard)."""
        return "global"

    @property
    def cpu_offload(self) -> bool:
        """Whether parameters or gradients live on the host."""
        return False

    @property
    def precision(self) -> Sequence[str]:
        """What a wrapper of its own casts to, beside autocast."""
        return ()

    @property
    def bypassed(self) -> nn.Module | None:
        """A module whose own forward, called directly, is not reduced."""
        return None

    def forward_reduces(self) -> bool:
        """Whether gradients of a forward that begins now will be reduced, where the forward decides."""
        return True

    def backward_reduces(self) -> bool:
        """Whether a backward that begins now finds the reduction on."""
        return True

    @property
    def settled(self) -> bool:
        """Whether the gradients of the last backward may be read; some are still on their way."""
        return True

    def gradient_divisor(self, world_size: int) -> float | None:
        """What the sum of the ranks' gradients is divided by; None where that is not known."""
        return 1.0 if world_size == 1 else None

    def layout(self, rank: int, world_size: int) -> Mapping[str, int | None]:
        """The run record's coordinates of shards and replicas; none of data where ranks are left over."""
        del rank, world_size
        return {}

    def parameters(self, optimizer: Optimizer) -> list[Tensor]:
        """The parameters of the model that an optimizer trains; it may hold copies of them."""
        return optimizer_parameters(optimizer)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """What has been accumulated for a parameter so far, where it can be looked at."""
        return parameter.grad

    def shows(self, parameter: Tensor) -> bool:
        """Whether this rank can look at the gradient of a parameter until the step."""
        del parameter
        return True

    def gives(self, parameter: Tensor) -> bool:
        """Whether the gradient of a parameter is among those that the optimizer has now."""
        del parameter
        return True

    def kept(self, parameters: Sequence[Tensor]) -> Iterable[tuple[Tensor, Kept]]:
        """Where gradients of these parameters gather; asked where their own hooks do not tell."""
        return [(parameter, (parameter.grad,)) for parameter in parameters]

    def copies(self, parameter: Tensor) -> int:
        """Ranks of a shard group on which the same gradient of this parameter lies."""
        del parameter
        return 1

    def returned_norm(self, norm: Tensor) -> tuple[Tensor | None, str | None]:
        """What a clip of torch's own says of this rank's gradients: the norm, and over what it is taken."""
        if not is_distributed(norm):
            return norm, self.norm_scope
        # A norm of DTensors is one itself: known here where every rank has the sum.
        known = all(placement.is_replicate() for placement in getattr(norm, "placements", ()))
        return (local(norm), "global") if known else (None, None)

    def watch(self, recorder: Recorder) -> None:
        """Hear what the wrapper does itself, such as a clip."""


class DDPReducer(Reducer):
    """DistributedDataParallel, which decides at the forward."""

    name = "ddp"

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._wrapper = wrapper
        self.inner = uncompiled(wrapper.module)

    @property
    def bypassed(self) -> nn.Module:
        """The module inside."""
        module: nn.Module = self._wrapper.module
        return module

    def forward_reduces(self) -> bool:
        """Its flag, which no_sync takes away."""
        return bool(self._wrapper.require_backward_grad_sync)

    def backward_reduces(self) -> bool:
        """The same flag, later."""
        return self.forward_reduces()

    def gradient_divisor(self, world_size: int) -> float | None:
        """The size of its group; a communication hook may divide by anything."""
        del world_size
        hooked = bool(getattr(self._wrapper, "_comm_hooks", ()))
        return None if hooked else float(distributed.get_world_size(self._wrapper.process_group))

    def layout(self, rank: int, world_size: int) -> Mapping[str, int | None]:
        """All ranks of its group are replicas."""
        del rank
        group = self._wrapper.process_group
        place, size = distributed.get_rank(group), distributed.get_world_size(group)
        replicas = {"replica_rank": place, "replica_size": size, "shard_rank": 0, "shard_size": 1}
        return replicas | data_ranks(place, size, size == world_size)


def data_ranks(rank: int, size: int, all_ranks: bool) -> dict[str, int | None]:
    """Those that reduce together have different data; of ranks beside them nothing is known."""
    return {
        "data_parallel_rank": rank if all_ranks else None,
        "data_parallel_size": size if all_ranks else None,
    }


def reducer_of(model: nn.Module) -> Reducer:
    """The one that the model's wrapper is."""
    from accumaudit.hooks.fsdp import fsdp_reducer  # it builds on this file

    wrapper = data_parallel(model)
    return fsdp_reducer(model) or Reducer(model) if wrapper is None else DDPReducer(wrapper)
