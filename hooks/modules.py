"""A model, its wrapper and its compiled form."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile was given, where the model is what it returned."""
    original = getattr(model, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else model


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """The wrapper that reduces gradients, compiled or not."""
    wrapper = uncompiled(model)
    return wrapper if isinstance(wrapper, DistributedDataParallel) else None
