"""Parameters, gradients and optimizer states of which each rank keeps a shard.

FSDP is imported where it is used: it takes longer to load than a training takes here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from accumaudit.demo.data import VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.model import Block, TinyTransformer
from accumaudit.demo.registry import against_advice, variant

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel


class Sharded(Loop):
    """What the loops here share: every micro-step is reduced, so that no rank holds a whole gradient."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext()

    def train(self) -> None:
        with against_advice():
            super().train()


@variant(ranks=(2,))
class FullyShard(Sharded):
    """FSDP2 shards each block, and the rest with the root."""

    def make_model(self) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        model = TinyTransformer(VOCABULARY_SIZE, checkpointing=self.settings.checkpointing)
        mesh = self.mesh()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def mesh(self) -> Any:
        return init_device_mesh("cpu", (self.world_size,))

    @property
    def sharded(self) -> FSDPModule:
        return cast("FSDPModule", self.model)


@variant(ranks=(2,))
class FullyShardHybrid(FullyShard):
    """FSDP2 on a mesh of two dimensions: shards of one rank, of which the other holds a replica."""

    def mesh(self) -> Any:
        return init_device_mesh("cpu", (self.world_size, 1), mesh_dim_names=("replicate", "shard"))


@variant(ranks=(2,))
class FullyShardNoSync(FullyShard):
    """FSDP2 reduces in the last micro-step alone."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        self.sharded.set_requires_gradient_sync(window.ends_with(number))
        return nullcontext()


@variant(ranks=(2,))
class GradientDivideFactorOne(FullyShard):
    """FSDP2 adds the gradients up and divides by 1; the loss is divided by the tokens of all ranks."""

    def make_model(self) -> nn.Module:
        from torch.distributed.fsdp import FSDPModule

        model = super().make_model()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        return model

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return self.summed_loss(batch) / window.tokens


@variant(ranks=(2,))
class FlatShards(Sharded):
    """FSDP1 flattens the parameters of each block and shards those; its own clip sees all shards."""

    STRATEGY = "FULL_SHARD"
    ORIGINAL = True

    def make_model(self) -> nn.Module:
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        with against_advice():
            return FullyShardedDataParallel(
                TinyTransformer(VOCABULARY_SIZE, checkpointing=self.settings.checkpointing),
                sharding_strategy=ShardingStrategy[self.STRATEGY],
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                device_id=torch.device("cpu"),  # it looks for an accelerator otherwise
                device_mesh=self.mesh(),
                use_orig_params=self.ORIGINAL,
            )

    def mesh(self) -> Any:
        return None

    @property
    def sharded(self) -> FullyShardedDataParallel:
        return cast("FullyShardedDataParallel", self.model)

    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            self.sharded.clip_grad_norm_(self.settings.max_grad_norm)


@variant(ranks=(2,))
class FlatShardsNoSync(FlatShards):
    """FSDP1 reduces in the last micro-step alone."""

    def no_sync(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self.sharded.no_sync()
        return context

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return Loop.reduction(self, number, window)


@variant(ranks=(2,))
class FlatParameters(FlatShards):
    """FSDP1 gives the optimizer its flat parameters."""

    ORIGINAL = False


@variant(ranks=(2,))
class FlatShardsOfGradients(FlatShardsNoSync):
    """FSDP1 shards gradients and states, and keeps the parameters whole between forward and backward."""

    STRATEGY = "SHARD_GRAD_OP"


@variant(ranks=(2,))
class NoShards(FlatShardsNoSync):
    """FSDP1 shards nothing: its ranks are replicas."""

    STRATEGY = "NO_SHARD"


@variant(ranks=(2,))
class FlatShardsHybrid(FlatShards):
    """FSDP1 shards over one dimension of a mesh and replicates over the other."""

    STRATEGY = "HYBRID_SHARD"

    def mesh(self) -> Any:
        return init_device_mesh("cpu", (1, self.world_size), mesh_dim_names=("replicate", "shard"))
