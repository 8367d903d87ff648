"""Trainings under DeepSpeed on the CPU, alone or on each of two gloo ranks; a tiny model in a real engine.

Run as a module it makes the trainings that its standard input lists, alone in its group.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import accumaudit
from accumaudit.demo.launching import use_loopback
from tests.runtimes.rows import BATCH, EQUAL, STEPS, Row, rank, rows, tiny_model
from tests.trainings import environment

VALID: Final = ((2, 9, 9, 19, 8, 8, 8, 7), (19, 11, 11, 8, 9, 9, 9, 10))
"""Valid tokens of each rank's micro-batches: two whole windows and a rest of two."""
LIMIT: Final = 0.5
SCALE: Final = 65536.0


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return loss_of(self.model, {"input_ids": input_ids, "labels": labels})


def loss_of(model: Any, batch: Row) -> Tensor:
    """The mean over the labels that count, in 32 bit."""
    logits = model(batch["input_ids"]).float()
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


@contextlib.contextmanager
def group() -> Iterator[None]:
    """The group of the pair, or one of this process alone; what DeepSpeed warns of is its own affair."""
    with contextlib.ExitStack() as stack:
        # Stage 3 puts its own in this place, and leaves it there.
        stack.callback(setattr, functional, "linear", functional.linear)
        stack.callback(_forget_half)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(environment(LOCAL_RANK=str(rank())))
        if not dist.is_initialized():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            use_loopback()
            meeting = Path(folder, "meeting").as_uri()
            dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
            stack.callback(_forget_group)
        yield


def _forget_group() -> None:
    """Destroy the group, and let DeepSpeed forget those that it has made of it."""
    dist.destroy_process_group()
    if (package := sys.modules.get("deepspeed")) is not None:
        package.comm.comm.cdb = None
        importlib.reload(package.utils.groups)


def _forget_half() -> None:
    """Let the accelerator answer for itself again."""
    if (package := sys.modules.get("deepspeed")) is not None:
        vars(package.get_accelerator()).pop("is_fp16_supported", None)


def initialize(
    stage: int,
    *,
    precision: str = "fp32",
    clipping: float = 0.0,
    inside: bool = False,
    rate: float = 1e-2,
    sgd: bool = False,
    warmup: bool = False,
    **config: Any,
) -> Any:
    """An engine around a new model. No compiler is needed: its operator for shared memory is left out."""
    import deepspeed  # type: ignore[import-untyped]  # it ships no types
    import deepspeed.ops  # type: ignore[import-untyped]  # likewise
    from deepspeed.runtime import torch_autocast  # type: ignore[import-untyped]  # likewise

    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # What an engine with autocast leaves behind for the next one of the process.
    torch_autocast.TORCH_AUTOCAST_INITIALIZED, torch_autocast.TORCH_AUTOCAST_DTYPE = False, None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model: nn.Module = tiny_model()
    model = WithLoss(model) if inside else model
    groups = _groups(model)
    optimizer = torch.optim.SGD(groups, lr=rate) if sgd else torch.optim.AdamW(groups, lr=rate)
    scheduler = None if warmup else LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": STEPS,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": clipping,
        **config,
    }
    if warmup:
        settings["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": rate, "warmup_num_steps": 4}}
    if precision == "autocast":
        settings["torch_autocast"] = {"enabled": True, "dtype": "float16"}
    elif precision == "fp16":
        vars(deepspeed.get_accelerator())["is_fp16_supported"] = _yes  # of a CPU it says that it is not
        half = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
        settings["fp16"] = half | settings.get("fp16", {})
    elif precision == "bf16":
        settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
    found = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings)
    return found[0]


def _yes() -> bool:
    return True


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, as for a weight decay of matrices alone."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1]},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]


class Loop:
    """The loop of DeepSpeed's documentation, with a step of the engine in every micro-step.

    Args:
        engine: the engine.
        valid: valid tokens of each rank's micro-batches.
        epochs: iterations over them.
        backward: "engine", "undivided" (without its division), or "torch": loss.backward().
        boundary: "managed" by the engine's counter, "forced" at the end of the data too, by the "caller", or
            "coalesced" in blocks of the engine's.
        quiet: whether the loop counts its micro-steps anew in each epoch, and puts all but the last of three
            under engine.no_sync.
        overflow: micro-steps, from 0, whose gradient is infinite.
        cleared: those after which the loop calls engine.zero_grad.
        divided: what the loop divides the loss by, before the engine does.
    """

    def __init__(
        self,
        engine: Any,
        *,
        valid: Sequence[Sequence[int]] = VALID,
        epochs: int = 1,
        backward: str = "engine",
        boundary: str = "managed",
        quiet: bool = False,
        overflow: Sequence[int] = (),
        cleared: Sequence[int] = (),
        divided: float = 1.0,
    ) -> None:
        self.engine = engine
        made = rows(valid[rank() % len(valid)], seed=rank())
        self.data: Any = torch.utils.data.DataLoader(made, batch_size=BATCH)  # type: ignore[arg-type]  # its rows
        self.epochs = epochs
        self.how = backward
        self.boundary = boundary
        self.quiet = quiet
        self.overflow = overflow
        self.cleared = cleared
        self.divided = divided
        self.made = 0

    def train(self) -> None:
        if self.boundary == "coalesced":
            self.train_in_blocks()
            return
        for _ in range(self.epochs):
            for place, batch in enumerate(self.data):
                last = place == len(self.data) - 1
                if self.boundary == "forced":
                    self.engine.set_gradient_accumulation_boundary(last or (place + 1) % STEPS == 0)
                silent = self.quiet and (place + 1) % STEPS != 0
                with self.engine.no_sync() if silent else contextlib.nullcontext():
                    self.backward(self.loss(batch))
                if self.made in self.cleared:
                    self.engine.zero_grad()
                if self.boundary != "caller" or last or (place + 1) % STEPS == 0:
                    self.engine.step()
                self.made += 1

    def train_in_blocks(self) -> None:
        """Each window in a block of the engine's, which divides nothing there."""
        data = [batch for _ in range(self.epochs) for batch in self.data]
        for start in range(0, len(data), STEPS):
            with self.engine.coalesce_grad_reduction():
                for batch in data[start : start + STEPS]:
                    self.engine.backward(self.loss(batch) / STEPS)
            self.engine.step()

    def loss(self, batch: Row) -> Tensor:
        if isinstance(self.engine.module, WithLoss):
            found: Tensor = self.engine(**batch)
        else:
            found = loss_of(self.engine, batch)
        found = found / self.divided
        if self.made in self.overflow:
            found.register_hook(lambda gradient: gradient * math.inf)
        return found

    def backward(self, loss: Tensor) -> None:
        if self.how == "torch":
            loss.backward()
        else:
            self.engine.backward(loss, **({"scale_wrt_gas": False} if self.how == "undivided" else {}))


LOOP: Final = ("valid", "epochs", "backward", "boundary", "quiet", "overflow", "cleared", "divided")


def train(folder: str | None, stage: int, **how: Any) -> dict[str, Any]:
    """One training of an engine; what became of it."""
    loop = {name: how.pop(name) for name in LOOP if name in how}
    if loop.get("boundary") == "caller":
        how["managed_gradient_accumulation"] = False
    with group():
        engine = initialize(stage, **how)
        training = Loop(engine, **loop)
        if folder is None:
            training.train()
        else:
            with accumaudit.attach_deepspeed(
                engine, log_dir=folder, dataloader=training.data, summary=False
            ) as audit:
                audit.declare(planned_updates=training.epochs * len(training.data) // STEPS)
                training.train()
        result = {
            "parameters": digest(engine.module),
            "updates": engine.global_steps - engine.skipped_steps,
            "skipped": engine.skipped_steps,
            "scheduler": getattr(engine.lr_scheduler, "last_epoch", None),
        }
        engine.destroy()
    return result


def digest(model: nn.Module) -> str:
    """Equal where all parameters are equal, bit by bit; of their parts where those are all there is."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = getattr(parameter, "ds_tensor", parameter)
        found.update(whole.detach().float().numpy().tobytes())
    return found.hexdigest()


def train_all(runs: Mapping[str, Mapping[str, Any]], folder: str | None) -> dict[str, Any]:
    """Several of them, one after the other; each is recorded in a folder of its name."""
    return {
        name: train(None if folder is None else str(Path(folder, name)), **how) for name, how in runs.items()
    }


def healthy(folder: str, stage: int = 2) -> None:
    """As the documentation has it, with micro-batches that are alike and fill their windows."""
    train(folder, stage, valid=(EQUAL,), clipping=LIMIT, epochs=2)


def what_is_left(folder: str) -> dict[str, list[str]]:
    """What is another thing after a run was recorded and closed than before, by stage of ZeRO."""
    found = {}
    for stage in (0, 1, 2, 3):
        with group():
            engine = initialize(stage, clipping=LIMIT)
            training = Loop(engine, valid=(EQUAL,))
            owners = [*type(engine).__mro__[:-1], *type(engine.optimizer).__mro__[:-1]]
            before = _state(engine, owners)
            with accumaudit.attach_deepspeed(engine, log_dir=str(Path(folder, str(stage))), summary=False):
                changed = _state(engine, owners) != before
                training.train()
            after = _state(engine, owners)
            engine.destroy()
        found[str(stage)] = [name for name, value in after.items() if before[name] is not value]
        assert changed, "attach changed nothing that this looks at"
    return found


def _state(engine: Any, owners: Sequence[type]) -> dict[str, Any]:
    """Methods by class, and numbers of hooks."""
    methods = {
        f"{owner.__name__}.{name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }
    basic = engine.basic_optimizer
    hooks = {
        "forward hooks": len(engine.module._forward_hooks) + len(engine.module._forward_pre_hooks),
        "step hooks": len(basic._optimizer_step_pre_hooks) + len(basic._optimizer_step_post_hooks),
        "hooks of parameters": sum(
            len(parameter._post_accumulate_grad_hooks or ()) for parameter in engine.module.parameters()
        ),
    }
    return methods | hooks


def refusals(folder: str) -> dict[str, Any]:
    """What attach_deepspeed says to what it cannot record, and what it does where it is switched off."""
    with group():
        engine = initialize(1)
        with accumaudit.attach_deepspeed(engine, log_dir=folder, summary=False):
            twice = _message(lambda: accumaudit.attach_deepspeed(engine, log_dir=folder))
        with environment(ACCUMAUDIT="0"):
            accumaudit.attach_deepspeed(engine, log_dir=str(Path(folder, "off"))).close()
        optimizer, engine.basic_optimizer = engine.basic_optimizer, None
        without = _message(lambda: accumaudit.attach_deepspeed(engine, log_dir=folder))
        engine.basic_optimizer, engine.pipeline_parallelism = optimizer, True
        pipeline = _message(lambda: accumaudit.attach_deepspeed(engine, log_dir=folder))
        engine.pipeline_parallelism = False
        engine.destroy()
    return {"twice": twice, "without": without, "pipeline": pipeline, "off": Path(folder, "off").exists()}


def _message(attach: Any) -> str:
    try:
        attach()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def with_another_version(folder: str) -> dict[str, Any]:
    """A training with an engine without methods that the adapter watches and this training does not call."""
    from deepspeed.runtime.engine import DeepSpeedEngine  # type: ignore[import-untyped]  # likewise

    lacking = ("clip_fp32_gradients", "get_global_grad_norm")
    kept = {name: getattr(DeepSpeedEngine, name) for name in lacking}
    for name in lacking:
        delattr(DeepSpeedEngine, name)
    try:
        return train(folder, 0, valid=(EQUAL,))
    finally:
        for name, method in kept.items():
            setattr(DeepSpeedEngine, name, method)


def resumed(folder: str) -> dict[str, Any]:
    """A run that is saved while it is recorded, and goes on in other engines in the same folder.

    The first of them is loaded before attach, the second after it.
    """
    run, saved = str(Path(folder, "run")), str(Path(folder, "saved"))
    with group():
        for launch in range(3):
            engine = initialize(1, clipping=LIMIT)
            training = Loop(engine, valid=(EQUAL,))
            if launch == 1:
                engine.load_checkpoint(saved)
            with accumaudit.attach_deepspeed(
                engine, log_dir=run, dataloader=training.data, summary=False
            ) as audit:
                if launch == 2:
                    engine.load_checkpoint(saved)
                if launch:
                    audit.mark("resume")
                training.train()
                engine.save_checkpoint(saved)
                audit.mark("checkpoint", f"global_step{engine.global_steps}")
            engine.destroy()
    return {"files": [str(path) for path in sorted(Path(saved).rglob("*.pt"))]}


def call_all(calls: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Functions of this file, by name, with their arguments."""
    return {name: globals()[name](**arguments) for name, arguments in calls.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    request = json.load(sys.stdin)
    with group():
        answer = call_all(request["calls"])
    Path(request["answer"]).write_text(json.dumps(answer))
