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

from accumaudit.hooks.handles import unreal
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


def _quiet() -> bool:
    return not session.recorders or unreal()


def _wrap_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _quiet():
            return original(tensors, grad_tensors, *args, **kwargs)
        tensors, grad_tensors = _kept(tensors), _kept(grad_tensors)
        with session.running_backward(tensors, grad_tensors):
            return original(tensors, grad_tensors, *args, **kwargs)

    return backward


def _kept(values: Any) -> Any:
    """An iterator's values, so that looking at them does not use it up; all else as it is."""
    return tuple(values) if isinstance(values, Iterator) else values


def _wrap_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any, **kwargs: Any) -> Any:
        if _quiet():
            return original(*args, **kwargs)  # the names of variables here would stand in a traced graph
        output = original(*args, **kwargs)
        session.watch_loss(output, lambda tensor: remember(tensor, *args, **kwargs))
        return output

    return loss


def _wrap_linear_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def linear_cross_entropy(*args: Any, **kwargs: Any) -> Any:
        if _quiet():
            return original(*args, **kwargs)
        outputs = original(*args, **kwargs)
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

    _watch_class(data, "__iter__", wrap)


def watch_scheduler(scheduler: object) -> None:
    """Hear a scheduler whose steps cannot be seen by looking at it: its class is patched."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            session.each(lambda recorder: recorder.scheduler_stepped(self))
            return result

        return step

    _watch_class(scheduler, "step", wrap)


def _watch_class(instance: object, method: str, wrap: Wrap) -> None:
    owner = next(cls for cls in type(instance).__mro__ if method in cls.__dict__)
    patch = _class_patches.setdefault((owner, method), Patch(owner, method, wrap))
    patch.install()


def watchable(instance: object, method: str) -> bool:
    """Whether the class of an object has a method that can be patched."""
    for cls in type(instance).__mro__:
        if method in cls.__dict__:
            return bool(cls.__flags__ & _HEAP_TYPE) and not cls.__flags__ & _IMMUTABLE_TYPE
    return False


_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


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
    for place, patch in list(_class_patches.items()):
        patch.undo()
        if not patch.installed:
            del _class_patches[place]
