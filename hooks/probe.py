"""The probe: one dense parameter whose gradient is looked at, at every event.

Whether its gradient is there, which tensor it is and that tensor's version tell that gradients were
cleared or changed, in whatever way; copies of a small fixed slice, compared by the writer, tell how.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from accumaudit.hooks.modules import plain_name
from accumaudit.hooks.shards import is_distributed, local, version

SLICE: Final = 64
"""Elements of the slice."""

KEPT: Final = 1 << 16
"""Elements, of eight bytes, up to which a view of a tensor is kept: it keeps the memory behind it."""


@dataclass(slots=True, eq=False)
class Change:
    """The gradient's slice before and after something that the hooks did not see."""

    before: Tensor | None
    after: Tensor


class Cleared(Enum):
    """The gradient is gone."""

    CLEARED = auto()


CLEARED: Final = Cleared.CLEARED


class Candidate(NamedTuple):
    """A parameter that may be polled."""

    name: str
    parameter: Tensor
    in_rows: bool
    """Its gradient may be empty but for some rows, as an embedding's."""


def _own_gradient(parameter: Tensor) -> Tensor | None:
    return parameter.grad


class Probe:
    """The polled parameter and what was last seen of its gradient."""

    def __init__(
        self, candidates: Sequence[Candidate], gradient: Callable[[Tensor], Tensor | None] = _own_gradient
    ) -> None:
        self.candidates = candidates
        self._gradient = gradient
        self.name, self.parameter, self._in_rows = candidates[-1]
        self._known: tuple[weakref.ref[Tensor], int] | None = None
        self._views = _Views(), _Views()
        self.slice: Tensor | None = None
        """The gradient's slice when it was last looked at."""
        self.refresh()

    def refresh(self) -> None:
        """Take the gradient as it is now for known."""
        gradient = self._gradient(self.parameter)
        if gradient is None:
            self._known = self.slice = None
        else:
            self._known = weakref.ref(gradient), version(gradient)
            self.slice = self._views[0].copy(local(gradient), self._in_rows)

    def resync(self) -> None:
        """Take the gradient for known without a copy: after a step, whose own changes say nothing."""
        self._known = self._state()
        gradient = self._gradient(self.parameter)
        if gradient is not None and is_distributed(gradient):
            self.refresh()  # it is compared by its values

    def value(self) -> Tensor:
        """The slice of the parameter itself."""
        return self._views[1].copy(local(self.parameter), self._in_rows)

    def _state(self) -> tuple[weakref.ref[Tensor], int] | None:
        gradient = self._gradient(self.parameter)
        return None if gradient is None else (weakref.ref(gradient), version(gradient))

    def look(self) -> Change | Cleared | None:
        """What happened to the gradient since the last look, if anything did."""
        gradient, known = self._gradient(self.parameter), self._known
        if gradient is None:
            self._known = self.slice = None
            return None if known is None else CLEARED
        same = known is not None and known[0]() is gradient and known[1] == version(gradient)
        # What torch does to several DTensors at once shows in no version.
        if same and not is_distributed(gradient):
            return None
        before = self.slice
        self.refresh()
        if same and self.slice is not None and before is not None and _are_known_equal(before, self.slice):
            return None
        return None if self.slice is None else Change(before, self.slice)

    def follow(self, fired: Sequence[Tensor]) -> None:
        """Keep to the parameter if it got a gradient in the last backward, else take the best that did."""
        polled = self.parameter
        for parameter in fired:
            if parameter is polled:
                return
        got = {id(parameter) for parameter in fired}
        found = next((entry for entry in reversed(self.candidates) if id(entry.parameter) in got), None)
        if found is not None:
            self.name, self.parameter, self._in_rows = found


def _are_known_equal(before: Tensor, after: Tensor) -> bool:
    """Whether they are equal, NaN included, where that can be asked without waiting for a device."""
    if not before.is_cpu or not after.is_cpu or before.dtype is not after.dtype:
        return False
    return torch.equal(before.view(torch.uint8), after.view(torch.uint8))


class _Views:
    """Copies the slice of one tensor after another; most often it is the one before."""

    def __init__(self) -> None:
        self._view: Tensor | None = None
        self._address = 0

    def copy(self, tensor: Tensor, in_rows: bool) -> Tensor:
        """A copy of the slice as it is now."""
        # The memory cannot have become another tensor's: the view holds it.
        if (
            self._view is not None
            and tensor.layout is torch.strided
            and tensor.data_ptr() == self._address
            and tensor.dtype is self._view.dtype
        ):
            return self._view.clone()
        view = _slice_view(tensor, in_rows)
        self._view = None
        if _may_be_kept(tensor) and view.data_ptr() == tensor.data_ptr():
            self._view, self._address = view, tensor.data_ptr()
        return view.clone()


def _may_be_kept(tensor: Tensor) -> bool:
    # On an accelerator a kept view would keep memory from those who plan it, such as CUDA graphs.
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    # A gradient may be a small part of a large buffer.
    return plain and tensor.is_cpu and tensor.untyped_storage().nbytes() <= 8 * KEPT


def _slice_view(tensor: Tensor, in_rows: bool) -> Tensor:
    """Up to 64 consecutive elements of a tensor's memory.

    Args:
        tensor: a parameter or its gradient.
        in_rows: only some rows may be changed; the rows are added up then, so that all of them count.
    """
    plain = tensor.detach()
    if plain.layout == torch.sparse_coo:
        plain = plain._values()
    elif plain.layout != torch.strided:
        plain = plain.to_dense()
    if in_rows and plain.dim() > 1:
        plain = plain.sum(0)
    if 0 in plain.stride():  # expanded: less memory than elements
        plain = plain.contiguous()
    length = min(SLICE, plain.numel())
    return torch.as_strided(plain, (length,), (1,), plain.storage_offset())


def probe_candidates(model: nn.Module, parameters: Sequence[Tensor]) -> list[Candidate]:
    """The parameters that may be polled, the best one last.

    Rows of an embedding get no gradient where their token does not occur, so embeddings come first;
    vectors (norms, biases) get one in every element and are small, so they come last.
    """
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    in_rows = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        for parameter in module.parameters(recurse=False)
    }
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # Where parameters are sharded, nothing of them may lie on this rank.
    usable = [parameter for parameter in trained if local(parameter).numel()] or trained

    def fitness(parameter: Tensor) -> tuple[bool, bool, bool]:
        return id(parameter) not in in_rows, parameter.dim() == 1, parameter.numel() >= SLICE

    return [
        Candidate(names.get(id(p), f"parameter {i}"), p, id(p) in in_rows)
        for i, p in sorted(enumerate(usable), key=lambda e: fitness(e[1]))
    ]
