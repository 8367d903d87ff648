"""The run record: who writes, in which launch, with what declared."""

from __future__ import annotations

import os
import platform
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.optim import Optimizer

from accumaudit import __version__
from accumaudit.hooks.contract import Contract
from accumaudit.hooks.optimizers import state_step
from accumaudit.hooks.reducers import Reducer
from accumaudit.hooks.schedule import counter_of
from accumaudit.ledger.schema import SCHEMA_VERSION

_attaches: dict[str, int] = {}
"""Attaches so far in this process, by run folder: each is a launch of its own, on all ranks alike."""


def global_rank() -> tuple[int, int]:
    """Rank and world size: of the process group where there is one, else of the environment."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def launch_token(run: Path, world_size: int) -> str:
    """A token that all ranks of one launch agree on without talking to each other."""
    token = _shared_token(world_size)
    if token is None:
        return secrets.token_hex(4)
    count = _attaches[str(run)] = _attaches.get(str(run), 0) + 1
    token = re.sub(r"[^A-Za-z0-9_.-]", "-", token)[:80]
    return token if count == 1 else f"{token}-{count}"


def _shared_token(world_size: int) -> str | None:
    env = os.environ
    if env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return f"{env['TORCHELASTIC_RUN_ID']}-{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if "SLURM_JOB_ID" in env and world_size > 1:
        return f"{env['SLURM_JOB_ID']}-{env.get('SLURM_RESTART_COUNT', '0')}"
    if world_size == 1:
        return None
    if "MASTER_ADDR" in env:
        return f"{env['MASTER_ADDR']}-{env.get('MASTER_PORT', '')}"
    return f"parent-{os.getppid()}"


def run_record(
    contract: Contract,
    reducer: Reducer,
    optimizers: Sequence[Optimizer],
    scheduler: Any,
    *,
    launch: str,
    rank: int,
    world_size: int,
    declared: Mapping[str, Any],
) -> dict[str, Any]:
    """The first line of the file. What attach was told overrides what was found."""
    parameters = reducer.parameters(optimizers[0])
    record: dict[str, Any] = {
        "record": "run",
        "schema": SCHEMA_VERSION,
        "launch": launch,
        "rank": rank,
        "world_size": world_size,
        "data_parallel_rank": rank,
        "data_parallel_size": world_size,
        "gradient_divisor": reducer.gradient_divisor(world_size),
        "runtime": contract.runtime,
        "versions": {
            "accumaudit": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **contract.versions,
        },
        "wrapper": reducer.name,
        "cpu_offload": reducer.cpu_offload,
        "precision": contract.precision or ", ".join((_precision(parameters), *reducer.precision)),
        "optimizers": [
            {"index": index, "class": type(optimizer).__name__, "name": f"optimizer {index}"}
            for index, optimizer in enumerate(optimizers)
        ],
        "scheduler_class": None if scheduler is None else type(scheduler).__name__,
        "scheduler_steps_per_update": None if scheduler is None else contract.scheduler_steps_per_update,
        "optimizer_state_step_at_attach": state_step(optimizers[0], parameters)
        if contract.updates is None
        else contract.updates,
        "scheduler_step_at_attach": getattr(scheduler, counter_of(scheduler), None),
        "started_at": time.time(),
    }
    record |= reducer.layout(rank, world_size)
    return record | {name: value for name, value in declared.items() if value is not None}


def _precision(parameters: Sequence[torch.Tensor]) -> str:
    names = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    device = parameters[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        names.append(f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}")
    return ", ".join(names)
