"""A model, its wrapper and its compiled form."""

from __future__ import annotations

import re
from typing import Final

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_LAYERS: Final = re.compile(r"_\w+_wrapped_module\.")
"""What wrappers of a part of a model put into the names of its parameters."""


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile was given, where the model is what it returned."""
    original = getattr(model, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else model


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """The wrapper that reduces gradients, compiled or not."""
    wrapper = uncompiled(model)
    return wrapper if isinstance(wrapper, DistributedDataParallel) else None


def plain_name(name: str) -> str:
    """A parameter's name without the layers that wrappers put in."""
    return _LAYERS.sub("", name)
