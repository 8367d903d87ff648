"""Hook objects that live in somebody else's module or optimizer without getting in the way.

A copy or a pickle of one does nothing: a deep-copied, averaged or saved model carries no recorder.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

log = logging.getLogger("accumaudit")


def inert(*_args: Any, **_kwargs: Any) -> None:
    """What a copied or unpickled hook is: it does nothing."""


def _unpickled() -> Callable[..., None]:
    return inert


class Hook:
    """Calls `function`, but only for `owner` (where one is named) and only while it is this very object.

    Whatever goes wrong inside is given to `on_fault` and never reaches the training.
    """

    def __init__(
        self, function: Callable[..., None], on_fault: Callable[[Exception], None], owner: object = None
    ) -> None:
        self._function = function
        self._on_fault = on_fault
        self._owner = None if owner is None else weakref.ref(owner)

    def __call__(self, first: Any, *args: Any, **kwargs: Any) -> None:
        if self._owner is not None and self._owner() is not first:
            return
        try:
            self._function(first, *args, **kwargs)
        except Exception as error:
            self._on_fault(error)

    def __copy__(self) -> Callable[..., None]:
        return inert

    def __deepcopy__(self, _memo: object) -> Callable[..., None]:
        return inert

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _unpickled, ()


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A method of an object with `fault`: an exception inside is counted there and goes no further."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.fault(error)

    return wrapper
