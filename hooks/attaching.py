"""`attach`: checks what it is given, before training, and sets the hooks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from accumaudit.hooks import patches
from accumaudit.hooks.audit import Audit
from accumaudit.hooks.compiling import leave_hooks_alone
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.launch import global_rank, launch_token, run_record
from accumaudit.hooks.model_loss import LossSource
from accumaudit.hooks.options import Options
from accumaudit.hooks.recorder import Recorder
from accumaudit.hooks.reducers import Reducer, reducer_of
from accumaudit.hooks.session import session
from accumaudit.hooks.settle import Settler
from accumaudit.hooks.stopping import Stopper
from accumaudit.hooks.summary import Summary
from accumaudit.hooks.watching import Watcher
from accumaudit.ledger.writer import LedgerWriter, ledger_path

LAZY: Final = frozenset({"lazy", "meta", "xla"})
"""Devices on which a value that is looked at would have to be computed first."""


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: Any = None,
    scaler: Any = None,
    *,
    log_dir: str | os.PathLike[str],
    accumulation_steps: int | None = None,
    max_grad_norm: float | None = None,
    dataloader: Any = None,
    gradient_divisor: float | None = None,
    layout: Any = None,
    loss_coefficients: Mapping[str, float] | None = None,
    loss_unit: str = "token",
    labels: str | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    ranks: Literal["all", "first"] | Sequence[int] = "all",
    every: int = 1,
    microbatch_detail: Literal["full", "sums"] = "full",
    summary: bool = True,
    watch: bool = False,
    stop_on: Literal["error", "warning", "note"] | None = None,
) -> Audit:
    """Record every optimizer update of a training loop.

    Args:
        model: the module whose forward the loop calls; the DDP or FSDP wrapper where there is one.
        optimizer: the optimizer, or a list of them.
        scheduler: the learning rate scheduler, or a list as long as that of the optimizers.
        scaler: the gradient scaler; one of torch's own is seen without being given too.
        log_dir: the run's folder; each rank writes one file in it.
        accumulation_steps: micro-steps of a full window.
        max_grad_norm: limit of the gradient norm that the loop clips to.
        dataloader: the iterable over the training data; its iterations are epochs, but for those without
            gradients, which evaluate.
        gradient_divisor: what the sum of the ranks' gradients is divided by, where no wrapper tells.
        layout: this rank's place among tensor, context, sequence, pipeline and data ranks: a DeviceMesh with
            named dimensions, or {name: (rank, size)}; left out, all ranks have different data.
        loss_coefficients: deliberate factor of each loss term, by name; the first term is "main".
        loss_unit: token or sample: what the loss is averaged over, and the word that messages use.
        labels: name of the model's argument that holds integer labels, where the model returns its loss.
        ignore_index: label that does not count, for `labels`.
        reduction: mean or sum, of the loss that the model returns.
        ranks: the ranks that write: "all", "first", or a list; the others record nothing and pay nothing.
        every: attempts to one record; scalers' skips are counted in between all the same.
        microbatch_detail: "full", or "sums" of each window in place of one entry per micro-step.
        summary: say one line after three windows, and the verdict at the end.
        watch: judge the run while it is recorded, in a process of its own that rank 0 starts; each finding is
            said once on rank 0's stderr, and `audit.findings()` has those so far.
        stop_on: watch, and once there is a finding of this severity or of a higher one, raise FaultFoundError
            on all ranks alike, before the first forward of a window (of a pipeline: as a step returns). The
            ranks agree by a reduction of one number over the default group at each attempt: all must make
            equally many.

    Returns:
        The audit; close it, or use it in a with-statement.

    Raises:
        ValueError: no trainable parameter, an optimizer of other parameters, an optimizer that is attached
            already, lists of unequal length, a number that cannot be, a layout of other ranks, or ranks that
            are to stop together and have no process group.
        TypeError: a scheduler, scaler or layout that is none, or data whose iteration cannot be watched.
        OSError: log_dir cannot be written.
    """
    options = Options(
        log_dir=log_dir,
        accumulation_steps=accumulation_steps,
        max_grad_norm=max_grad_norm,
        dataloader=dataloader,
        gradient_divisor=gradient_divisor,
        layout=layout,
        loss_coefficients=loss_coefficients,
        loss_unit=loss_unit,
        labels=labels,
        ignore_index=ignore_index,
        reduction=reduction,
        ranks=ranks,
        every=every,
        microbatch_detail=microbatch_detail,
        summary=summary,
        watch=watch,
        stop_on=stop_on,
    )
    return attach_runtime(Contract(), model, optimizer, scheduler, scaler, options)


def attach_runtime(
    contract: Contract,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: Any,
    scaler: Any,
    options: Options,
) -> Audit:
    """Record the updates of a training that a runtime makes; arguments and errors are those of `attach`."""
    if os.environ.get("ACCUMAUDIT") == "0":
        return Audit(None)
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler] * len(optimizers)
    reducer = contract.reducer or reducer_of(model)
    _check_model(model, optimizers, reducer)
    _check_schedulers(schedulers, len(optimizers))
    _check_scaler(scaler)
    options.check()
    run = Path(options.log_dir)
    rank, world_size = global_rank()
    writing = options.writing_ranks(world_size)
    _check_group(options, world_size)
    declared = options.declared(writing, world_size)
    launch = launch_token(run, world_size)
    if writing is not None and rank not in writing:
        return Audit(None)
    head = run_record(
        contract,
        reducer,
        optimizers,
        schedulers[0],
        launch=launch,
        rank=rank,
        world_size=world_size,
        declared=declared,
    )
    coefficients = dict(options.loss_coefficients or {})
    recorder = Recorder(
        contract,
        reducer,
        options,
        model,
        optimizers,
        schedulers,
        scaler=scaler,
        several_ranks=world_size > 1,
        pipelined=head.get("pipeline_size", 1) > 1,
        settler=Settler(launch, rank, coefficients, head["gradient_divisor"], options.microbatch_detail),
        loss_source=_loss_source(contract, reducer, options),
    )
    recorder.writer = _open_ledger(ledger_path(run, rank, launch), head)
    if (lazy := _lazy_devices(recorder)) is not None:
        return _without_hooks(recorder, lazy)
    watcher = Watcher(run) if options.watches and rank == 0 else None
    if options.stop_on is not None:
        recorder.stopper = Stopper(
            options.stop_on, watcher, several_ranks=world_size > 1, pipelined=recorder.pipelined
        )
    audit = Audit(recorder, Summary(run, recorder) if options.summary and rank == 0 else None, watcher)
    _start(recorder, audit)
    _tell_unknown_layout(recorder, head, world_size)
    return audit


def _tell_unknown_layout(recorder: Recorder, head: Mapping[str, Any], world_size: int) -> None:
    if head["data_parallel_size"] is None:
        reduced = head["shard_size"] * head["replica_size"]
        recorder.not_recorded(
            f"gradients are reduced over {reduced} of {world_size} ranks, and what the others do is not "
            "known: give layout, or ranks are not compared and no weights judged"
        )


def _loss_source(contract: Contract, reducer: Reducer, options: Options) -> LossSource:
    return LossSource(
        reducer.inner,
        options.labels,
        options.ignore_index,
        options.reduction,
        divisor=contract.loss_divisor,
        shifts_labels=contract.shifts_labels,
        log_probabilities=contract.log_probabilities,
    )


def _lazy_devices(recorder: Recorder) -> str | None:
    """Kinds of devices where an operation is only noted when it is called, and done later."""
    kinds = {parameter.device.type for track in recorder.tracks for parameter in track.parameters}
    return ", ".join(sorted(kinds & LAZY)) or None


def _without_hooks(recorder: Recorder, devices: str) -> Audit:
    recorder.not_recorded(f"parameters lie on {devices}, a lazy device: this run is not recorded")
    recorder.finish("closed", finished=False)
    return Audit(None)


def _start(recorder: Recorder, audit: Audit) -> None:
    leave_hooks_alone()
    patches.install()
    session.recorders.append(recorder)
    try:
        recorder.start()
    except BaseException:
        audit.close()
        raise


def _check_schedulers(schedulers: Sequence[Any], optimizers: int) -> None:
    if len(schedulers) != optimizers:
        raise ValueError(
            f"accumaudit: {optimizers} optimizers and {len(schedulers)} schedulers were given; "
            "give one scheduler for each optimizer, None where it has none"
        )
    for scheduler in schedulers:
        if scheduler is not None and not callable(getattr(scheduler, "step", None)):
            raise TypeError(
                f"accumaudit: scheduler is a {type(scheduler).__name__}, which has no method step"
            )


def _check_model(model: nn.Module, optimizers: Sequence[Optimizer], reducer: Reducer) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "accumaudit: the model has no trainable parameter; attach after requires_grad is set, "
            "and to the model that is trained"
        )
    own = {id(parameter) for parameter in model.parameters()}
    attached = {id(track.optimizer) for recorder in session.recorders for track in recorder.tracks}
    for optimizer in optimizers:
        if not any(id(parameter) in own for parameter in reducer.parameters(optimizer)):
            raise ValueError(
                f"accumaudit: none of the parameters of {type(optimizer).__name__} belongs to the model; "
                "attach the optimizer that was made from this model's parameters"
            )
        if id(optimizer) in attached:
            raise ValueError(
                f"accumaudit: this {type(optimizer).__name__} is attached already; close the first audit"
            )


def _check_scaler(scaler: Any) -> None:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(
            f"accumaudit: scaler is a {type(scaler).__name__}, no torch.amp.GradScaler; give the one inside "
            "it, or none: a loss scale that the loop makes by hand needs none"
        )


def _check_group(options: Options, world_size: int) -> None:
    if options.stop_on is None or world_size == 1:
        return
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            f"accumaudit: stop_on stops {world_size} ranks alike, and they cannot talk to each other yet; "
            "attach after init_process_group"
        )


def _open_ledger(path: Path, head: Mapping[str, Any]) -> LedgerWriter:
    try:
        return LedgerWriter(path, head)
    except OSError as error:
        raise OSError(
            error.errno,
            f"accumaudit: the record cannot be written ({error.strerror or error}); "
            "choose a log_dir that this process may write",
            str(path),
        ) from error
