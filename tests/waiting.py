"""Counts what makes a training wait for its device or for other ranks, in one thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode

READS: Final = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__array__",
)
"""Methods that bring a tensor's values to the host."""

SYNCHRONISATIONS: Final = (
    (torch.cuda, "synchronize"),
    (torch.accelerator, "synchronize"),
    (torch.cuda.Event, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
)

OPERATORS: Final = {
    *("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose"),
    *("aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2", "aten::isin"),
}
"""Those whose result, or its size, is needed on the host. Names of collectives begin with c10d."""

COLLECTIVES: Final = ("c10d::", "_c10d_functional::")

FUNCTIONS: Final = ("all_reduce", "all_gather", "broadcast", "reduce", "barrier", "all_gather_object")
"""Of torch.distributed, in case that a group runs none of its operators."""


class Waits(TorchDispatchMode):
    """What was done in this thread while it is entered, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own
        self.counts: Counter[str] = Counter()
        self._thread = threading.get_ident()

    def note(self, name: str) -> None:
        """Count, in this thread alone: the writer is there to wait."""
        if threading.get_ident() == self._thread:
            self.counts[name] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name in OPERATORS or name.startswith(COLLECTIVES) or _by_mask(name, args):
            self.note(name)
        return func(*args, **(kwargs or {}))


def _by_mask(name: str, args: Any) -> bool:
    """Indexing with a mask, whose number of elements is needed on the host."""
    indices = args[1] if name == "aten::index" else ()
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)


@contextmanager
def counted() -> Iterator[Waits]:
    """Count for a while."""
    waits = Waits()
    targets = [(Tensor, name) for name in READS] + list(SYNCHRONISATIONS)
    targets += [(distributed, name) for name in FUNCTIONS]
    with waits:
        patches = [mock.patch.object(owner, name, _heard(waits, owner, name)) for owner, name in targets]
        for patch in patches:
            patch.start()
        try:
            yield waits
        finally:
            for patch in patches:
                patch.stop()


def _heard(waits: Waits, owner: Any, name: str) -> Callable[..., Any]:
    original = getattr(owner, name)

    def heard(*args: Any, **kwargs: Any) -> Any:
        waits.note(name)
        return original(*args, **kwargs)

    return heard
