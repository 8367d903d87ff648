"""Hook objects that live in somebody else's module or optimizer without getting in the way.

A copy or a pickle of one does nothing: a deep-copied, averaged or saved model carries no recorder.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch

from accumaudit.hooks.watching import FaultFoundError

log = logging.getLogger("accumaudit")


def inert(*_args: Any, **_kwargs: Any) -> None:
    """What a copied or unpickled hook is: it does nothing."""


def _unpickled() -> Callable[..., None]:
    return inert


_capturing: Callable[[], bool] | None = (
    torch.cuda.is_current_stream_capturing if torch.backends.cuda.is_built() else None
)


def unreal() -> bool:
    """Whether torch compiles, traces or captures now: what runs is a program in the making, no training."""
    return (
        torch.compiler.is_dynamo_compiling()
        or torch.compiler._is_compiling_flag
        or torch._C._get_tracing_state() is not None
        or (_capturing is not None and _capturing())
    )


class Hook:
    """Calls `function`, but only for `owner` (where one is named) and only while it is this very object.

    It does nothing while torch compiles, traces or captures the training as a graph.
    Whatever goes wrong inside is given to `on_fault` and never reaches the training, but for the one error
    that it has asked for.
    """

    def __init__(
        self, function: Callable[..., Any], on_fault: Callable[[Exception], None], owner: object = None
    ) -> None:
        self._function = function
        self._on_fault = on_fault
        self._owner = None if owner is None else weakref.ref(owner)
        self.passed_over = False
        """It was to be called in what torch makes a program of. Such a program sets it each time it runs."""

    def __call__(self, first: Any, *args: Any, **kwargs: Any) -> Any:
        if self._owner is not None and self._owner() is not first:
            return None
        try:
            if not unreal():
                return self._function(first, *args, **kwargs)
            self.passed_over = True
        except FaultFoundError:
            raise
        except Exception as error:
            self._on_fault(error)
        return None

    def __copy__(self) -> Callable[..., None]:
        return inert

    def __deepcopy__(self, _memo: object) -> Callable[..., None]:
        return inert

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _unpickled, ()
