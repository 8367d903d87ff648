"""transformers.Trainer, and what is made of it, such as TRL's: `callbacks=[AccumauditCallback()]`.

A callback is told neither the trainer nor what the trainer divides its loss by. The trainer is found on
the stack when its training begins: it is there in every version, whatever its loop is called and whatever
a subclass overrides. From then on a few of its methods are watched, until the training ends or raises.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback
from transformers.trainer_pt_utils import LabelSmoother

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.deepspeed_engine import engine_contract
from accumaudit.hooks.framework import Framework
from accumaudit.hooks.modules import uncompiled
from accumaudit.hooks.optimizers import optimizer_parameters, state_step
from accumaudit.hooks.options import Options
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.reducers import reducer_of

log = logging.getLogger("accumaudit")

PACKAGES: Final = ("transformers", "accelerate")
LABELS: Final = "labels"
"""The argument by which models of transformers take labels."""
DIVISOR: Final = "num_items_in_batch"
"""The one by which they are told what to divide the sum of their losses by."""


COUNTING: Final = ("True", "all", "non_padding")
"""Values of include_num_input_tokens_seen with which input tokens are counted."""
FINE_TUNING: Final = "trl.trainer.sft_trainer.SFTTrainer"
LOG_PROBABILITIES: Final = ("log_probs", "label_mask")
"""What TRL makes a model return in place of logits."""


class AccumauditCallback(TrainerCallback):
    """Records every update that a Trainer makes, and adds `accumaudit/...` to what it logs.

    Args:
        log_dir: the run's folder; `accumaudit` in the trainer's output_dir where none is given.
        options: keyword arguments of `accumaudit.attach`, for what the trainer does not tell.

    Raises:
        TypeError: an option that there is none of.
        ValueError: a number or a word that cannot be.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        if "dataloader" in options:
            raise TypeError("accumaudit: give no dataloader: the trainer tells of its own data")
        Options(log_dir=log_dir or "", **options).check()
        self._log_dir = log_dir
        self._options = options
        self._training: Training | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a training of its own to wait for."""
        return self.__dict__ | {"_training": None}

    @property
    def audit(self) -> Audit | None:
        """The audit of the training that runs now."""
        return None if self._training is None else self._training.audit

    def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """Attach to what the trainer is about to train."""
        try:
            self._begin()
        except Exception as error:
            log.warning("accumaudit: this training is not recorded: %s: %s", type(error).__name__, error)
            log.debug("accumaudit: what kept it from being recorded", exc_info=error)

    def _begin(self) -> None:
        on_the_stack = _trainers_on_the_stack()
        trainer = next((one for one in on_the_stack if self in one.callback_handler.callbacks), None)
        if trainer is None:
            raise RuntimeError("no Trainer has this callback and trains now")
        if _trainings:
            running = list(_trainers_on_the_stack())
            for training in tuple(_trainings):
                if training.was_left(running, trainer):
                    training.end(finished=False)
        if _training_of(trainer) is not None:
            log.warning("accumaudit: this Trainer has two AccumauditCallbacks: the first records alone")
            return
        folder = self._log_dir or Path(trainer.args.output_dir or "", "accumaudit")
        self._training = Training.begin(trainer, folder, self._options)

    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Take every hook away, and print the verdict."""
        training, self._training = self._training, None
        if training is not None:
            training.end(finished=True)

    def on_epoch_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """Count the epochs."""
        self._tell(Training.epoch_begins)

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Mark the end of the epoch, and of the data unless they were left early."""
        self._tell(Training.epoch_ends)

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Note what the trainer counts."""
        self._tell(Training.stepped)

    def on_log(self, *_args: Any, logs: Any = None, **_kwargs: Any) -> None:
        """Note the loss that the trainer logs."""
        self._tell(Training.logged, logs or {})

    def on_evaluate(self, *_args: Any, **_kwargs: Any) -> None:
        """Mark an evaluation."""
        self._tell(Training.mark, "eval")

    def on_save(self, *_args: Any, **_kwargs: Any) -> None:
        """Mark a checkpoint."""
        self._tell(Training.saved)

    def _tell(self, event: Callable[..., None], *arguments: Any) -> None:
        if self._training is not None:
            self._training.guard(event, self._training, *arguments)


class Training:
    """One call of a trainer's `train`, and its audit."""

    def __init__(self, trainer: Trainer, audit: Audit) -> None:
        self.audit = audit
        self._trainer = weakref.ref(trainer)
        self._state = trainer.state
        """Each call of `train` makes a new one."""
        self._told: dict[str, int] = {}
        """Where each event was last told, in micro-steps."""
        self._logged_step = trainer.state.global_step
        self._counts_inputs = str(getattr(trainer.args, "include_num_input_tokens_seen", "no")) in COUNTING
        self._divides_by_all = _divides_by_all(trainer)
        self._divisor: Tensor | float | None = None
        """What the trainer divides the losses of the open window by."""

    @classmethod
    def begin(
        cls, trainer: Trainer, folder: str | os.PathLike[str], options: dict[str, Any]
    ) -> Training | None:
        """Attach to what a trainer is about to train; None where nothing is to be recorded."""
        contract, optimizer, scaler = (
            _contract(trainer),
            _innermost(trainer.optimizer),
            trainer.accelerator.scaler,
        )
        model: Any = trainer.model_wrapped
        limit = trainer.args.max_grad_norm
        if getattr(trainer, "is_deepspeed_enabled", False):
            engine, scaler = model, None  # it scales by itself
            contract, reducer = engine_contract(engine, around=contract)
            model, optimizer, limit = engine.module, engine.basic_optimizer, reducer.limit
        told = {
            "accumulation_steps": trainer.args.gradient_accumulation_steps,
            "max_grad_norm": limit or None,
            "labels": LABELS if _hides_its_loss(trainer) else None,
        }
        audit = attach_runtime(
            contract,
            model,
            optimizer,
            trainer.lr_scheduler,
            scaler,
            Options(log_dir=folder, **(told | {k: v for k, v in options.items() if v is not None})),
        )
        if audit.recorder is None:
            return None
        training = cls(trainer, audit)
        _trainings.append(training)
        training.guard(_watch, trainer, audit.recorder)
        training.guard(training._declare, trainer)
        return training

    def guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something while it is recorded; what goes wrong goes no further."""
        if (recorder := self.audit.recorder) is not None:
            recorder.guard(action, *arguments)

    @property
    def _recorder(self) -> Recorder:
        """That of the audit as long as it is open: the callback may outlive the model."""
        recorder = self.audit.recorder
        assert recorder is not None
        return recorder

    def _declare(self, trainer: Trainer) -> None:
        """What the trainer plans, and where it goes on from."""
        state, scheduler, track = self._state, trainer.lr_scheduler, self._recorder.tracks[0]
        steps = state_step(track.optimizer, optimizer_parameters(track.optimizer))
        # `train` called anew counts from 0, and the optimizer that it keeps counts on.
        before = (steps or 0) if state.global_step == 0 else 0
        plan = {"planned_updates": before + state.max_steps}
        if getattr(trainer, "_created_lr_scheduler", False):
            plan["warmup_updates"] = trainer.args.get_warmup_steps(state.max_steps)
            if set(getattr(scheduler, "base_lrs", ())) == {trainer.args.learning_rate}:
                plan["peak_learning_rate"] = trainer.args.learning_rate
        if state.global_step:
            if steps is None:
                done = state.global_step
                track.continue_from(done, done * trainer.args.gradient_accumulation_steps)
                plan["resumed_from_update"] = done
            self.mark("resume")
        self.audit.declare(**plan)
        self._recorder.epoch = int((state.epoch or 0.0) + 1e-6) or None

    def was_left(self, trainers: list[Trainer], trainer: Trainer) -> bool:
        """Whether its call of `train` has been left by an exception, now that a trainer begins another."""
        if self.is_of(trainer):
            return self._state is not trainer.state
        return not any(self.is_of(one) for one in trainers)

    def is_of(self, trainer: object) -> bool:
        """Whether it is this trainer's."""
        return self._trainer() is trainer

    def smooths_by(self, smoother: object) -> bool:
        """Whether this smooths its labels."""
        return getattr(self._trainer(), "label_smoother", None) is smoother

    def end(self, *, finished: bool) -> None:
        """Take every hook away."""
        if self in _trainings:
            _trainings.remove(self)
        self.audit.__exit__(None if finished else BaseException, None, None)

    # what the trainer tells

    def _is_new(self, event: str) -> bool:
        """Whether an event is told here for the first time: a callback passed twice hears each twice."""
        here = self._recorder.tracks[0].micro_steps
        before, self._told[event] = self._told.get(event), here
        return before != here

    def epoch_begins(self) -> None:
        """A pass over the data begins."""
        if self._is_new("epoch begins"):
            self._recorder.epoch = (self._recorder.epoch or 0) + 1

    def epoch_ends(self) -> None:
        """It ends, or is left."""
        if not self._is_new("epoch ends"):
            return
        control, epochs = getattr(self._trainer(), "control", None), self._state.epoch or 0.0
        left = control is None or control.should_training_stop or control.should_epoch_stop
        if not left or abs(epochs - round(epochs)) < 1e-6:
            self._recorder.declared_mark("end_of_data", None)
        self._recorder.mark("epoch_end")

    def mark(self, kind: str, name: str | None = None) -> None:
        """Something that belongs between updates."""
        if self._is_new(kind):
            self._recorder.declared_mark(kind, name)

    def saved(self) -> None:
        """It has written a checkpoint, whose folder bears its own count of steps."""
        self.mark("checkpoint", f"checkpoint-{self._state.global_step}")

    def window_begins(self, divisor: Any) -> None:
        """The data of a window have been read, and what their losses are to be divided by is known."""
        single = not isinstance(divisor, Tensor) or divisor.numel() == 1
        self._divisor = divisor if single and self._divides_by_all else None

    def stepped(self) -> None:
        """The optimizer was asked to step, and the trainer has counted it."""
        self.audit.report(
            global_step=self._state.global_step,
            global_valid_tokens=self._divisor,
            cumulative_train_tokens=self._state.num_input_tokens_seen if self._counts_inputs else None,
        )

    def logged(self, logs: dict[str, Any]) -> None:
        """The trainer logs; a loss is that of the updates since it did so last."""
        if "loss" not in logs:
            return
        if self._state.global_step - self._logged_step == 1:
            self.audit.report(loss=logs["loss"])
        self._logged_step = self._state.global_step

    def smoothed(self, loss: Any, arguments: dict[str, Any]) -> None:
        """A loss over smoothed labels, which no cross entropy of torch has made."""
        if not isinstance(loss, Tensor) or loss.grad_fn is None:
            return
        labels, divisor = arguments["labels"], arguments.get(DIVISOR)
        if arguments.get("shift_labels"):
            labels = labels[..., 1:]
        valid = torch.count_nonzero(labels != arguments["self"].ignore_index)
        self._recorder.observe_loss(loss, valid, "mean" if divisor is None else "sum", divisor)


_trainings: list[Training] = []
"""Those that are recorded now; several, where a trainer trains inside another's training."""


def _training_of(trainer: object) -> Training | None:
    return next((training for training in _trainings if training.is_of(trainer)), None)


def _trainers_on_the_stack() -> Iterator[Trainer]:
    """The trainers whose methods run now, the innermost first.

    Go no further than need be: before Python 3.13 a frame that is asked for its variables keeps what they
    are now until it ends, and so the model of a trainer that its caller has long deleted.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if isinstance(owner, Trainer):
            yield owner
        frame = frame.f_back


def _innermost(optimizer: Any) -> Any:
    """The optimizer that is inside accelerate's."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _divides_by_all(trainer: Trainer) -> bool:
    """Whether the tokens that it counts are those of all ranks, and its loss is not a mean of its own."""
    together = trainer.args.world_size == 1 or getattr(trainer.args, "average_tokens_across_devices", False)
    return bool(together) and getattr(trainer, "loss_is_scaled_for_ga", None) is not False


def _hides_its_loss(trainer: Trainer) -> bool:
    """Whether the model's loss is computed where no cross entropy of torch is heard."""
    compiled = uncompiled(trainer.model_wrapped) is not trainer.model_wrapped
    return compiled or any(
        getattr(trainer.args, name, False) for name in ("use_liger_kernel", "torch_compile")
    )


def _contract(trainer: Trainer) -> Contract:
    package = type(trainer).__module__.partition(".")[0]
    shifts = getattr(trainer, "_loss_shifts_labels", None)
    if shifts is None:  # before 5.0
        shifts = "CausalLM" in type(reducer_of(trainer.model_wrapped).inner).__name__
    return Contract(
        runtime="transformers",
        versions={name: version for name in (*PACKAGES, package) if (version := _version(name)) is not None},
        loss_divisor=DIVISOR,
        shifts_labels=bool(shifts),
        log_probabilities=LOG_PROBABILITIES if _sums_log_probabilities(trainer) else None,
    )


def _sums_log_probabilities(trainer: Trainer) -> bool:
    """TRL's fine-tuning: its losses over preferences and policies weigh tokens by other things."""
    return any(f"{cls.__module__}.{cls.__name__}" == FINE_TUNING for cls in type(trainer).__mro__)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# the methods that are watched


def _watch(trainer: Trainer, recorder: Recorder) -> None:
    framework = Framework("transformers", _version("transformers") or "")
    cls = type(trainer)
    loop = "_run_epoch" if hasattr(cls, "_run_epoch") else "training_step"
    framework.patch(cls, loop, _wrap_loop, loses="the end by an exception")
    for outside in ("_evaluate", "_finalize_training"):
        if hasattr(cls, outside):
            framework.patch(cls, outside, _wrap_loop, loses="the end by an exception")
    framework.patch(cls, "get_batch_samples", _wrap_reading, loses="the tokens that it counts")
    framework.patch(cls, "log", _wrap_log, loses="metrics in its logs")
    if getattr(trainer, "label_smoother", None) is not None:
        framework.patch(LabelSmoother, "__call__", _wrap_smoother, loses="the loss over smoothed labels")
    framework.tell(recorder)


def _wrap_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Part of the training, which an exception may leave: `on_train_end` is not called then."""

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            if (training := _training_of(self)) is not None:
                training.end(finished=False)
            raise

    return train


def _wrap_reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Trainer.get_batch_samples`, which reads a window's data and counts its tokens over all ranks."""

    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        samples, divisor = original(self, *args, **kwargs)
        if (training := _training_of(self)) is not None:
            training.guard(training.window_begins, divisor)
        return samples, divisor

    return get_batch_samples


def _wrap_log(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Trainer.log`, which keeps the logs and gives them to every callback."""

    def log(self: Any, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if (training := _training_of(self)) is not None and "loss" in logs:
            training.guard(lambda: logs.update(training.audit.metrics()))
        return original(self, logs, *args, **kwargs)

    return log


def _wrap_smoother(original: Callable[..., Any]) -> Callable[..., Any]:
    """`LabelSmoother.__call__`."""
    signature = inspect.signature(original)

    def smooth(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        training = next((one for one in _trainings if one.smooths_by(self)), None)
        if training is not None:
            training.guard(lambda: training.smoothed(loss, signature.bind(self, *args, **kwargs).arguments))
        return loss

    return smooth
