"""Lightning, under both of its names: `Trainer(callbacks=[AccumauditCallback()])`.

The Trainer has the last micro-step of a window run inside the optimizer's step, as its closure, and clears
the gradients after the first forward of the next one. What a micro-step is, it tells its callbacks: the
batch when it begins, the loss when its backward is about to.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from accumaudit.hooks.attaching import attach_runtime
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.frames import site_outside
from accumaudit.hooks.framework import Framework
from accumaudit.hooks.options import Options
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.scaling import torch_scaler
from accumaudit.hooks.session import session
from accumaudit.hooks.window import Forward
from accumaudit.hooks.wrappers import Function

log = logging.getLogger("accumaudit")

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
"""The names of one and the same library; the Trainer of one takes callbacks of its own alone."""

ACCUMULATION_CHANGES: Final = "GradientAccumulationScheduler"
"""Lightning's callback with which the number of updates cannot be told beforehand."""

ASKED: Final = {
    "accumulate_grad_batches": "accumulation_steps",
    "estimated_stepping_batches": "planned_updates",
    "gradient_clip_val": "clipping limits",
    "is_last_batch": "ends of the data",
    "log_every_n_steps": "metrics",
    "lr_scheduler_configs": "schedules",
    "precision_plugin": "scalers of a class of their own",
}
"""What is asked of a trainer, and what goes without it."""

SET_BY_TRAINERS: Final = ("log", "log_dict")
"""What Lightning sets on every callback: methods of the module that it trains."""

STATE: Final = "accumaudit"
"""The key of the counts in a checkpoint."""


class AccumauditCallback:
    """Records every update that a Trainer makes, and adds `accumaudit/...` to what it logs.

    An instance is a Callback of each Lightning package that is imported when it is made.

    Args:
        log_dir: the run's folder; `accumaudit` in the trainer's default_root_dir where it is not given.
        options: keyword arguments of `accumaudit.attach` for what the trainer does not tell.

    Raises:
        TypeError: an option that there is none of.
        ValueError: a number or a word that cannot be.
        ModuleNotFoundError: neither lightning nor pytorch_lightning is installed.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> AccumauditCallback:
        """An instance of a class that has Lightning's own beside it."""
        return object.__new__(_with_bases(cls, *_callback_classes()))

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        if "dataloader" in options:
            raise TypeError("accumaudit: the trainer tells where its data begins; give no dataloader")
        if "labels" in options:
            raise TypeError(
                "accumaudit: a callback sees no model's output; give no labels, and call "
                "audit.observe_loss(loss, valid_tokens=...) of the callback in training_step"
            )
        Options(log_dir=log_dir or "", **options).check()
        self._log_dir = log_dir
        self._options = options
        self._audit = Audit(None)
        self._batch: object = None
        self._forward: Forward | None = None
        """The last one of this batch."""
        self._losses: set[object] = set()
        """Where backward was called on what came of it."""
        self._step = 0
        """The trainer's count then."""
        self._resumed: Mapping[str, Any] | None = None
        self._logged = 0

    def __reduce__(self) -> tuple[Callable[..., AccumauditCallback], tuple[Any, ...]]:
        """A copy, in this process or in another, records nothing by itself; a class made of this one may
        be made with other arguments, and have more to keep.
        """
        not_kept = {*vars(AccumauditCallback("")), *SET_BY_TRAINERS}
        more = {name: value for name, value in vars(self).items() if name not in not_kept}
        return _copied, (type(self).__bases__[0], self._log_dir, self._options, more)

    @property
    def audit(self) -> Audit:
        """The audit of the training that runs now; it does nothing where there is none."""
        return self._audit

    # life

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach: the optimizers are made and restored, and the checks before training are done."""
        if self._audit.recorder is not None:
            log.warning("accumaudit: this callback was passed twice; the trainer calls it once")
            trainer.callbacks = list(dict.fromkeys(trainer.callbacks))
            return
        try:
            self._begin(trainer, pl_module)
        except Exception as error:
            log.warning("accumaudit: this training is not recorded: %s: %s", type(error).__name__, error)
            log.debug("accumaudit: what kept it from being recorded", exc_info=error)

    def _begin(self, trainer: Any, module: Any) -> None:
        if os.environ.get("ACCUMAUDIT") == "0":
            return
        optimizers = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, Optimizer)]
        if not optimizers:
            raise TypeError("the trainer has no optimizer of torch; that of DeepSpeed is its engine's")
        attached = {id(track.optimizer) for recorder in session.recorders for track in recorder.tracks}
        if any(id(optimizer) in attached for optimizer in optimizers):
            log.warning("accumaudit: these optimizers are recorded already; this callback does nothing")
            return
        package = importlib.import_module(_package_of(_trainer_class(trainer)))
        contract = Contract(
            runtime="lightning",
            versions={package.__name__: package.__version__},
            tells_forwards=True,
            closure_is_window=True,
        )
        framework = Framework(package.__name__, package.__version__)
        told = {name for name, loses in ASKED.items() if framework.has(trainer, name, loses=loses)}
        folder = Path(trainer.default_root_dir, "accumaudit") if self._log_dir is None else self._log_dir
        self._audit = attach_runtime(
            contract,
            trainer.strategy.model,
            optimizers,
            [_scheduler_of(optimizer, trainer) for optimizer in optimizers],
            torch_scaler(getattr(trainer, "precision_plugin", None)),
            Options(**{"log_dir": folder, **_declared(trainer, module), **self._options}),
        )
        self._tell(self._continue, trainer, framework, told)

    def _continue(self, recorder: Recorder, trainer: Any, framework: Framework, told: set[str]) -> None:
        """Tell what the trainer knows at the start, and go on counting where a checkpoint left off."""
        framework.patch(_trainer_class(trainer), "save_checkpoint", _wrap_save, loses="checkpoints")
        framework.tell(recorder)
        if "estimated_stepping_batches" in told and (planned := _planned_updates(trainer)) is not None:
            recorder.declare({"planned_updates": planned})
        state, self._resumed = self._resumed, None
        if state and len(state.get("optimizers", ())) == len(recorder.tracks):
            recorder.mark("resume", name=Path(trainer.ckpt_path or "").name)
            recorder.load_state_dict(state)
        self._logged = trainer.global_step

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training has failed, or was interrupted."""
        self._close()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The training is over, its last checkpoint saved."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Whatever ended it, it is over."""
        self._close()

    def _close(self) -> None:
        self._batch = self._forward = None
        self._losses.clear()
        self._audit.close()

    def _tell(self, action: Callable[..., None], *arguments: Any) -> None:
        """Tell the recorder, where there is one; what goes wrong stays with it."""
        if (recorder := self._audit.recorder) is not None:
            recorder.guard(action, recorder, *arguments)

    # what the trainer tells

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The data begins."""
        self._tell(Recorder.epoch_begins, trainer.current_epoch + 1)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A micro-step begins: how many there are to be, or the scheduler, may be others than before."""
        if (recorder := self._audit.recorder) is not None and recorder.stopper is not None:
            recorder.stopper.micro_step_begins()
        self._batch, self._forward = batch, None
        self._tell(_follow_scheduler, trainer)
        if pl_module.automatic_optimization and "accumulation_steps" not in self._options:
            self._tell(_follow_accumulation, getattr(trainer, "accumulate_grad_batches", None))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """A forward has ended, and gradients that are to be cleared for it have been."""
        self._tell(self._tell_forward, trainer, loss)

    def _tell_forward(self, recorder: Recorder, trainer: Any, loss: Tensor) -> None:
        """In manual optimization several losses may come of one forward, each with a backward of its own.

        The forward itself is not seen: it is taken for the same until an optimizer steps, or the same line
        calls backward again.
        """
        site = site_outside(_package_of(_trainer_class(trainer)))
        if self._forward is not None and self._step == trainer.global_step and site not in self._losses:
            recorder.loss_told(self._forward, loss)
        else:
            self._forward, self._step = recorder.forward_told(self._batch, loss), trainer.global_step
            self._losses.clear()
        self._losses.add(site)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A micro-step has ended, with the update and the scheduler's step where they belonged to it."""
        self._batch = self._forward = None
        self._tell(Recorder.report, {"reported_global_step": trainer.global_step})
        self._tell(self._log, trainer)

    def _log(self, _recorder: Recorder, trainer: Any) -> None:
        every, step = getattr(trainer, "log_every_n_steps", 0), trainer.global_step
        if step == self._logged or not every or step % every:
            return
        self._logged = step
        if metrics := self._audit.metrics():
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The epoch is over; where it was not cut short, so is the data."""
        if getattr(trainer, "is_last_batch", False):
            self._tell(Recorder.end_of_data)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation; the one before training comes before the callback attaches."""
        self._tell(lambda recorder: recorder.mark("eval"))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The counts go into the checkpoint, as plain numbers that nobody needs."""
        self._tell(lambda recorder: checkpoint.update({STATE: recorder.state_dict()}))

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """They are taken up when the training starts."""
        self._resumed = checkpoint.get(STATE)


def _copied(
    cls: type[AccumauditCallback], log_dir: Any, options: dict[str, Any], more: dict[str, Any]
) -> AccumauditCallback:
    made = cls.__new__(cls)
    AccumauditCallback.__init__(made, log_dir, **options)
    vars(made).update(more)
    return made


def _package_of(cls: type) -> str:
    """The first part of its module's name."""
    return cls.__module__.partition(".")[0]


def _trainer_class(trainer: object) -> type:
    """Lightning's own, of which the user's may be made."""
    own = {package.partition(".")[0] for package in PACKAGES}
    return next(cls for cls in type(trainer).__mro__ if _package_of(cls) in own)


def _callback_classes() -> tuple[type, ...]:
    """Lightning's Callback, of each package that is imported, else of the first that can be."""
    packages = [name for name in PACKAGES if name in sys.modules]
    for name in PACKAGES if not packages else ():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        packages.append(name)
        break
    if not packages:
        raise ModuleNotFoundError("accumaudit: AccumauditCallback needs lightning: pip install lightning")
    return tuple(sys.modules[name].Callback for name in packages)


_made: dict[tuple[type, ...], type] = {}


def _with_bases(*bases: type) -> type:
    """One class for the same ones: Lightning compares the types of callbacks."""
    if bases not in _made:
        first = bases[0]
        own = {"__module__": first.__module__, "__doc__": first.__doc__}
        _made[bases] = type(first.__name__, bases, own)
    return _made[bases]


def _scheduler_of(optimizer: Optimizer, trainer: Any) -> Any:
    """None too where several change the rate together: what one says then is no fault."""
    schedulers = [config.scheduler for config in getattr(trainer, "lr_scheduler_configs", ())]
    own = [each for each in schedulers if getattr(each, "optimizer", None) is optimizer]
    return own[0] if len(own) == 1 else None


def _declared(trainer: Any, module: Any) -> dict[str, Any]:
    """What the trainer's own arguments declare."""
    declared: dict[str, Any] = {}
    if module.automatic_optimization:
        declared["accumulation_steps"] = getattr(trainer, "accumulate_grad_batches", None)
    limit = getattr(trainer, "gradient_clip_val", None)
    if limit and getattr(trainer, "gradient_clip_algorithm", None) in (None, "norm"):
        declared["max_grad_norm"] = float(limit)
    return declared


def _planned_updates(trainer: Any) -> int | None:
    """The number of updates that the trainer expects to make; None where it cannot know."""
    names = {cls.__name__ for callback in trainer.callbacks for cls in type(callback).__mro__}
    if not trainer.lightning_module.automatic_optimization or ACCUMULATION_CHANGES in names:
        return None
    if trainer.train_dataloader is None:  # it would load the data
        return None
    planned = trainer.estimated_stepping_batches
    if not trainer.ckpt_path:
        planned -= trainer.global_step  # a second fit counts on, and its optimizers are new
    return int(planned) if 0 < planned < float("inf") else None


def _follow_scheduler(recorder: Recorder, trainer: Any) -> None:
    """An averaging of weights puts a scheduler of its own in the place of the first."""
    track = recorder.tracks[0]
    scheduler = _scheduler_of(track.optimizer, trainer)
    if scheduler is not None and scheduler is not track.schedule.scheduler:
        recorder.follow_scheduler(scheduler)


def _follow_accumulation(recorder: Recorder, steps: int) -> None:
    if steps != recorder.accumulation_steps:
        recorder.declare({"accumulation_steps": steps})


def _wrap_save(original: Function) -> Function:
    """`Trainer.save_checkpoint`, which callbacks call too."""

    def save_checkpoint(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, filepath, *args, **kwargs)
        for callback in self.callbacks:
            if isinstance(callback, AccumauditCallback):
                callback.audit.mark("checkpoint", name=Path(filepath).name)
        return result

    return save_checkpoint
