"""Which parameters a backward has added to, where torch's own hook on a parameter does not tell.

A wrapper that shards parameters gathers gradients in tensors of its own: these are compared before and
after the backward, by identity and version alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor

from accumaudit.hooks.reducers import Kept, Reducer
from accumaudit.hooks.shards import version

_State = tuple[weakref.ref[Tensor], int] | None


class Gathering:
    """The gradients of some parameters as they were before a backward."""

    def __init__(self, reducer: Reducer, parameters: Sequence[Tensor]) -> None:
        self._reducer = reducer
        self._parameters = parameters
        self._before = {id(parameter): _states(kept) for parameter, kept in reducer.kept(parameters)}

    def ended(self, polled: Tensor) -> list[Tensor]:
        """The parameters whose gradients have changed since; that of the polled one is enough."""
        return self._changed([polled]) or self._changed(self._parameters)

    def _changed(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [
            parameter
            for parameter, kept in self._reducer.kept(parameters)
            if not _are(self._before.get(id(parameter), ()), kept)
        ]


def _states(kept: Kept) -> tuple[_State, ...]:
    return tuple(None if tensor is None else (weakref.ref(tensor), version(tensor)) for tensor in kept)


def _are(states: tuple[_State, ...], kept: Kept) -> bool:
    return len(states) == len(kept) and all(map(_is, states, kept))


def _is(state: _State, tensor: Tensor | None) -> bool:
    if state is None or tensor is None:
        return state is None and tensor is None
    return state[0]() is tensor and state[1] == version(tensor)
