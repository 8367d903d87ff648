"""Trainings by FSDP1 and FSDP2, on one process or two, as their documentation has them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import accumaudit
from accumaudit.demo.data import IGNORED
from accumaudit.demo.launching import use_loopback
from accumaudit.hooks.fsdp import FSDP2Reducer
from accumaudit.hooks.shards import local
from tests.runtimes.rows import STEPS, Row, rows
from tests.trainings import environment

VALID: Final = ((2, 9, 20, 5, 13, 7, 16, 4), (11, 3, 8, 18, 2, 12, 6, 15))
"""Valid tokens of each rank's micro-batches: windows of 3, 3 and 2."""
WIDTH: Final = 8
LIMIT: Final = 0.5


class Part(nn.Module):
    """A layer that is sharded by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, states: Tensor) -> Tensor:
        mixed: Tensor = states + self.norm(torch.tanh(self.mix(states)))
        return mixed


class Model(nn.Module):
    """Embeds, mixes twice, predicts; one parameter has fewer elements than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.parts = nn.ModuleList(Part() for _ in range(2))
        self.head = nn.Linear(WIDTH, 20)
        self.heat = nn.Parameter(torch.ones(1))

    def forward(self, ids: Tensor) -> Tensor:
        states = self.embedding(ids)
        for part in self.parts:
            states = part(states)
        logits: Tensor = self.head(states) * self.heat
        return logits


def train(folder: str, *, wrap: str, how: Sequence[str] = (), hooks: bool = True) -> dict[str, Any]:
    """Two epochs on this rank; `how` names what is not as in the plain loop.

    Returns what it ended with: the parameters that lie here, and the loss of each micro-step.
    """
    with environment(ACCUMAUDIT="1" if hooks else "0"), quiet():
        training = Training(Path(folder), wrap, how)
        training.run()
    return {"parameters": training.parameters(), "losses": training.losses, "norms": training.norms}


@contextmanager
def quiet() -> Iterator[None]:
    """FSDP warns of views, of one process, and of strategies that are to go."""
    with warnings.catch_warnings():
        for message in ("FSDP", "The `NO_SHARD`", "Called FSDP", "`_get_pg_default", "Multiple backends"):
            warnings.filterwarnings("ignore", message=message)
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
        yield


class Training:
    """A loop over windows of three micro-steps, the last of two."""

    def __init__(self, folder: Path, wrap: str, how: Sequence[str]) -> None:
        self.folder = folder
        self.wrap = wrap
        self.how = how
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(0)
        self.model = self.wrapped(Model())
        self.optimizers = self.make_optimizers()
        self.data: DataLoader[Row] = DataLoader(
            rows(VALID[self.rank % 2], seed=self.rank),  # type: ignore[arg-type]  # its rows
            batch_size=2,
        )
        self.scheduler = (
            LambdaLR(self.optimizers[0], lambda step: 1 / (1 + step)) if "scheduled" in how else None
        )
        scaler = ShardedGradScaler if "sharded scaler" in how else torch.amp.GradScaler
        self.scaled = "scaler" in how or "sharded scaler" in how
        self.scaler: torch.amp.GradScaler = scaler("cpu", init_scale=1024.0, enabled=self.scaled)
        self.losses: list[float] = []
        self.norms: list[float] = []

    # what is built

    def wrapped(self, model: Model) -> nn.Module:
        if "frozen" in self.how:
            model.embedding.requires_grad_(False)
        return self.flat(model) if self.wrap.startswith("fsdp1") else self.full(model)

    def flat(self, model: Model) -> nn.Module:
        strategy = next((name for name in ShardingStrategy.__members__ if name in self.wrap), "FULL_SHARD")
        mesh = None
        if strategy == "HYBRID_SHARD":
            sizes = (self.ranks, 1) if "alone" in self.wrap else (1, self.ranks)
            mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
        bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        sharded = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[strategy],
            auto_wrap_policy=ModuleWrapPolicy({Part}),
            device_id=torch.device("cpu"),
            device_mesh=mesh,
            use_orig_params="flat" not in self.wrap,
            mixed_precision=bf16 if "bf16" in self.how else None,
            cpu_offload=CPUOffload(offload_params="offload" in self.how),
        )
        if "own reduction" in self.how:
            sharded.register_comm_hook(None, halved)
        return sharded

    def full(self, model: Model) -> nn.Module:
        hybrid = "hybrid" in self.wrap
        sizes, names = ((self.ranks, 1), ("replicate", "shard")) if hybrid else ((self.ranks,), ("shard",))
        options: dict[str, Any] = {"mesh": init_device_mesh("cpu", sizes, mesh_dim_names=names)}
        if "bf16" in self.how:
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if "offload" in self.how:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        if "kept" in self.how:
            options["reshard_after_forward"] = False
        for module in (*model.parts, model):
            fully_shard(module, **options)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self.set_reduction(module)
        return model

    def set_reduction(self, module: FSDPModule) -> None:
        if "summed" in self.how:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        if "an operator" in self.how:
            for group in module._get_fsdp_state()._fsdp_param_groups:
                vars(group)["reduce_scatter_reduce_op"] = dist.ReduceOp.SUM
        if "own reduction" in self.how:
            module.set_all_reduce_hook(halve)

    def make_optimizers(self) -> list[Optimizer]:
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        groups = [[p for _, p in named]]
        if "two optimizers" in self.how:
            groups = [[p for name, p in named if ("head" in name) is last] for last in (False, True)]
        if "tiny alone" in self.how:
            groups = [[p for name, p in named if ("heat" in name) is last] for last in (False, True)]
        options: dict[str, Any] = {"foreach": "foreach" in self.how or None}
        return [torch.optim.AdamW(group, lr=1e-2, **options) for group in groups]

    # what happens

    def run(self) -> None:
        if "resumed" in self.how:
            self.start_optimizers()
        with accumaudit.attach(
            self.model,
            self.optimizers,
            [self.scheduler, *[None] * (len(self.optimizers) - 1)],
            scaler=self.scaler if self.scaled else None,
            dataloader=self.data if self.scheduler is not None else None,
            log_dir=self.folder,
            accumulation_steps=STEPS,
            max_grad_norm=LIMIT,
            summary=False,
        ):
            for _ in range(2):
                self.epoch()
            if "saved" in self.how:
                self.save()

    def epoch(self) -> None:
        batches = iter(self.data)
        while window := list(islice(batches, STEPS)):
            self.window(window)
            if "evaluated" in self.how:
                self.evaluate(window[0])

    def window(self, batches: list[Row]) -> None:
        tokens = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        everywhere = torch.tensor(tokens)
        if self.ranks > 1:
            dist.all_reduce(everywhere)
        if "divided by the reduction" in self.how:
            self.divide_by(int(everywhere))
        for number, batch in enumerate(batches, 1):
            with self.reduction(number, len(batches)):
                loss = self.loss(batch) * self.factor(len(batches), tokens, int(everywhere))
                self.scaler.scale(loss).backward()
            self.losses.append(loss.item())
        self.finish()

    def divide_by(self, tokens: int) -> None:
        """Let FSDP2 divide by the tokens of the window, of all ranks."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(tokens))
                module.set_force_sum_reduction_for_comms(True)

    def factor(self, micro_steps: int, own: int, tokens: int) -> float:
        """What a micro-step's loss is multiplied by, with so many tokens on this rank and on all."""
        if "mean" in self.how:
            return 1 / micro_steps
        if "fixed" in self.how:
            return 1 / STEPS
        if "own tokens" in self.how:
            return 1 / own
        if "divided by the reduction" in self.how:
            return 1
        undone = 1 if "summed" in self.how or "not undone" in self.how else self.ranks
        return undone * (2 if "rescaled" in self.how else 1) / tokens

    def loss(self, batch: Row) -> Tensor:
        logits = self.model(batch["input_ids"]).float().flatten(0, 1)
        if "overflow" in self.how and self.rank == self.ranks - 1 and len(self.losses) == STEPS:
            logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
        reduction = "mean" if "mean" in self.how or "fixed" in self.how else "sum"
        labels = batch["labels"].flatten()
        return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction=reduction)

    def reduction(self, number: int, micro_steps: int) -> AbstractContextManager[None]:
        """Reduce in every micro-step, or in those that `how` names."""
        reduced = {"last": number == micro_steps, "first": number == 1, "never": False}
        on = next((reduced[name] for name in reduced if name in self.how), True)
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(on)
            if "shards held" in self.how:
                self.model.set_requires_all_reduce(number == micro_steps)
            if "waits at the end" in self.how:
                self.model.set_is_last_backward(number == micro_steps)
        elif isinstance(self.model, FullyShardedDataParallel) and not on:
            context: AbstractContextManager[None] = self.model.no_sync()
            return context
        return nullcontext()

    def finish(self) -> None:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        if "rescaled" in self.how:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= 0.5
        self.norms.append(float(self.clip()))
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none="zeroed" not in self.how)

    def clip(self) -> Tensor:
        parameters = list(self.model.parameters())
        if isinstance(self.model, FullyShardedDataParallel) and "torch's clip" not in self.how:
            return self.model.clip_grad_norm_(LIMIT)
        if "norm taken first" in self.how:
            norm: Any = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            nn.utils.clip_grads_with_norm_(parameters, LIMIT, norm.full_tensor())
            return local(norm)
        return local(nn.utils.clip_grad_norm_(parameters, LIMIT))

    def evaluate(self, batch: Row) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss(batch)
        self.model.train()

    def start_optimizers(self) -> None:
        """Load an optimizer state, for which torch.distributed makes an optimizer step first."""
        _, state = get_state_dict(self.model, self.optimizers)
        set_optimizer_state_dict(self.model, self.optimizers, state)

    def save(self) -> None:
        """Rank 0 saves everything; a whole state dict of FSDP1 on the CPU crashes torch 2.13 itself."""
        state: dict[str, Any]
        if isinstance(self.model, FullyShardedDataParallel):
            with self.model.summon_full_params(self.model, writeback=False):
                state = {name: value.clone() for name, value in self.model.module.state_dict().items()}
        else:
            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            model, optimizer = get_state_dict(self.model, self.optimizers, options=whole)
            state = {"model": model, "optimizer": optimizer}
        if self.rank == 0:
            self.folder.mkdir(exist_ok=True)
            torch.save(state, self.folder / "checkpoint.pt")

    def parameters(self) -> str:
        """Equal where everything that lies here is equal, bit by bit."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(local(parameter.detach()).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def traces(folder: str, wrap: str) -> list[str]:
    """What an audit leaves behind on this rank once it is closed."""
    training = bare_training(folder, wrap)
    before = things_of(training)
    with quiet():
        training.run()
    after = things_of(training)
    return [name for name, thing in after.items() if thing != before[name]]


def bare_training(folder: str, wrap: str) -> Training:
    with quiet():
        training = Training(Path(folder), wrap, ())
        training.model(torch.zeros(1, 4, dtype=torch.long))  # FSDP sets itself up in the first forward
    return training


def things_of(training: Training) -> dict[str, Any]:
    """What hooks could change: functions, and attributes and hooks of modules, parameters and optimizers."""
    modules = {
        f"{name}.{key}": len(value)
        for name, module in training.model.named_modules()
        for key, value in vars(module).items()
        if key.endswith("_hooks") and value is not None
    }
    names = {name: sorted(vars(module)) for name, module in training.model.named_modules()}
    hooked = {
        f"{name} accumulates": bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
        for name, parameter in training.model.named_parameters()
    }
    (optimizer,) = training.optimizers
    return {
        **modules,
        **{f"attributes of {name}": found for name, found in names.items()},
        **hooked,
        "its clip": FullyShardedDataParallel.clip_grad_norm_,
        "steps": [len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)],
        "attributes of the optimizer": sorted(vars(optimizer)),
    }


def attach_twice(folder: str) -> str:
    """What a second attach of the same optimizer says."""
    training = bare_training(folder, "fsdp2")
    options: dict[str, Any] = {"log_dir": folder, "summary": False}
    with accumaudit.attach(training.model, training.optimizers, **options):
        try:
            accumaudit.attach(training.model, training.optimizers, **options)
        except ValueError as error:
            return str(error)
    return "nothing"


def train_on_an_unknown_version(folder: str) -> None:
    """On a version of torch whose FSDP2 keeps its groups elsewhere."""
    known = FSDP2Reducer._groups
    FSDP2Reducer._groups = property(lambda _: object().groups)  # type: ignore[attr-defined, assignment]
    try:
        train(folder, wrap="fsdp2", how=["last"])
    finally:
        FSDP2Reducer._groups = known  # type: ignore[method-assign]


def train_without_its_clip(folder: str) -> None:
    """On a version of torch whose FSDP1 has no clip of its own."""
    own = FullyShardedDataParallel.clip_grad_norm_
    del FullyShardedDataParallel.clip_grad_norm_
    try:
        train(folder, wrap="fsdp1", how=["torch's clip"])
    finally:
        FullyShardedDataParallel.clip_grad_norm_ = own  # type: ignore[method-assign]


def halve(gradient: Tensor) -> None:
    """A reduction of the user's own, after FSDP's."""
    gradient.mul_(0.5)


def halved(_state: object, whole: Tensor, part: Tensor | None = None) -> None:
    """A communication hook: half of the sum over two ranks."""
    if part is None:
        dist.all_reduce(whole)
        whole.mul_(0.5)
    else:
        dist.reduce_scatter_tensor(part, whole)
        part.mul_(0.5)


def healthy(folder: str, wrap: str = "fsdp2") -> None:
    """As the documentation has it, on as many processes as there are in the group; alone it makes one."""
    alone = not dist.is_initialized()
    if alone:
        use_loopback()
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch names it in no list
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        train(folder, wrap=wrap, how=["scheduled"])
    finally:
        if alone:
            dist.destroy_process_group()
