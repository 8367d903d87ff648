"""What the hooks would record of a plan, launch by launch."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accumaudit.testing import START, Record, build_run, to_line, write_records
from tests.generated.plans import PEAK, Plan

Launch = dict[int, list[Record]]
"""The records of one launch by rank."""


@dataclass(slots=True)
class State:
    """What a checkpoint holds."""

    update: int = 0
    epoch: int = 1
    batch: int = 0
    """Micro-batches of the epoch that were taken."""
    scale: float | None = None
    good: int = 0
    """Updates since the scale last changed."""
    tokens: float = 0.0


@dataclass(slots=True)
class Notes:
    """What one launch writes down, before it is a record."""

    updates: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    micro_steps: int = 0
    pending: int = 0
    """Micro-steps of a dropped tail, which stand in the record of the window that follows."""
    start: float = START

    @property
    def clock(self) -> float:
        """The time of the attempt that comes."""
        return self.start + 1.0 + len(self.updates)

    def mark(self, kind: str, state: State, **more: Any) -> None:
        """Put a mark here."""
        self.marks.append({
            "kind": kind,
            "attempt_id": len(self.updates),
            "micro_step_id": self.micro_steps,
            "epoch": state.epoch,
            "time": self.clock - 0.5 + 1e-3 * len(self.marks),
            **more,
        })  # fmt: skip


def simulate(plan: Plan) -> list[Launch]:
    """The records of all launches, as they come to be read."""
    state = State(scale=plan.scale)
    snapshots = {0: replace(state)}
    launches = []
    for number in range(len(plan.launches) + 1):
        stop, lost = plan.launches[number] if number < len(plan.launches) else (None, 0)
        begun_at = state.update
        notes = Notes(start=START + 10_000.0 * number)
        goes_on = _train(plan, state, notes, snapshots, stop)
        launches.append(
            _records(plan, notes, number, begun_at, closed=not goes_on and plan.ending == "closed")
        )
        if not goes_on:
            break
        state = replace(snapshots[max(state.update - lost, 1)])
    return _as_found(plan, launches)


def write(plan: Plan, launches: Sequence[Launch], folder: Path) -> Path:
    """Write the launches as the run that `folder` is."""
    for number, records in enumerate(launches):
        write_records(folder, records, f"launch{number}")
    if plan.ending == "torn":
        for file in sorted(folder.rglob(f"*launch{len(launches) - 1}.jsonl")):
            with file.open("a", encoding="utf-8") as lines:
                lines.write(to_line({"record": "update", "launch": "torn"})[:20])
    return folder


def _train(plan: Plan, state: State, notes: Notes, snapshots: dict[int, State], stop: int | None) -> bool:
    """Train to the end, or to the update `stop`; whether more is to come."""
    while state.epoch <= plan.epochs:
        steps = plan.steps_in(state.epoch)
        while state.batch < plan.batches:
            count = min(steps, plan.batches - state.batch)
            if count < steps and plan.tail != "applied":
                notes.micro_steps += count
                notes.pending = count
                state.batch = plan.batches
                break
            _attempt(plan, state, notes, count, steps)
            snapshots[state.update] = replace(state)
            if stop is not None and state.update >= stop:
                return True
        if plan.watched:
            notes.mark("end_of_data", state)
            if state.epoch < plan.epochs:
                notes.mark("epoch_end", state)
        if "reported_global_step" in plan.reports:
            notes.mark("checkpoint", state, name=f"step-{state.update}.pt", rank=0)
        state.epoch += 1
        state.batch = 0
    return False


def _attempt(plan: Plan, state: State, notes: Notes, count: int, steps: int) -> None:
    rng = random.Random(f"{plan.seed}/{state.epoch}/{state.batch}/{state.scale}")
    skipped = state.scale is not None and state.scale > plan.ceiling
    by_rank = {rank: _data(plan, state, rank, count) for rank in range(plan.ranks)}
    total = sum(sum(by_rank[rank]["valid_tokens"]) for rank in range(0, plan.ranks, plan.tensor))
    norm, direction = 0.9 * math.exp(rng.gauss(0, 0.25)), rng.random()
    ends = plan.watched and state.batch + count >= plan.batches and count < steps
    state.batch += count
    scaling = _scaling(plan, state, count, skipped)
    notes.micro_steps += count
    state.update += not skipped
    state.tokens += total
    for rank, own in by_rank.items():
        own |= _gradient(plan, rank, direction, norm, notes.pending + count, skipped)
    attempt = {
        "skipped": skipped,
        "microbatches": count,
        "discarded_microbatches": notes.pending,
        "accumulation_steps": steps,
        "events": _word(plan, notes.pending, count, skipped=skipped, ends=ends),
        "optimizer_update_id": state.update,
        "optimizer_state_step": state.update,
        "micro_step_id": notes.micro_steps,
        "epoch": state.epoch if plan.watched else None,
        "time": notes.clock,
        "weight_dtype": plan.dtype,
        "skip_evidence": "scaler" if skipped else None,
        "on": by_rank,
        **scaling,
        **_schedule(plan, state, skipped),
        **_reports(plan, state, total, by_rank),
    }
    if plan.average is not None:
        attempt |= {"ema_updates": state.update, "ema_decay": plan.average}
    notes.updates.append(attempt)
    notes.pending = 0


def _data(plan: Plan, state: State, rank: int, count: int) -> dict[str, Any]:
    """The micro-batches of one rank; the ranks of a tensor group have the same."""
    place = rank // plan.tensor
    own: dict[str, list[Any]] = {
        name: [] for name in ("valid_tokens", "loss", "data_digest", "attended_positions")
    }
    for batch in range(state.batch, state.batch + count):
        rng = random.Random(f"{plan.seed}/{state.epoch}/{batch}/{place}")
        n = 4.0 if plan.unit == "sample" else float(rng.randint(20, 190))
        own["valid_tokens"].append(n)
        own["attended_positions"].append(int(n) + rng.randint(5, 60))
        own["loss"].append(1.0 + 3.0 * math.exp(-state.update / 40) + rng.gauss(0, 0.1))
        own["data_digest"].append(f"{rng.getrandbits(64):016x}")
    return own


def _gradient(
    plan: Plan, rank: int, direction: float, norm: float, micro_step: int, skipped: bool
) -> dict[str, Any]:
    """Gradients and norms of one rank; replicas have the same."""
    part = rank % plan.tensor + (10 * (rank // plan.tensor) if plan.wrapper == "fsdp2" else 0)
    rng = random.Random(f"{direction}/{part}")
    slice_ = [math.nan] * 4 if skipped else [rng.gauss(0, 0.01) for _ in range(4)]
    digest = f"{rng.getrandbits(64):016x}" if rng.random() < 0.3 else None
    own: dict[str, Any] = {"probe_gradient": slice_, "probe_nonfinite": skipped, "param_digest": digest}
    own["probe_parameter_changed"] = not skipped
    if skipped:
        norm = math.nan
    own |= {"grad_norm_after_clip": norm, "grad_norm_after_scope": "global"}
    if plan.clip is not None:
        coefficient = None if skipped else min(1.0, plan.clip / norm)
        call = {"micro_step": micro_step, "kind": "norm", "limit": plan.clip, "norm": norm, "complete": True}
        own["clips"] = [call | {"coefficient": coefficient, "largest": None}]
        own |= {"grad_norm_before_clip": norm, "grad_norm_before_scope": "global"}
        own |= {"grad_norm_after_clip": norm * (coefficient or 1.0), "probe_clip_coefficient": coefficient}
    return own


def _scaling(plan: Plan, state: State, count: int, skipped: bool) -> dict[str, Any]:
    if state.scale is None:
        return {}
    scale = state.scale
    state.good = 0 if skipped else state.good + 1
    if skipped or state.good == plan.growth_interval:
        state.scale *= 0.5 if skipped else 2.0
        state.good = 0
    own = {"loss_scale": [scale] * count, "grad_scale": scale, "grad_scale_after": state.scale}
    return own | {"probe_unscale": 1 / scale if plan.clip and not skipped else None}


def _word(plan: Plan, pending: int, count: int, *, skipped: bool, ends: bool) -> str:
    quiet = {"none": "FB", "ddp": "fb", "fsdp2": "Fb"}[plan.wrapper] if plan.no_sync else "FB"
    word = quiet * pending + ("|" if pending and plan.watched else "")
    word += "Z" + quiet * (count - 1) + "FB" + ("|" if ends else "")
    word += ("U" if plan.scale and plan.clip else "") + ("C" if plan.clip else "")
    word += ("X" if skipped else "O") + ("G" if plan.scale else "")
    word += "" if skipped or plan.average is None else "E"
    return word + ("S" * plan.contract if plan.shape != "none" and not skipped else "")


def _schedule(plan: Plan, state: State, skipped: bool) -> dict[str, Any]:
    rate = plan.rate(state.update - (not skipped))
    own: dict[str, Any] = {"learning_rate": rate, "learning_rates": [rate, rate]}
    own["weight_decays"] = [0.1, 0.0]
    if plan.shape == "none":
        return own | {"scheduler_step": None, "scheduler_rate": None}
    return own | {"scheduler_step": state.update * plan.contract, "scheduler_rate": plan.rate(state.update)}


def _reports(
    plan: Plan, state: State, total: float, by_rank: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    n, losses = [], []
    for rank in range(0, plan.ranks, plan.tensor):
        n += by_rank[rank]["valid_tokens"]
        losses += by_rank[rank]["loss"]
    values = {
        "global_valid_tokens_in_update": total,
        "cumulative_train_tokens": state.tokens,
        "reported_global_step": state.update,
        "reported_loss": sum(map(math.prod, zip(n, losses, strict=True))) / total,
    }
    return {name: value if name in plan.reports else None for name, value in values.items()}


def _records(plan: Plan, notes: Notes, number: int, begun_at: int, *, closed: bool) -> Launch:
    launch = f"launch{number}"
    if closed:
        reason = {"reason": "closed", "finished": True, "leftover_microbatches": notes.pending}
        notes.mark("close", State(epoch=plan.epochs), **reason)
    elif plan.ending == "stopped":
        notes.mark("close", State(), reason="closed", finished=False, leftover_microbatches=notes.pending)
    records = build_run(
        notes.updates,
        plan.ranks,
        marks=notes.marks,
        close=False,
        launch=launch,
        every=plan.every,
        microbatch_detail=plan.detail,
        started_at=notes.start,
        on={rank: _layout(plan, rank) for rank in range(plan.ranks)},
        **_run_fields(plan, begun_at),
    )
    for rank, lines in records.items():
        # Marks of attempts that are recorded come in their place.
        lines[1:] = sorted(lines[1:], key=lambda record: record["time"])
        for seq, record in enumerate(lines, 1):
            record["seq"] = seq
        records[rank] = lines
    return records


def _run_fields(plan: Plan, begun_at: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "world_size": plan.ranks,
        "gradient_divisor": float(plan.data_ranks * plan.context),
        "wrapper": plan.wrapper,
        "accumulation_steps": plan.accumulation,
        "max_grad_norm": plan.clip,
        "loss_unit": plan.unit,
        "precision": "float16" if plan.scale else "float32",
        "scheduler_class": None if plan.shape == "none" else "LambdaLR",
        "scheduler_steps_per_update": None if plan.shape == "none" else float(plan.contract),
        "optimizer_state_step_at_attach": begun_at or None,
        "scheduler_step_at_attach": None if plan.shape == "none" else begun_at * plan.contract,
        "resumed_from_update": begun_at or None,
    }
    if plan.declared:
        fields |= {"planned_updates": plan.attempts, "peak_learning_rate": PEAK}
        if plan.shape in ("linear", "cosine", "inverse"):
            fields["warmup_updates"] = plan.warmup
        if plan.shape == "cosine":
            fields["min_learning_rate"] = 0.1 * PEAK
    return fields


def _layout(plan: Plan, rank: int) -> dict[str, Any]:
    place = rank // plan.tensor
    parts = plan.data_ranks * plan.context
    sharded = plan.wrapper == "fsdp2"
    return {
        "data_parallel_rank": place // plan.context,
        "data_parallel_size": plan.data_ranks,
        "context_rank": place % plan.context,
        "context_size": plan.context,
        "tensor_rank": rank % plan.tensor,
        "tensor_size": plan.tensor,
        "shard_rank": place if sharded else 0,
        "shard_size": parts if sharded else 1,
        "replica_rank": 0 if sharded else place,
        "replica_size": 1 if sharded else parts,
    }


def _as_found(plan: Plan, launches: list[Launch]) -> list[Launch]:
    """What can be read of it: files may still be written, ranks record nothing, lines be lost."""
    rng = random.Random(f"found {plan.seed}")
    last = launches[-1]
    if plan.ending in ("cut", "torn"):
        furthest = min(len(lines) for lines in last.values())
        for lines in last.values():
            del lines[rng.randint(max(furthest - 4, 1), furthest) :]
    if plan.absent == "some records":
        for launch in launches:
            for lines in launch.values():
                lines[1:] = [record for record in lines[1:] if rng.random() < 0.9]
    if plan.ranks > 1 and plan.absent == "a rank":
        missing = rng.randrange(plan.ranks)
        launches = [{rank: lines for rank, lines in one.items() if rank != missing} for one in launches]
    if plan.ranks > 1 and plan.absent == "all but the first":
        launches = [{0: [one[0][0] | {"recorded_ranks": [0]}, *one[0][1:]]} for one in launches]
    return launches
