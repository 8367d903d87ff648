"""Writes ledgers of very long runs as Parquet, with sums in place of the lists, by SQL alone.

A run over two launches: a warm-up and a cosine, a rate that is twice as high from the resume on, an
overflow now and then, one spike of the norm, a loss that stays high in the last part. Of several ranks one
loses records for a while, and the parameters of another differ from the middle on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accumaudit.ledger.schema import SCHEMA_VERSION

ACCUMULATION: Final = 4
OVERFLOW: Final = 1777
"""Attempts from one overflow to the next."""

START: Final = 1_700_000_000.0
PROBE: Final = 64
"""Elements of the probe's slice."""

_RATE: Final = """
CREATE TEMP MACRO rate_of(n) AS
    3e-4 * least((n + 1) / ({updates} / 100), 0.55 + 0.45 * cos(pi() * least(n / {updates}, 1)))
"""
_RUNS: Final = """
SELECT 'run' AS record, {schema}::BIGINT AS schema, 'launch' || number AS launch, {rank}::BIGINT AS rank,
       {ranks}::BIGINT AS world_size, {rank}::BIGINT AS data_parallel_rank,
       {ranks}::BIGINT AS data_parallel_size, {rank}::BIGINT AS replica_rank, {ranks}::BIGINT AS replica_size,
       0::BIGINT AS shard_rank, 1::BIGINT AS shard_size, 0::BIGINT AS tensor_rank,
       1::BIGINT AS tensor_size, 0::BIGINT AS context_rank,
       1::BIGINT AS context_size, 0::BIGINT AS sequence_rank, 1::BIGINT AS sequence_size,
       0::BIGINT AS pipeline_rank, 1::BIGINT AS pipeline_size, {ranks}::DOUBLE AS gradient_divisor,
       'torch' AS runtime, '{wrapper}' AS wrapper, 'float32, autocast float16' AS precision,
       'token' AS loss_unit, [{{'index': 0, 'class': 'AdamW', 'name': NULL::VARCHAR}}] AS optimizers,
       {accumulation}::BIGINT AS accumulation_steps, 1.0::DOUBLE AS max_grad_norm,
       'LambdaLR' AS scheduler_class, {updates}::BIGINT AS planned_updates,
       1.0::DOUBLE AS scheduler_steps_per_update,
       if(number = 1, 0, {resumed}) AS optimizer_state_step_at_attach,
       if(number = 1, 0, {resumed}) AS scheduler_step_at_attach,
       if(number = 1, NULL, {resumed}) AS resumed_from_update,
       {start} + (number - 1) * {half} * 0.31 + {rank} * 0.001 AS started_at
FROM (SELECT unnest([1, 2]) AS number) WHERE number = {launch}
"""
_UPDATES: Final = """
WITH counted AS (
    SELECT k, k - k // {overflow} AS update, k % {overflow} = 0 AS skipped, k / {attempts} AS progress,
           (hash(k) % 1000000) / 1e6 AS noise, if({launch} = 1, 1, 2) AS factor
    FROM range({first}, {last} + 1) t(k)
    WHERE {rank} <> {silent} OR k NOT BETWEEN {attempts} * 3 // 10 AND {attempts} * 3 // 10 + 500
),
drawn AS (
    SELECT *, 800 + (hash(k) % 400)::DOUBLE + {rank} AS n,
           {ranks} * (800 + (hash(k) % 400)::DOUBLE) + {ranks} * ({ranks} - 1) / 2 AS total,
           factor * rate_of(update) AS rate, factor * rate_of(update + 1) AS next_rate,
           2 + 8 * exp(-3 * progress) + 0.1 * noise
               + if(progress > 0.9, 6, 0) AS mean_loss,
           if(k = {spike}, 50, 0.3 + 0.3 * noise) AS norm
    FROM counted
)
SELECT 'update' AS record, 'launch{launch}' AS launch, {rank}::BIGINT AS rank, 0::BIGINT AS optimizer,
       k - {first} + 1 AS attempt_id, update AS optimizer_update_id, k * {accumulation} AS micro_step_id,
       1 + k // 10000 AS epoch, {start} + k * 0.31 + {rank} * 0.001 AS time, 0.31 AS window_seconds,
       k - {first} + 2 AS seq, {accumulation}::BIGINT AS microbatches, 0::BIGINT AS discarded_microbatches,
       {accumulation}::BIGINT AS accumulation_steps,
       if(skipped, '{skipped_word}', '{word}') AS events,
       'measured' AS weight_source, 'float32' AS weight_dtype, 0.0::DOUBLE AS loss_unobserved,
       {{'valid_tokens': n, 'valid_tokens_min': n / 4 - 20, 'valid_tokens_max': n / 4 + 20,
        'loss_weight': n * {ranks} / total, 'loss_weight_min': (n / 4 - 20) * {ranks} / total,
        'loss_weight_max': (n / 4 + 20) * {ranks} / total, 'loss_weight_sq': n * ({ranks} / total) ** 2,
        'weight_uniform': true, 'token_weight_min': {ranks} / total, 'token_weight_max': {ranks} / total,
        'loss': mean_loss + 0.01 * {rank}, 'loss_scale_min': 65536.0::DOUBLE,
        'loss_scale_max': 65536.0::DOUBLE, 'samples': 32::BIGINT, 'input_positions': 2048::BIGINT,
        'attended_positions': n::BIGINT + 40,
        'masked_positions': 0::BIGINT}} AS window_sums,
       n AS local_valid_tokens, total AS global_valid_tokens_in_update, update AS reported_global_step,
       mean_loss AS reported_loss, rate AS learning_rate, [rate, rate] AS learning_rates,
       [0.1, 0.0]::DOUBLE[] AS weight_decays, skipped AS optimizer_step_skipped,
       if(skipped, 'scaler', NULL) AS skip_evidence, 65536.0::DOUBLE AS grad_scale,
       if(skipped, 32768.0, 65536.0)::DOUBLE AS grad_scale_after,
       norm AS grad_norm_before_clip, least(norm, 1.0) AS grad_norm_after_clip,
       'global' AS grad_norm_before_scope, 'global' AS grad_norm_after_scope,
       [{{'micro_step': {accumulation}::BIGINT, 'kind': 'norm', 'limit': 1.0::DOUBLE, 'norm': norm,
         'coefficient': least(1.0, 1 / norm), 'largest': 0.01::DOUBLE, 'complete': true}}] AS clips,
       1.0::DOUBLE AS grad_rescale, update AS optimizer_state_step,
       if(update % 10 = 0 AND NOT skipped,
          printf('%016x', hash(update, {rank} = {drifting} AND progress >= 0.5) % 9007199254740992), NULL)
           AS param_digest,
       'blocks.11.bias' AS probe_parameter,
       list_transform(range({probe}), lambda i: (noise - 0.5) * norm / (i + 1))::FLOAT[] AS probe_gradient,
       1 / 65536.0::DOUBLE AS probe_unscale, least(1.0, 1 / norm) AS probe_clip_coefficient,
       false AS probe_nonfinite, NOT skipped AS probe_parameter_changed, false AS probe_parameter_moved,
       update AS scheduler_step, next_rate AS scheduler_rate
FROM drawn ORDER BY k
"""
_MARKS: Final = """
SELECT 'mark' AS record, 'launch{launch}' AS launch, {rank}::BIGINT AS rank, kind, name,
       {last} - {first} + 1 AS attempt_id, {last} * {accumulation} AS micro_step_id,
       {start} + {last} * 0.31 + 0.1 AS time, reason, finished, 0::BIGINT AS leftover_microbatches
FROM (VALUES ('checkpoint', 'step-{last_update}', NULL, NULL), ('close', NULL, 'closed', {launch} = 2))
    t(kind, name, reason, finished)
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How long a run is, and over how many ranks."""

    attempts: int
    ranks: int


def write_long(folder: Path, size: Size) -> None:
    """Write one file for each rank and launch."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(_RATE.format(updates=size.attempts - size.attempts // OVERFLOW))
        for rank in range(size.ranks):
            place = folder / "rank-00"
            place.mkdir(parents=True, exist_ok=True)
            for launch in (1, 2):
                values = _values(size, rank, launch)
                query = " UNION ALL BY NAME ".join(
                    f"SELECT * FROM ({part.format(**values)})" for part in (_RUNS, _UPDATES, _MARKS)
                )
                file = place / f"{rank:05d}.launch{launch}.parquet"
                connection.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet, COMPRESSION zstd)")


def spike_of(size: Size) -> int:
    """The attempt with the spike of the norm, over both launches."""
    return size.attempts // 3


def _values(size: Size, rank: int, launch: int) -> dict[str, object]:
    half = size.attempts // 2
    last = half if launch == 1 else size.attempts
    several = size.ranks > 1
    word = "ZfbfbfbFBUC" if several else "ZFBFBFBFBUC"
    return {
        "schema": SCHEMA_VERSION,
        "rank": rank,
        "ranks": size.ranks,
        "wrapper": "ddp" if several else "none",
        "accumulation": ACCUMULATION,
        "attempts": size.attempts,
        "updates": size.attempts - size.attempts // OVERFLOW,
        "half": half,
        "resumed": half - half // OVERFLOW,
        "start": START,
        "launch": launch,
        "first": 1 if launch == 1 else half + 1,
        "last": last,
        "last_update": last - last // OVERFLOW,
        "overflow": OVERFLOW,
        "spike": spike_of(size),
        "silent": size.ranks // 8 if several else -1,
        "drifting": size.ranks // 4 if several else -1,
        "skipped_word": f"{word}XG",
        "word": f"{word}OGS",
        "probe": PROBE,
    }
