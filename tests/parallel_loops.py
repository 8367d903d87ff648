"""Loops whose ranks share samples, layers or tensors: parts of a sequence, of a matrix, of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import accumaudit
from accumaudit.hooks.shards import local
from tests.loops import VOCABULARY, batches
from tests.runtimes.fsdp import quiet

IGNORED: Final = -100
STEPS: Final = 3
WIDTH: Final = 8


class Gather(torch.autograd.Function):
    """What every rank of a group has, in their order; the gradients of all come back."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[dist.get_rank(ctx.group)], None


class SplitModel(nn.Module):
    """Each position sees the mean of those before it, which may lie on other ranks of its group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self._group = group

    def forward(self, ids: Tensor) -> Tensor:
        states = torch.tanh(self.mix(self.embedding(ids)))
        rank = dist.get_rank(self._group)
        sums = states.sum(1, keepdim=True)
        parts: Tensor = Gather.apply(sums, self._group)  # type: ignore[no-untyped-call]
        before, first = parts[:rank].sum(0), rank * ids.shape[1]
        place = torch.arange(first + 1, first + 1 + ids.shape[1]).view(1, -1, 1)
        logits: Tensor = self.head((states.cumsum(1) + before) / place)
        return logits


def labelled(count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches with the next token as label; every third batch has a masked half row."""
    found = []
    for number, ids in enumerate(batches(count)):
        labels = torch.cat([ids[:, 1:], torch.full((len(ids), 1), IGNORED)], 1)
        if number % 3 == 0:
            labels[0, :5] = IGNORED
        found.append((ids, labels))
    return found


def windows(data: int, steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Three windows of one of two data ranks."""
    mine = labelled(6 * steps)[data::2]
    for start in range(0, len(mine), steps):
        yield mine[start : start + steps]


def tokens_of(window: Iterable[Sequence[Tensor]], group: dist.ProcessGroup | None) -> int:
    """Tokens with a label in a window, of all ranks of the group."""
    tokens = torch.tensor(sum(int((labels != IGNORED).sum()) for _, labels in window))
    dist.all_reduce(tokens, group=group)
    return int(tokens)


def average(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Reduce the gradients by hand."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradient = local(parameter.grad)
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)


def token_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed loss of all tokens that have a label."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def split_sequences(
    folder: str, *, wrap: str = "DDP", axis: str = "cp", factor: float = 1.0, told: str = "mesh"
) -> None:
    """Three updates on 2 x 2 ranks, each of which has one half of the sequences of its samples.

    Args:
        folder: where the ledger goes.
        wrap: DDP, FSDP1 or FSDP2, over all four ranks.
        axis: what the ranks of one sample are called: cp or sp.
        factor: what is wrong with the loss; 1 where nothing is.
        told: how the layout is given: as a mesh, as a mapping, or not at all.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", axis))
    torch.manual_seed(0)
    model = wrapped(SplitModel(mesh.get_group(axis)), wrap)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data, part = mesh.get_local_rank("dp"), mesh.get_local_rank(axis)
    layouts: dict[str, Any] = {"mesh": mesh, "mapping": {"data": (data, 2), axis: (part, 2)}, "nothing": None}
    options: dict[str, Any] = {"accumulation_steps": STEPS, "layout": layouts[told], "summary": False}
    with accumaudit.attach(model, optimizer, log_dir=folder, **options), quiet():
        for window in windows(data, STEPS):
            halves = [[half.chunk(2, 1)[part] for half in batch] for batch in window]
            tokens = tokens_of(halves, None)
            for number, (ids, labels) in enumerate(halves, 1):
                with reduction(model, number == STEPS):
                    loss = token_sum(model(ids), labels) * dist.get_world_size() / tokens
                    (loss * factor).backward()
            optimizer.step()
            optimizer.zero_grad()


def wrapped(model: nn.Module, wrap: str) -> nn.Module:
    """The model in one of torch's wrappers, over all ranks."""
    with quiet():
        if wrap == "DDP":
            return DistributedDataParallel(model)
        if wrap == "FSDP1":
            return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return model


def reduction(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """DDP reduces in the last micro-step alone; shards are reduced in every one."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


class FirstStage(nn.Module):
    """The layers of the first ranks of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        mixed: Tensor = torch.tanh(self.mix(self.embedding(ids)))
        return mixed


class LastStage(nn.Module):
    """The layers of the last ranks, which have the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.mix(states)))
        return logits


MICROBATCHES: Final = 4


def pipeline(
    folder: str,
    *,
    wrap: str = "DDP",
    schedule: str = "1F1B",
    factor: float = 1.0,
    scaled: bool = False,
    told: bool = True,
    reduced: Sequence[int] = (0, 1),
) -> None:
    """Three updates on two stages of two data ranks each, as torch's own schedules order the micro-steps.

    Args:
        folder: where the ledger goes.
        wrap: DDP or FSDP2 over the data ranks, or none: the loop reduces.
        schedule: 1F1B or GPipe.
        factor: what is wrong with the loss; 1 where nothing is.
        scaled: the schedule divides the gradients by the number of micro-steps, and the loss undoes it.
        told: the layout is given.
        reduced: the stages whose gradients the loop reduces, where no wrapper does.
    """
    from torch.distributed import pipelining

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage, data, group = mesh.get_local_rank("pp"), mesh.get_local_rank("dp"), mesh.get_group("dp")
    torch.manual_seed(stage)
    model = stage_of(mesh, wrap)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.tensor(0)
    factor *= 2 * (MICROBATCHES if scaled else 1)
    part = pipelining.PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    kind = {"1F1B": pipelining.Schedule1F1B, "GPipe": pipelining.ScheduleGPipe}[schedule]
    run = kind(
        part,
        MICROBATCHES,
        loss_fn=lambda logits, labels: token_sum(logits, labels) * factor / tokens,
        scale_grads=scaled,
    )
    options: dict[str, Any] = {
        "accumulation_steps": MICROBATCHES,
        "layout": mesh if told else None,
        "gradient_divisor": 2.0 if wrap == "none" else None,
    }
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False, **options), quiet():
        for window in windows(data, MICROBATCHES):
            ids, labels = (torch.cat([batch[which] for batch in window]) for which in (0, 1))
            tokens.fill_(tokens_of(window, group))
            if stage:
                run.step(target=labels, losses=[])
            else:
                run.step(ids)
            if wrap == "none" and stage in reduced:
                average(model, group)
            optimizer.step()
            optimizer.zero_grad()


def stage_of(mesh: DeviceMesh, wrap: str) -> nn.Module:
    """The layers of this rank, in the wrapper that reduces over the data ranks."""
    model: nn.Module = LastStage() if mesh.get_local_rank("pp") else FirstStage()
    if wrap == "DDP":
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    if wrap == "FSDP2":
        fully_shard(model, mesh=mesh["dp"])
    return model


class TwoLayers(nn.Module):
    """Two layers that a tensor-parallel group shares, around one that each rank has whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.embedding(ids)
        states = states + self.narrow(torch.relu(self.wide(states)))
        logits: Tensor = self.head(self.norm(states))
        return logits


def tensor_parallel(folder: str, *, wrap: str = "FSDP2", told: bool = True, factor: float = 1.0) -> None:
    """Three updates on 2 x 2 ranks; those of a tensor group have the same data and parts of two layers."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model: nn.Module = TwoLayers()
    parallelize_module(model, mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    if wrap == "FSDP2":
        fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    options: dict[str, Any] = {
        "accumulation_steps": STEPS,
        "layout": mesh if told else None,
        "gradient_divisor": 2.0 if wrap == "none" else None,
    }
    with accumaudit.attach(model, optimizer, log_dir=folder, summary=False, **options), quiet():
        for window in windows(mesh.get_local_rank("dp"), STEPS):
            tokens = tokens_of(window, mesh.get_group("dp"))
            for ids, labels in window:
                (token_sum(model(ids), labels) * factor * 2 / tokens).backward()
            if wrap == "none":
                average(model, mesh.get_group("dp"))
            optimizer.step()
            optimizer.zero_grad()
