"""What stands in place of torch's functions while a recorder is attached; `patches` puts it there.

Each wrapper calls the original with the very same arguments and returns what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from accumaudit.hooks.handles import unreal
from accumaudit.hooks.loss import LossCall, call_site, remember
from accumaudit.hooks.session import session

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]


def _quiet() -> bool:
    return not session.recorders or unreal()


def wrap_backward(original: Function) -> Function:
    """`torch.autograd.backward`, which `Tensor.backward` calls."""

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if session.recorders and session.is_foreign:
            return original(tensors, grad_tensors, *args, **kwargs)
        if _quiet():
            try:
                return original(tensors, grad_tensors, *args, **kwargs)
            finally:
                session.forget_backward()
        if not isinstance(tensors, Tensor):
            tensors, grad_tensors = _kept(tensors), _kept(grad_tensors)
        session.backward_begins(tensors, grad_tensors)
        try:
            return original(tensors, grad_tensors, *args, **kwargs)
        finally:
            session.backward_ends()

    return backward


def _kept(values: Any) -> Any:
    """An iterator's values, so that looking at them does not use it up; all else as it is."""
    return tuple(values) if isinstance(values, Iterator) else values


def wrap_loss(original: Function) -> Function:
    """A cross entropy of `torch._C._nn`."""

    def loss(*args: Any, **kwargs: Any) -> Any:
        if _quiet():
            return original(*args, **kwargs)  # the names of variables here would stand in a traced graph
        output = original(*args, **kwargs)
        session.watch_loss(output, remember, *args, **kwargs)
        return output

    return loss


def wrap_linear_loss(original: Function) -> Function:
    """The chunked linear cross entropy, whose logits never exist."""

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


def wrap_norm_clip(original: Function) -> Function:
    """The second half of `clip_grad_norm_`, which changes the gradients."""

    def clip_grads_with_norm_(
        parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        session.each(lambda recorder: recorder.clip_begins(parameters))
        result = original(parameters, max_norm, total_norm, *args, **kwargs)
        session.each(lambda recorder: recorder.clip_ended("norm", parameters, max_norm, total_norm))
        return result

    return clip_grads_with_norm_


def wrap_value_clip(original: Function) -> Function:
    """`clip_grad_value_`."""

    def clip_grad_value_(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        session.each(lambda recorder: recorder.clip_begins(parameters))
        result = original(parameters, clip_value, *args, **kwargs)
        session.each(lambda recorder: recorder.clip_ended("value", parameters, clip_value, None))
        return result

    return clip_grad_value_


def wrap_scale(original: Function) -> Function:
    """`GradScaler.scale`: which backward goes through the scaled loss."""

    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(self, *args, **kwargs)
        if not _quiet() and self.is_enabled():
            session.guard(session.watch_scale, self, scaled)
        return scaled

    return scale


def wrap_unscale(original: Function) -> Function:
    """`GradScaler.unscale_`, called by the loop or by the scaler's own step."""

    def unscale_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _quiet() or not self.is_enabled():
            return original(self, *args, **kwargs)
        optimizer = _first(args, kwargs)
        session.each(lambda recorder: recorder.unscale_begins(self, optimizer))
        result = original(self, *args, **kwargs)
        session.each(lambda recorder: recorder.unscale_ended(optimizer))
        return result

    return unscale_


def wrap_scaler_step(original: Function) -> Function:
    """`GradScaler.step`, which calls the optimizer's step unless gradients overflowed."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _quiet() or not self.is_enabled():
            return original(self, *args, **kwargs)
        optimizer = _first(args, kwargs)
        session.each(lambda recorder: recorder.scaler_step_begins(self, optimizer))
        result = original(self, *args, **kwargs)
        session.each(lambda recorder: recorder.scaler_step_ended(optimizer))
        return result

    return step


def wrap_scaler_update(original: Function) -> Function:
    """`GradScaler.update`: one serves every optimizer that the scaler stepped."""

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not _quiet() and self.is_enabled():
            session.each(lambda recorder: recorder.scaler_updated(self))
        return result

    return update


def outermost(wrap: Wrap) -> Wrap:
    """A wrapper that hears a call once where a subclass's method calls that of its parent, also patched."""

    def wrapped(original: Function) -> Function:
        heard = wrap(original)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            call = (id(self), original.__name__)
            if call in _running:
                return original(self, *args, **kwargs)
            _running.add(call)
            try:
                return heard(self, *args, **kwargs)
            finally:
                _running.discard(call)

        return method

    return wrapped


_running: set[tuple[int, str]] = set()
"""Methods of scalers that run now."""


def wrap_average(original: Function) -> Function:
    """`AveragedModel.update_parameters`."""

    def update_parameters(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not _quiet():
            model = _first(args, kwargs)
            session.each(lambda recorder: recorder.model_averaged(self, model))
        return result

    return update_parameters


def wrap_collective(original: Function) -> Function:
    """A collective of torch.distributed that changes its first argument: a tensor, or a list of them."""

    def collective(*args: Any, **kwargs: Any) -> Any:
        # Those inside a backward are the wrapper's, those inside a runtime's step its own.
        if _quiet() or session.backward is not None or session.stepping:
            return original(*args, **kwargs)
        given = _first(args, kwargs)
        tensors = list(given) if isinstance(given, (list, tuple)) else [given]
        session.each(lambda recorder: recorder.collective_begins())
        work = original(*args, **kwargs)
        session.each(lambda recorder: recorder.collective_ended(tensors, finished=work is None))
        return work

    return collective


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)
