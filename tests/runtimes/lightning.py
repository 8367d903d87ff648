"""Lightning as its documentation has it, under either of its names, and in ways that go wrong."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from accumaudit.hooks.lightning_callback import AccumauditCallback
from tests.loops import token_loss
from tests.runtimes.rows import BATCH, EQUAL, STEPS, flat, loss_of, rank, rows, tiny_model

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
VALID = ((2, 15, 10, 8, 9, 10, 12, 8), (12, 11, 9, 10, 11, 12, 9, 7))
"""Valid tokens of each rank's micro-batches: over two ranks tokens count 0.656 to 4.9 times."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what Lightning says of workers, of small trainings, and of torch's own ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def library(package: str = PACKAGES[0]) -> Any:
    with quiet():
        return importlib.import_module(package)


def _falling(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


def make_module(package: str = PACKAGES[0], **traits: Any) -> Any:
    """A LightningModule that trains the tiny model.

    Args:
        package: whose module it is.
        traits: none_at and overflow_at name batches of the run, from 0; optimizer is a class, scheduler
            makes one for it, and schedule is what Lightning is told of that; before is called with the
            module before each loss, and divided is what the step's loss is divided by.
    """
    pl = library(package)

    class Tiny(pl.LightningModule):  # type: ignore[misc, name-defined]  # of whichever package
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_model()
            self.batches = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            number, self.batches = self.batches, self.batches + 1
            if number in traits.get("none_at", ()):
                return None
            if (before := traits.get("before")) is not None:
                before(self)
            loss = loss_of(self.model, batch) / traits.get("divided", 1)
            return loss * float("inf") if number in traits.get("overflow_at", ()) else loss

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("val_loss", loss_of(self.model, batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = traits.get("optimizer", torch.optim.AdamW)(self.model.parameters(), lr=1e-2)
            if "schedule" not in traits:
                return optimizer
            scheduler = traits.get("scheduler", _falling)(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **traits["schedule"]}}

    return Tiny()


def make_manual(package: str = PACKAGES[0], *, adversaries: bool = False, terms: bool = False) -> Any:
    """Manual optimization: of two optimizers in turn, or of one that accumulates three batches.

    Args:
        package: whose module it is.
        adversaries: whether there are two optimizers.
        terms: whether each batch has two losses, with a backward each.
    """
    pl = library(package)

    class Manual(pl.LightningModule):  # type: ignore[misc, name-defined]  # of whichever package
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.model = tiny_model()
            if adversaries:
                self.critic = tiny_model(1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            if adversaries:
                self.in_turn(batch)
            else:
                self.accumulating(batch, batch_idx)

        def in_turn(self, batch: Any) -> None:
            first, second = self.optimizers()
            ids = batch["input_ids"]
            for optimizer, model in ((first, self.model), (second, self.critic)):
                with optimizer.toggle_model():
                    optimizer.zero_grad()
                    self.manual_backward(token_loss(model(ids), ids, "mean"))
                    optimizer.step()

        def accumulating(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            loss = loss_of(self.model, batch) / STEPS
            self.manual_backward(loss, retain_graph=terms)
            if terms:
                self.manual_backward(self.model.hidden.weight.square().sum() + 0.1 * loss)
            if (batch_idx + 1) % STEPS == 0:
                self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
                optimizer.step()
                self.lr_schedulers().step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            first = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            if adversaries:
                return first, torch.optim.SGD(self.critic.parameters(), lr=1e-2)
            return [first], [LambdaLR(first, lambda step: 1 / (1 + step))]

    return Manual()


def make_sharded() -> Any:
    """A LightningModule that shards its parameters by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    plain = make_module(schedule={"interval": "step"})

    class Sharded(type(plain)):  # type: ignore[misc]  # of whichever package
        def configure_model(self) -> None:
            mesh = self.device_mesh["data_parallel"]
            for part in (self.model.hidden, self.model):
                fully_shard(part, mesh=mesh)

    plain.__class__ = Sharded
    return plain


def loader(valid: Sequence[int], seed: int | None = None) -> Any:
    """The rows of this rank, in order."""
    return DataLoader(rows(valid, rank() if seed is None else seed), batch_size=BATCH)  # type: ignore[arg-type]  # its rows


def make_trainer(folder: Path, package: str = PACKAGES[0], **options: Any) -> Any:
    """A Trainer on the CPU that says nothing; in two processes one of DDP, inside the group that there is."""
    pl = library(package)
    if torch.distributed.is_initialized():
        os.environ["LOCAL_RANK"] = str(rank())
        environment = importlib.import_module(f"{package}.plugins.environments").LightningEnvironment()
        options = {"strategy": "ddp", "devices": 2, "plugins": [environment], **options}
    with quiet():
        return pl.Trainer(
            **{
                "accelerator": "cpu",
                "devices": 1,
                "default_root_dir": folder,
                "accumulate_grad_batches": STEPS,
                "max_epochs": 1,
                "use_distributed_sampler": False,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                **options,
            }
        )


def fit(
    folder: str,
    *,
    package: str = PACKAGES[0],
    audit: dict[str, Any] | None = None,
    audited: bool = True,
    callbacks: Sequence[Any] = (),
    ckpt_path: str | None = None,
    data: Any = None,
    module: Any = None,
    traits: dict[str, Any] | None = None,
    valid: Sequence[int] | None = None,
    validation: Any = None,
    **options: Any,
) -> list[float]:
    """Train, recorded in the folder's `run`; the parameters at the end."""
    library(package)
    if audited:
        recording = AccumauditCallback(Path(folder, "run"), summary=False, **(audit or {}))
        callbacks = (recording, *callbacks)
    trainer = make_trainer(Path(folder), package, callbacks=list(callbacks), **options)
    module = make_module(package, **(traits or {})) if module is None else module
    data = data or loader(VALID[rank()] if valid is None else valid)
    with quiet():
        trainer.fit(module, data, validation, ckpt_path=ckpt_path)
    return [float(value) for value in flat(module)]


def fp16(package: str = PACKAGES[0], scale: float = 1024.0) -> Any:
    """Half precision with a scaler, which Lightning makes for accelerators alone but takes on a CPU too."""
    plugin = importlib.import_module(f"{package}.plugins.precision").MixedPrecision
    return plugin("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))


def half(folder: str, **options: Any) -> list[float]:
    """Train in half precision, with two processes."""
    os.environ["LOCAL_RANK"] = str(rank())
    environment = importlib.import_module(f"{PACKAGES[0]}.plugins.environments").LightningEnvironment()
    return fit(folder, plugins=[environment, fp16()], **options)


def sharded(folder: str) -> list[float]:
    """Train a model that FSDP2 shards; the sums of the parameters' parts at the end."""
    os.environ["LOCAL_RANK"] = str(rank())
    environment = importlib.import_module(f"{PACKAGES[0]}.plugins.environments").LightningEnvironment()
    strategies = importlib.import_module(f"{PACKAGES[0]}.strategies")
    strategy = strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    module = make_sharded()
    callback = AccumauditCallback(Path(folder, "run"), summary=False)
    options = {"plugins": [environment], "strategy": strategy, "max_epochs": 2, "callbacks": [callback]}
    with quiet():
        make_trainer(Path(folder), **options).fit(module, loader(EQUAL))
    return [float(parameter.full_tensor().detach().sum()) for parameter in module.parameters()]


def healthy(folder: str, package: str = PACKAGES[0]) -> list[float]:
    """As its documentation has it, with micro-batches of equal length and no tail."""
    return fit(
        folder,
        package=package,
        valid=EQUAL,
        traits={"schedule": {"interval": "step"}},
        gradient_clip_val=1.0,
        max_epochs=2,
    )


def manual(
    folder: str,
    *,
    adversaries: bool = False,
    package: str = PACKAGES[0],
    terms: bool = False,
    **options: Any,
) -> list[float]:
    """Train with manual optimization."""
    if adversaries and torch.distributed.is_initialized():
        options = {"strategy": "ddp_find_unused_parameters_true", **options}
    return fit(
        folder,
        package=package,
        module=make_manual(package, adversaries=adversaries, terms=terms),
        accumulate_grad_batches=1,
        max_epochs=2,
        valid=None if adversaries else EQUAL,
        **options,
    )
