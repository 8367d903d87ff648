"""Every function of torch that is replaced while a recorder is attached, in one place.

Official hooks come first; what is here has none. Each patch calls the original with the very same
arguments and returns what it returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.jit import _builtins
from torch.nn.utils import clip_grad

from accumaudit.hooks.loss import LossCall, call_site, remember
from accumaudit.hooks.session import session

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


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

    def undo(self) -> None:
        """Put the original back; where somebody has wrapped ours, it stays underneath and does nothing."""
        if self._wrapper is None or self.owner.__dict__.get(self.name) is not self._wrapper:
            return
        setattr(self.owner, self.name, self._original)
        if self._builtin is not None:
            _builtins._get_builtin_table().pop(id(self._wrapper), None)
        self._original = self._wrapper = None


def _quiet() -> bool:
    return torch.compiler.is_compiling() or not session.recorders


def _wrap_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _quiet():
            return original(tensors, grad_tensors, *args, **kwargs)
        with session.running_backward(tensors, grad_tensors):
            return original(tensors, grad_tensors, *args, **kwargs)

    return backward


def _wrap_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if not _quiet():
            session.watch_loss(output, lambda tensor: remember(tensor, *args, **kwargs))
        return output

    return loss


def _wrap_linear_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def linear_cross_entropy(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if not _quiet():
            session.watch_loss(outputs[0], lambda tensor: _remember_linear(tensor, args))
        return outputs

    return linear_cross_entropy


def _remember_linear(output: Tensor, arguments: tuple[Any, ...]) -> LossCall:
    _input, _weight, target, _bias, class_weights, reduction, ignore_index = arguments[:7]
    return LossCall(
        site=call_site(),
        reduction=reduction,
        value=output.detach().clone(),
        target=target,
        class_weights=class_weights,
        ignore_index=ignore_index,
    )


def _wrap_norm_clip(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grads_with_norm_(
        parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with _clipping("norm", parameters, max_norm, total_norm):
            return original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip_grads_with_norm_


def _wrap_value_clip(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grad_value_(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with _clipping("value", parameters, clip_value, None):
            return original(parameters, clip_value, *args, **kwargs)

    return clip_grad_value_


@contextmanager
def _clipping(kind: str, parameters: list[Tensor], limit: Any, norm: Any) -> Iterator[None]:
    session.each(lambda recorder: recorder.clip_begins(parameters))
    yield
    session.each(lambda recorder: recorder.clip_ended(kind, parameters, limit, norm))


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
            self._ended()
            raise

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def data_patch(data: object) -> Patch:
    """For the class of an iterable over the training data."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(self: Any) -> Any:
            iterator = original(self)
            watchers = [recorder for recorder in session.recorders if recorder.reads(self)]
            if not watchers:
                return iterator
            session.each(lambda recorder: recorder.data_begins(self))
            return _WatchedIterator(
                iterator, lambda: session.each(lambda recorder: recorder.data_ended(self))
            )

        return iterate

    return Patch(_defining_class(data, "__iter__"), "__iter__", wrap)


def scheduler_patch(scheduler: object) -> Patch:
    """For the class of a scheduler whose steps cannot be seen by looking at it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            session.each(lambda recorder: recorder.scheduler_stepped(self))
            return result

        return step

    return Patch(_defining_class(scheduler, "step"), "step", wrap)


def _defining_class(instance: object, method: str) -> type:
    return next(cls for cls in type(instance).__mro__ if method in cls.__dict__)


PATCHES = (
    Patch(torch.autograd, "backward", _wrap_backward),
    Patch(torch._C._nn, "cross_entropy_loss", _wrap_loss, builtin="aten::cross_entropy_loss"),
    Patch(torch._C._nn, "nll_loss_nd", _wrap_loss, builtin="aten::nll_loss_nd"),
    # clip_grad_norm_ calls this one by its global name, so that those who imported it by name are seen too.
    Patch(clip_grad, "_clip_grads_with_norm_", _wrap_norm_clip),
    Patch(torch.nn.utils, "clip_grads_with_norm_", _wrap_norm_clip),
    Patch(clip_grad, "clip_grad_value_", _wrap_value_clip),
    Patch(torch.nn.utils, "clip_grad_value_", _wrap_value_clip),
)


def _linear_loss_patch() -> tuple[Patch, ...]:
    """The chunked linear cross entropy, which older versions of torch do not have."""
    module = getattr(torch.nn.modules, "linear_cross_entropy", None)
    name = "_linear_cross_entropy_batch_chunked"
    return (Patch(module, name, _wrap_linear_loss),) if hasattr(module, name) else ()


VERSION_PATCHES = _linear_loss_patch()


def install() -> None:
    """Put every patch in place."""
    for patch in (*PATCHES, *VERSION_PATCHES):
        patch.install()


def undo() -> None:
    """Take every patch back."""
    for patch in (*PATCHES, *VERSION_PATCHES):
        patch.undo()
