"""Writes the ledger of a long run fast: each record differs, and most of its text is made once.

The run is a right one: DistributedDataParallel over four ranks, a gradient scaler with an overflow now
and then, accumulation of four, a warm-up and a cosine. Every field that the hooks write is there.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from accumaudit.ledger.schema import SCHEMA_VERSION

RANKS: Final = 4
ACCUMULATION: Final = 4
POOL: Final = 499
"""Windows whose contents are made; the run goes through them again and again."""

EPOCH: Final = 5000
"""Attempts to an epoch."""

OVERFLOW: Final = 1777
"""Attempts from one overflow to the next."""

START: Final = 1_700_000_000.0
PEAK: Final = 3e-4
Record = dict[str, Any]


def write_many(folder: Path, records: int) -> list[Path]:
    """Write about so many update records, equally many a rank; the files."""
    attempts = records // RANKS
    tokens, pool = _pool()
    files = []
    for rank in range(RANKS):
        path = folder / "rank-00" / f"{rank:05d}.bench.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", buffering=2**20) as file:
            file.write(_text(_run_record(rank, attempts)) + "\n")
            file.writelines(_lines(rank, attempts, tokens, [contents[rank] for contents in pool]))
        files.append(path)
    return files


def _lines(rank: int, attempts: int, tokens: list[int], contents: list[str]) -> Iterator[str]:
    """The updates of one rank, a mark at each end of the data, and the close."""
    seq, update, counted, scale = 1, 0, 0, 65536.0
    inputs = random.Random(rank)
    for attempt in range(1, attempts + 1):
        skipped = attempt % OVERFLOW == 0
        after = scale / 2 if skipped else 65536.0 if attempt % OVERFLOW == 900 else scale
        update += not skipped
        counted += 0 if skipped else tokens[attempt % POOL]
        seq += 1
        head = {"record": "update", "launch": "bench", "rank": rank, "optimizer": 0, "attempt_id": attempt}
        place = {
            "epoch": 1 + (attempt - 1) // EPOCH,
            "time": START + attempt * 0.31 + rank * 0.001,
            "seq": seq,
        }
        data = {"data_digest": [f"{inputs.getrandbits(64):016x}" for _ in range(ACCUMULATION)]}
        counts = {"micro_step_id": attempt * ACCUMULATION, "cumulative_train_tokens": counted}
        own = head | place | counts | data | _step(update, skipped, attempts) | _scaler(skipped, scale, after)
        yield f"{_text(own)[:-1]},{contents[attempt % POOL]}}}\n"
        scale = after
        if attempt % EPOCH == 0 or attempt == attempts:
            seq += 1
            yield _mark("end_of_data", rank, attempt, seq)
    yield _mark("close", rank, attempts, seq + 1, reason="closed", finished=True, leftover_microbatches=0)


def _step(update: int, skipped: bool, planned: int) -> Record:
    """The counters and rates of an attempt."""
    rate, following = (_rate(update - 1 + ahead, planned) for ahead in (int(skipped), 1))
    return {
        "optimizer_update_id": update,
        "reported_global_step": update,
        "optimizer_state_step": update,
        "learning_rate": rate,
        "learning_rates": [rate, rate],
        "weight_decays": [0.1, 0.0],
        "optimizer_step_skipped": skipped,
        "param_digest": None if update % 10 else f"{update * 2654435761:016x}",
        "probe_parameter_changed": not skipped,
        "scheduler_step": update,
        "scheduler_rate": following,
        "ema_updates": update,
        "ema_decay": 0.999,
        "window_seconds": 0.31 + update % POOL * 1e-5,
    }


def _scaler(skipped: bool, scale: float, after: float) -> Record:
    return {
        "events": "ZfbfbfbFBUCXG" if skipped else "ZfbfbfbFBUCOGSE",
        "skip_evidence": "scaler" if skipped else None,
        "loss_scale": [scale] * ACCUMULATION,
        "grad_scale": scale,
        "grad_scale_after": after,
        "probe_unscale": 1 / scale,
    }


def _rate(update: int, planned: int) -> float:
    """A warm-up over a hundredth of the run, then a cosine to a tenth."""
    warmup = max(planned // 100, 1)
    if update < warmup:
        return PEAK * (update + 1) / warmup
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * min(update / planned, 1.0)))


def _pool() -> tuple[list[int], list[list[str]]]:
    """For each window its tokens over all ranks, and for each rank the text of its contents."""
    source = random.Random(0)
    tokens, contents = [], []
    for _ in range(POOL):
        counts = [[source.randrange(200, 2048) for _ in range(ACCUMULATION)] for _ in range(RANKS)]
        tokens.append(sum(map(sum, counts)))
        norm = source.uniform(0.3, 2.0)
        shared = _shared(norm, [source.gauss(0.0, 0.003) for _ in range(64)], tokens[-1])
        contents.append([_text(_own(own, tokens[-1], source) | shared)[1:-1] for own in counts])
    return tokens, contents


def _own(counts: list[int], total: int, source: random.Random) -> Record:
    """What a rank has of a window for itself."""
    weight = RANKS / total
    return {
        "microbatches": ACCUMULATION,
        "discarded_microbatches": 0,
        "accumulation_steps": ACCUMULATION,
        "valid_tokens": [float(n) for n in counts],
        "loss_weight": [n * weight for n in counts],
        "loss_weight_sq": [n * weight**2 for n in counts],
        "weight_uniform": [True] * ACCUMULATION,
        "weight_source": "measured",
        "weight_dtype": "float32",
        "loss_unobserved": 0.0,
        "loss": [source.uniform(2.0, 3.0) for _ in counts],
        "loss_terms": None,
        "samples": [8] * ACCUMULATION,
        "input_positions": [8 * 256] * ACCUMULATION,
        "attended_positions": [min(n + 40, 2048) for n in counts],
        "masked_positions": [0] * ACCUMULATION,
        "local_valid_tokens": float(sum(counts)),
        "global_valid_tokens_in_update": float(total),
    }


def _shared(norm: float, probe: list[float], total: int) -> Record:
    """What all ranks have alike once the gradients are reduced."""
    coefficient = min(1.0, 1.0 / norm)
    clip = {"micro_step": 4, "kind": "norm", "limit": 1.0, "norm": norm, "coefficient": coefficient}
    return {
        "reported_loss": 2.5,
        "grad_norm_before_clip": norm,
        "grad_norm_after_clip": norm * coefficient,
        "grad_norm_before_scope": "global",
        "grad_norm_after_scope": "global",
        "clips": [clip | {"largest": max(map(abs, probe)) * coefficient, "complete": True}],
        "grad_rescale": 1.0,
        "probe_parameter": "module.blocks.11.feed_forward.1.bias",
        "probe_gradient": probe,
        "probe_clip_coefficient": coefficient,
        "probe_nonfinite": False,
        "probe_parameter_moved": False,
    }


def _run_record(rank: int, attempts: int) -> Record:
    axes = {
        f"{axis}_{part}": int(part == "size")
        for axis in ("tensor", "context", "sequence", "pipeline", "shard")
        for part in ("rank", "size")
    }
    return axes | {
        "record": "run",
        "schema": SCHEMA_VERSION,
        "launch": "bench",
        "rank": rank,
        "world_size": RANKS,
        "data_parallel_rank": rank,
        "data_parallel_size": RANKS,
        "replica_rank": rank,
        "replica_size": RANKS,
        "gradient_divisor": float(RANKS),
        "runtime": "torch",
        "versions": {"torch": "2.13.0", "python": "3.11.0"},
        "wrapper": "ddp",
        "precision": "float32, autocast float16",
        "loss_unit": "token",
        "optimizers": [{"index": 0, "class": "AdamW", "name": "optimizer 0"}],
        "accumulation_steps": ACCUMULATION,
        "max_grad_norm": 1.0,
        "scheduler_class": "LambdaLR",
        "planned_updates": attempts,
        "scheduler_steps_per_update": 1.0,
        "scheduler_step_at_attach": 0,
        "started_at": START + rank * 0.01,
    }


def _mark(kind: str, rank: int, attempt: int, seq: int, **fields: Any) -> str:
    head = {"record": "mark", "launch": "bench", "rank": rank, "kind": kind, "attempt_id": attempt}
    place = {"micro_step_id": attempt * ACCUMULATION, "epoch": 1 + (attempt - 1) // EPOCH}
    time = START + attempt * 0.31 + 0.1
    return _text(head | place | {"time": time, "seq": seq} | fields) + "\n"


def _text(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"))
