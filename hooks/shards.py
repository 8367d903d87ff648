"""The part of a distributed tensor that lies on this rank, without a word to the other ranks."""

from __future__ import annotations

from torch import Tensor, nn


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, Tensor) else tensor


def version(tensor: Tensor) -> int:
    """Grows whenever the tensor, or its local part, is changed in place."""
    part = local(tensor)
    return tensor._version if part is tensor else tensor._version + part._version
