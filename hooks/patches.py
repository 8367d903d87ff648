"""Every function of torch that is replaced while a recorder is attached, in one place.

Official hooks come first; what is here has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import distributed
from torch.jit import _builtins
from torch.nn.utils import clip_grad
from torch.optim.swa_utils import AveragedModel

from accumaudit.hooks.session import session
from accumaudit.hooks.wrappers import (
    Wrap,
    outermost,
    wrap_average,
    wrap_backward,
    wrap_collective,
    wrap_linear_loss,
    wrap_loss,
    wrap_norm_clip,
    wrap_scale,
    wrap_scaler_step,
    wrap_scaler_update,
    wrap_unscale,
    wrap_value_clip,
)


class Patch:
    """One attribute that is replaced by a wrapper and put back."""

    def __init__(self, owner: object, name: str, wrap: Wrap, builtin: str | None = None) -> None:
        self.owner = owner
        self.name = name
        self._wrap = wrap
        self._builtin = builtin
        """The operator's name: TorchScript finds a builtin by the function's identity."""
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def install(self) -> None:
        """Put the wrapper in place, unless it still lies under somebody else's."""
        if self._wrapper is not None:
            return
        original = getattr(self.owner, self.name)
        wrapper = functools.wraps(original)(self._wrap(original))
        if self._builtin is not None:
            _builtins._get_builtin_table()[id(wrapper)] = self._builtin
        self._original, self._wrapper = original, wrapper
        setattr(self.owner, self.name, wrapper)

    @property
    def installed(self) -> bool:
        """Whether the wrapper is there, be it under somebody else's."""
        return self._wrapper is not None

    def undo(self) -> None:
        """Put the original back; where somebody has wrapped ours, it stays underneath and does nothing."""
        if self._wrapper is None or self.owner.__dict__.get(self.name) is not self._wrapper:
            return
        setattr(self.owner, self.name, self._original)
        if self._builtin is not None:
            _builtins._get_builtin_table().pop(id(self._wrapper), None)
        self._original = self._wrapper = None


class _WatchedIterator:
    """An iterator over the data that tells when it is exhausted."""

    def __init__(self, iterator: Any, ended: Callable[[], None]) -> None:
        self._iterator = iterator
        self._ended = ended

    def __iter__(self) -> _WatchedIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            ended, self._ended = self._ended, _nothing
            ended()
            raise

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)  # a copy in the making
        return getattr(self._iterator, name)


def _nothing() -> None:
    pass


_class_patches: dict[tuple[type, str], Patch] = {}
"""Of classes whose instances are watched: one for each, however many recorders watch."""


def watch_data(data: object) -> None:
    """Hear iterations over the data: its class is patched."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(self: Any) -> Any:
            iterator = original(self)
            # Without gradients it is an evaluation on the training data.
            if not torch.is_grad_enabled() or not any(each.reads(self) for each in session.recorders):
                return iterator
            session.each(lambda recorder: recorder.data_begins(self))
            return _WatchedIterator(
                iterator, lambda: session.each(lambda recorder: recorder.data_ended(self))
            )

        return iterate

    watch_class(type(data), "__iter__", wrap)


def watch_scheduler(scheduler: object) -> None:
    """Hear a scheduler whose steps cannot be seen by looking at it: its class is patched."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            session.each(lambda recorder: recorder.scheduler_stepped(self))
            return result

        return step

    watch_class(type(scheduler), "step", wrap)


def watch_scaler(scaler: object) -> None:
    """Hear a scaler whose class has methods of its own: those are patched too."""
    for method, wrap in SCALER.items():
        owner = next((cls for cls in type(scaler).__mro__ if method in cls.__dict__), torch.amp.GradScaler)
        if owner is not torch.amp.GradScaler:
            watch_class(type(scaler), method, outermost(wrap))


def watch_class(cls: type, method: str, wrap: Wrap) -> None:
    """Patch a method in the class that has it, once for all recorders."""
    owner = next(base for base in cls.__mro__ if method in base.__dict__)
    patch = _class_patches.setdefault((owner, method), Patch(owner, method, wrap))
    patch.install()


def watchable(instance: object, method: str) -> bool:
    """Whether the class of an object has a method that can be patched."""
    for cls in type(instance).__mro__:
        if method in cls.__dict__:
            return bool(cls.__flags__ & _HEAP_TYPE) and not cls.__flags__ & _IMMUTABLE_TYPE
    return False


_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


SCALER: Final = {
    "scale": wrap_scale,
    "unscale_": wrap_unscale,
    "step": wrap_scaler_step,
    "update": wrap_scaler_update,
}

PATCHES = (
    Patch(torch.autograd, "backward", wrap_backward),
    Patch(torch._C._nn, "cross_entropy_loss", wrap_loss, builtin="aten::cross_entropy_loss"),
    Patch(torch._C._nn, "nll_loss_nd", wrap_loss, builtin="aten::nll_loss_nd"),
    # clip_grad_norm_ calls this one by its global name, so that those who imported it by name are seen too.
    Patch(clip_grad, "_clip_grads_with_norm_", wrap_norm_clip),
    Patch(torch.nn.utils, "clip_grads_with_norm_", wrap_norm_clip),
    Patch(clip_grad, "clip_grad_value_", wrap_value_clip),
    Patch(torch.nn.utils, "clip_grad_value_", wrap_value_clip),
    *(Patch(torch.amp.GradScaler, method, outermost(wrap)) for method, wrap in SCALER.items()),
    Patch(AveragedModel, "update_parameters", wrap_average),
)


def _linear_loss_patch() -> tuple[Patch, ...]:
    """The chunked linear cross entropy, which older versions of torch do not have."""
    module = getattr(torch.nn.modules, "linear_cross_entropy", None)
    name = "_linear_cross_entropy_batch_chunked"
    return (Patch(module, name, wrap_linear_loss),) if hasattr(module, name) else ()


def _collective_patches() -> tuple[Patch, ...]:
    names = ("all_reduce", "all_reduce_coalesced", "reduce") if distributed.is_available() else ()
    return tuple(Patch(distributed, name, wrap_collective) for name in names)


VERSION_PATCHES = (*_linear_loss_patch(), *_collective_patches())


def install() -> None:
    """Put every patch in place."""
    for patch in (*PATCHES, *VERSION_PATCHES):
        patch.install()


def undo() -> None:
    """Take every patch back."""
    for patch in (*PATCHES, *VERSION_PATCHES):
        patch.undo()
    for place, patch in list(_class_patches.items()):
        patch.undo()
        if not patch.installed:
            del _class_patches[place]
