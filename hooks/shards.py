"""The part of a distributed tensor that lies on this rank, without a word to the other ranks."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

PARTED: Final = "ds_tensor"
"""Attribute in which ZeRO keeps this rank's part of a parameter whose own memory comes and goes."""


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, or of a parameter that is parted; any other tensor itself."""
    if type(tensor) is nn.Parameter:
        parted = tensor.__dict__.get(PARTED)
        return parted if isinstance(parted, Tensor) else tensor
    if type(tensor) is Tensor:
        return tensor
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, Tensor) else tensor


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this rank may hold a part alone."""
    return local(tensor) is not tensor


def version(tensor: Tensor) -> int:
    """Grows whenever the tensor, or its local part, is changed in place."""
    part = local(tensor)
    return tensor._version if part is tensor else tensor._version + part._version
