"""Ledgers made by hand: every default is a healthy run, so that a test states only what differs.

    write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": 0.5}], ranks=2)

Each dict of `updates` is one attempt of every rank. Besides the record's own fields it knows

- `skipped`: the attempt left the parameters as they were,
- `total_weight`: scales the weights that are filled in,
- `on`: {rank: fields of this rank alone, or None where its record is missing}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accumaudit.ledger.schema import SCHEMA_VERSION
from accumaudit.ledger.sums import without_lists

Record = dict[str, Any]
"""One line of a ledger."""

START: Final = 1_700_000_000.0
"""When the first launch starts."""

MARK_DEFAULTS: Final = {"optimizer": None, "attempt_id": None, "micro_step_id": None, "epoch": 1}


def write_run(
    folder: Path,
    updates: Iterable[Mapping[str, Any]] | int = 3,
    ranks: int = 2,
    *,
    marks: Iterable[Mapping[str, Any]] = (),
    close: bool = True,
    launch: str = "aaaa",
    first_update: int = 1,
    every: int = 1,
    microbatch_detail: str = "full",
    **run_fields: Any,
) -> Path:
    """Write one launch of `ranks` ranks below `folder`; call again with another `launch` to resume.

    Args:
        folder: the run's folder.
        updates: the attempts, or how many healthy ones.
        ranks: number of processes.
        marks: marks after the last attempt: {"kind": "checkpoint", "name": "last.pt", "rank": 0}.
        close: end with the mark of a loop that ran to its end.
        launch: the token of the launch.
        first_update: the number of the first update.
        every: attempts to one record; the others are left out.
        microbatch_detail: "sums" puts `window_sums` in place of the lists.
        run_fields: fields of the run records, and `on` as in an attempt.

    Returns:
        The folder.
    """
    records = build_run(
        updates,
        ranks,
        marks=marks,
        close=close,
        launch=launch,
        first_update=first_update,
        every=every,
        microbatch_detail=microbatch_detail,
        **run_fields,
    )
    return write_records(folder, records, launch)


def write_records(folder: Path, records: Mapping[int, Sequence[Record]], launch: str = "aaaa") -> Path:
    """Write {rank: records} where the hooks would, after what is there already."""
    for rank, lines in records.items():
        path = folder / f"rank-{rank // 1000:02d}" / f"{rank:05d}.{launch}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(to_line(record) for record in lines)
    return folder


def to_line(record: Record) -> str:
    """One record as the hooks write it: non-finite floats are strings."""
    return json.dumps(_finite(record), allow_nan=False) + "\n"


def build_run(
    updates: Iterable[Mapping[str, Any]] | int = 3,
    ranks: int = 2,
    *,
    marks: Iterable[Mapping[str, Any]] = (),
    close: bool = True,
    launch: str = "aaaa",
    first_update: int = 1,
    every: int = 1,
    microbatch_detail: str = "full",
    **run_fields: Any,
) -> dict[int, list[Record]]:
    """Give the records of one launch, by rank, before they are written; arguments as in `write_run`."""
    if every != 1:
        run_fields = {"recorded_every": every, **run_fields}
    attempts: list[Mapping[str, Any]] = [{}] * updates if isinstance(updates, int) else list(updates)
    runs = [_run_record(rank, ranks, launch, run_fields) for rank in range(ranks)]
    records: dict[int, list[Record]] = {rank: [runs[rank]] for rank in range(ranks)}
    counters = _Counters(first_update)
    for attempt in attempts:
        for rank, record in enumerate(_attempt(attempt, runs, counters)):
            if record is not None and (record["attempt_id"] - 1) % every == 0:
                full = microbatch_detail == "full"
                records[rank].append(record if full else without_lists({"data_digest": None, **record}))
    finish = [{"kind": "close", "reason": "closed", "finished": True, "leftover_microbatches": 0}]
    for mark in [*marks, *(finish if close else [])]:
        for rank in _ranks_of(mark, ranks):
            records[rank].append(_mark(mark, rank, launch, counters))
    for lines in records.values():
        for seq, record in enumerate(lines[1:], 2):
            record.setdefault("seq", seq)
    return records


class _Counters:
    """What runs on from attempt to attempt, equal on all ranks and optimizers."""

    def __init__(self, first_update: int) -> None:
        self.attempt = 0
        self.update = first_update - 1
        self.micro_step = 0
        self.tokens = 0.0
        self.time = START + 1.0


def _run_record(rank: int, ranks: int, launch: str, given: Mapping[str, Any]) -> Record:
    world = given.get("world_size", ranks)
    record: Record = {
        "record": "run",
        "schema": SCHEMA_VERSION,
        "launch": launch,
        "rank": rank,
        "world_size": world,
        "data_parallel_rank": rank,
        "data_parallel_size": world,
        "replica_rank": rank,
        "replica_size": world,
        "shard_rank": 0,
        "shard_size": 1,
        "gradient_divisor": float(world),
        "runtime": "torch",
        "versions": {"torch": "2.13.0", "python": "3.11.0"},
        "wrapper": "ddp" if world > 1 else "none",
        "cpu_offload": False,
        "precision": "float32",
        "loss_unit": "token",
        "optimizers": [{"index": 0, "class": "AdamW", "name": None}],
        "accumulation_steps": 4,
        "max_grad_norm": None,
        "scheduler_class": "LambdaLR",
        "schedule_unit": "updates",
        "scheduler_steps_per_update": 1.0,
        "optimizer_state_step_at_attach": 0,
        "scheduler_step_at_attach": 0,
        "started_at": START + rank * 0.01,
    }
    for axis in ("tensor", "context", "sequence", "pipeline"):
        record |= {f"{axis}_rank": 0, f"{axis}_size": 1}
    own: Record = given.get("on", {}).get(rank, {})
    return record | {name: value for name, value in given.items() if name != "on"} | own


def _attempt(given: Mapping[str, Any], runs: Sequence[Record], counters: _Counters) -> list[Record | None]:
    """The records of one attempt, one a rank; weights are filled in so that T is total_weight."""
    counters.attempt += 1
    counters.update += not given.get("skipped", False)
    counters.time += 1.0
    own = [dict(given) | (given.get("on", {}).get(run["rank"]) or {}) for run in runs]
    tokens = [_tokens(fields, run) for fields, run in zip(own, runs, strict=True)]
    counted = [row for row, run in zip(tokens, runs, strict=True) if _has_own_tokens(run)]
    total = sum(n for row in counted for n in row if n is not None)
    counters.tokens += total if not given.get("skipped", False) else 0.0
    micro_steps = own[0].get("microbatches")
    counters.micro_step += len(tokens[0]) if micro_steps is None else micro_steps
    counters.micro_step += given.get("discarded_microbatches") or 0
    records: list[Record | None] = []
    for fields, run, n in zip(own, runs, tokens, strict=True):
        if given.get("on", {}).get(run["rank"], {}) is None:
            records.append(None)
            continue
        record = _update_record(fields, run, n, total, counters)
        special = ("skipped", "total_weight", "on")
        records.append(record | {name: value for name, value in fields.items() if name not in special})
    return records


def _has_own_tokens(run: Record) -> bool:
    return bool(run["tensor_rank"] == 0 and run["pipeline_rank"] == run["pipeline_size"] - 1)


def _tokens(fields: Mapping[str, Any], run: Record) -> list[float | None]:
    if fields.get("valid_tokens") is not None:
        return list(fields["valid_tokens"])
    count = fields.get("microbatches")
    if count is None:
        count = fields.get("accumulation_steps") or run["accumulation_steps"] or 4
    return [100.0 + 10.0 * step + 3.0 * run["rank"] for step in range(count)]


def _update_record(
    fields: Mapping[str, Any], run: Record, n: Sequence[float | None], total: float, counters: _Counters
) -> Record:
    skipped = fields.get("skipped", False)
    divisor = run["gradient_divisor"] or 1.0
    weight = fields.get("total_weight", 1.0) * divisor / total if total else 0.0
    count = len(n)
    return {
        "record": "update",
        "launch": run["launch"],
        "rank": run["rank"],
        "optimizer": 0,
        "attempt_id": counters.attempt,
        "optimizer_update_id": counters.update,
        "micro_step_id": counters.micro_step,
        "epoch": 1,
        "time": counters.time + run["rank"] * 0.001,
        "window_seconds": 1.0,
        "microbatches": count,
        "discarded_microbatches": 0,
        "accumulation_steps": run["accumulation_steps"],
        "events": events(count, reduced=run["wrapper"] != "none", skipped=skipped),
        "weight_source": "measured",
        "weight_dtype": "float32",
        "loss_unobserved": 0.0,
        "local_valid_tokens": sum(x for x in n if x is not None),
        "global_valid_tokens_in_update": total,
        "cumulative_train_tokens": counters.tokens,
        "reported_global_step": counters.update,
        "grad_rescale": 1.0,
        "optimizer_step_skipped": skipped,
        "skip_evidence": "state_step" if skipped else None,
        "optimizer_state_step": counters.update,
        "scheduler_step": counters.update,
        **_lists(n, weight),
        **_rates(counters.update, skipped),
        **_gradients(),
    }


def _lists(n: Sequence[float | None], weight: float) -> Record:
    count = len(n)
    return {
        "valid_tokens": list(n),
        "loss_weight": [None if x is None else x * weight for x in n],
        "loss_weight_sq": [None if x is None else x * weight**2 for x in n],
        "weight_uniform": [True] * count,
        "loss": [None if not x else 2.0 for x in n],
        "loss_scale": [1.0] * count,
        "samples": [4] * count,
        "input_positions": [256] * count,
        "attended_positions": [200] * count,
        "masked_positions": [0] * count,
    }


def _rates(update: int, skipped: bool) -> Record:
    """The rate of this attempt, and the one that the scheduler then gives the next: a skip leaves it."""
    rate, following = (1e-3 / (1 + 0.01 * (update + ahead)) for ahead in (int(skipped), 1))
    return {
        "learning_rate": rate,
        "learning_rates": [rate],
        "weight_decays": [0.01],
        "scheduler_rate": following,
    }


def _gradients() -> Record:
    return {
        "grad_norm_after_clip": 0.5,
        "grad_norm_after_scope": "global",
        "probe_parameter": "head.weight",
        "probe_gradient": [0.01 * step for step in range(1, 9)],
        "probe_nonfinite": False,
        "probe_parameter_changed": True,
    }


def events(microbatches: int, *, reduced: bool = True, skipped: bool = False, scheduler: bool = True) -> str:
    """The word of a right window: gradients are reduced in the last micro-step alone."""
    inner = "fb" if reduced else "FB"
    steps = inner * max(microbatches - 1, 0) + ("FB" if microbatches else "")
    return "Z" + steps + ("X" if skipped else "O") + ("S" if scheduler and not skipped else "")


def _with_sums(record: Record) -> Record:
    from accumaudit.ledger.sums import without_lists

    return without_lists(record)


def _ranks_of(mark: Mapping[str, Any], ranks: int) -> Sequence[int]:
    return [mark["rank"]] if "rank" in mark else range(ranks)


def _mark(given: Mapping[str, Any], rank: int, launch: str, counters: _Counters) -> Record:
    head = {"record": "mark", "launch": launch, "rank": rank}
    time = counters.time + 0.5
    counted = {"attempt_id": counters.attempt, "micro_step_id": counters.micro_step, "time": time}
    return head | MARK_DEFAULTS | counted | dict(given)


def _finite(value: Any) -> Any:
    """Non-finite floats as the strings of the record's contract."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
