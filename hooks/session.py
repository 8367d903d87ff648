"""What is open in this process: the recorders, and the backward that is running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from accumaudit.hooks.inputs import lasting
from accumaudit.hooks.loss import LossCall
from accumaudit.hooks.scaling import Scales
from accumaudit.hooks.shards import is_distributed
from accumaudit.hooks.window import Backward, Forward

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder
    from accumaudit.hooks.track import Track

log = logging.getLogger("accumaudit")


class Session:
    """The recorders of this process and the backward that they all see.

    Autograd may run hooks in threads of its own, so what is open belongs to the process; only the
    guard against counting a loss call twice belongs to a thread.
    """

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.backward: Backward | None = None
        self.stepping = 0
        """Steps of runtimes that run now: collectives in them are the runtime's own."""
        self._depth = 0
        self._scales = Scales()
        self._thread = threading.local()

    def fault(self, error: Exception) -> None:
        """Give a fault in a shared hook to every recorder."""
        for recorder in self.recorders:
            recorder.fault(error)

    def guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something that serves every recorder; what goes wrong goes no further."""
        try:
            action(*arguments)
        except Exception as error:
            self.fault(error)

    def each(self, action: Callable[[Recorder], None]) -> None:
        """Do something with every recorder; a fault of one is its own."""
        for recorder in list(self.recorders):
            recorder.guard(action, recorder)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a thread of the program's in which nothing attached is trained.

        Autograd's own threads are none of the program's: they work for whoever called backward.
        """
        here = threading.get_ident()
        for recorder in self.recorders:
            if recorder.thread == here:
                return False
        # Not current_thread(), which would enter it; the entry of one that is not the program's is a dummy.
        known = threading._active.get(here)  # type: ignore[attr-defined]  # it has no public name
        return known is not None and not isinstance(known, threading._DummyThread)

    # backward

    def backward_begins(self, roots: Any, gradients: Any) -> None:
        """A call of backward; one inside another (reentrant checkpointing) belongs to it."""
        self._depth += 1
        if self._depth == 1:
            self._open_backward()
            self._note_root(roots, gradients)
        elif self.backward is not None and self.backward.awaits_root:
            self.backward.awaits_root = False
            self._note_root(roots, gradients)

    def runtime_backward_begins(self) -> None:
        """A call of a runtime's that makes one backward, and does more when that has ended."""
        self._depth += 1
        if self._depth == 1:
            self._open_backward()
            if self.backward is not None:
                self.backward.awaits_root = True

    def backward_ends(self) -> None:
        """It has returned, or raised."""
        self._depth -= 1
        if self._depth == 0:
            self._close_backward()

    @property
    def in_backward(self) -> bool:
        """Whether a backward runs now."""
        self.settle()
        return self.backward is not None

    def stepped_inside(self, track: Track) -> None:
        """An optimizer steps while a backward runs: what it uses has been accumulated by then."""
        if self.backward is None and torch._C._current_graph_task_id() == -1:
            return
        backward = self.current_backward()
        if id(track) in backward.counted or not track.has_gradient:
            return
        if not track.fired:
            track.fired.append(track.probe.parameter)
        track.backward_ended(backward)
        backward.counted.add(id(track))

    def settle(self) -> None:
        """End a backward that was not seen to begin and has ended by an exception."""
        if self.backward is not None and self._depth == 0 and torch._C._current_graph_task_id() == -1:
            self._close_backward()

    def settle_unseen(self, track: Track) -> None:
        """Count a backward of which nothing but its gradients was seen, once it has ended."""
        if self.backward is None and torch._C._current_graph_task_id() == -1:
            track.backward_ended(Backward())

    def forget_backward(self) -> None:
        """What ran is a program in the making: gradients that arrived in it are none of the training's."""
        for recorder in self.recorders:
            for track in recorder.tracks:
                track.fired.clear()

    def _open_backward(self) -> None:
        for recorder in self.recorders:
            recorder.guard(recorder.backward_begins)
        self.backward = Backward()

    def _note_root(self, roots: Any, gradients: Any) -> None:
        try:
            if self.backward is not None:
                self.backward.root = _root_value(roots, gradients)
        except Exception as error:
            self.fault(error)

    def _close_backward(self) -> None:
        backward, self.backward = self.backward, None
        if backward is not None:
            for recorder in self.recorders:
                recorder.guard(recorder.backward_ended, backward)
            backward.release()

    def current_backward(self) -> Backward:
        """The running backward; one that was started past `torch.autograd.backward` is opened here."""
        if self.backward is None:
            self.each(lambda recorder: recorder.unseen_backward_begins())
            self.backward = Backward()
            torch.autograd.Variable._execution_engine.queue_callback(self._close_unseen_backward)
        return self.backward

    def _close_unseen_backward(self) -> None:
        # A second callback runs after those that were queued meanwhile, the wrapper's reduction among them.
        torch.autograd.Variable._execution_engine.queue_callback(self._close_backward)

    # forward

    def watch_use(self, forward: Forward, nodes: Iterable[Any]) -> None:
        """Note the nodes that a forward returned, to learn which backward goes through them."""
        use = _UsedHere(self, forward)
        for node in nodes:
            node.register_prehook(use)

    # scale

    def scale_of(self, scaler: Any) -> Tensor | None:
        """The loss scale now, as a copy that nobody changes."""
        return self._scales.of(scaler)

    def watch_scale(self, scaler: Any, outputs: Any) -> None:
        """Note what a gradient scaler has scaled, to learn which backward goes through it."""
        self.watch_scaled(self.scale_of(scaler), outputs)

    def watch_scaled(self, scale: Tensor | None, outputs: Any) -> None:
        """Note what was multiplied by this scale; each value of it is one tensor."""
        for output in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
            if isinstance(output, Tensor) and output.grad_fn is not None:
                output.grad_fn.register_prehook(_ScaledHere(self, scale))

    # loss

    def watch_loss(
        self, output: object, remember: Callable[..., LossCall | None], *args: Any, **kwargs: Any
    ) -> None:
        """Note a loss call's output, to learn its gradient when that arrives.

        Args:
            output: what the call returned.
            remember: makes a loss call of it and of the arguments that follow.
            args: of the call.
            kwargs: of the call.
        """
        if not isinstance(output, Tensor) or output.grad_fn is None or getattr(self._thread, "busy", False):
            return
        if is_distributed(output):
            return  # its value may have to be asked of other ranks
        self._thread.busy = True
        try:
            call = remember(output, *args, **kwargs)
            base = lasting(output)
            tensor = base if base is output or base.numel() == output.numel() else output
            if call is not None and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(_Arrival(self, call, tensor.output_nr))
        except Exception as error:
            self.fault(error)
        finally:
            self._thread.busy = False

    def loss_arrived(self, call: LossCall, gradient: Tensor | None) -> None:
        """The gradient at a loss call's output; whether it counts is seen when the backward has ended."""
        if gradient is None or self.is_foreign:
            return
        backward = self.backward or self.current_backward()
        arrived = call.arrived(gradient)
        arrived.factor_before = backward.factor
        backward.calls.append(arrived)


class _UsedHere:
    """The hook on a forward's output: the backward that runs went through it."""

    def __init__(self, session: Session, forward: Forward) -> None:
        self._session = session
        self._forward = forward

    def __call__(self, _gradients: object) -> None:
        try:
            if self._session.is_foreign:
                return
            backward = self._session.backward or self._session.current_backward()
            if self._forward.used_by is not backward:
                self._forward.used_by = backward
                backward.forwards.append(self._forward)
        except Exception as error:
            self._session.fault(error)


class _ScaledHere:
    """The hook on a scaled loss: the backward that runs went through it."""

    def __init__(self, session: Session, scale: Tensor | None) -> None:
        self._session = session
        self._scale = scale

    def __call__(self, _gradients: object) -> None:
        try:
            if not self._session.is_foreign:
                self._session.current_backward().scaled(self._scale)
        except Exception as error:
            self._session.fault(error)


class _Arrival:
    """The hook on a loss call's node; it dies with the graph."""

    def __init__(self, session: Session, call: LossCall, place: int) -> None:
        self._session = session
        self._call = call
        self._place = place

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        try:
            self._session.loss_arrived(self._call, gradients[self._place])
        except Exception as error:
            self._session.fault(error)


def _root_value(roots: Any, gradients: Any) -> Tensor | None:
    if gradients is None and type(roots) is Tensor and roots.dim() == 0:
        return roots.detach().clone()
    tensors = [roots] if isinstance(roots, Tensor) else list(roots)
    if not all(isinstance(tensor, Tensor) and not is_distributed(tensor) for tensor in tensors):
        return None  # edges of the graph, or values of which this rank has a part
    weights = (
        [gradients] * len(tensors) if gradients is None or isinstance(gradients, Tensor) else list(gradients)
    )
    total: Tensor | None = None
    with torch.no_grad():
        for tensor, weight in zip(tensors, weights, strict=False):
            value = tensor.detach()
            value = value.clone() if weight is None else (value * weight.detach()).sum()
            if value.numel() != 1:
                return None
            total = value.reshape(()) if total is None else total + value.reshape(())
    return total


session = Session()
"""The one of this process."""
