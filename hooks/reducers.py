"""Who adds up the ranks' gradients, when, and what the sum is divided by."""

from __future__ import annotations

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from accumaudit.hooks.modules import data_parallel, uncompiled


class Reducer:
    """No one: the process trains alone, or the loop reduces gradients itself."""

    name = "none"
    """The run record's wrapper."""
    hears_parameters = True
    """Torch tells when a gradient is accumulated into a parameter of the optimizer."""
    norm_scope = "global"
    """Whether gradients are whole on each rank (global) or a part of them lies there (shard)."""
    cpu_offload = False

    def __init__(self, model: nn.Module) -> None:
        self.inner = uncompiled(model)
        """The user's own module."""

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

    def gradient_divisor(self, world_size: int) -> float | None:
        """What the sum of the ranks' gradients is divided by; None where that is not known."""
        return 1.0 if world_size == 1 else None

    def layout(self, rank: int, world_size: int) -> dict[str, int]:
        """The run record's coordinates of shards and replicas."""
        del rank, world_size
        return {}


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

    def layout(self, rank: int, world_size: int) -> dict[str, int]:
        """All ranks are replicas."""
        return {"replica_rank": rank, "replica_size": world_size, "shard_rank": 0, "shard_size": 1}


def reducer_of(model: nn.Module) -> Reducer:
    """The one that the model's wrapper is."""
    wrapper = data_parallel(model)
    return Reducer(model) if wrapper is None else DDPReducer(wrapper)
