/*
code = "ACC405"
name = "shard-local-clip"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no gradient that ranks keep in shards was clipped by a finite limit"
needs = ["events", "wrapper"]
summary = "each rank clipped its shard of the gradient by the norm of that shard"
why = '''
Under sharding a rank holds a part of the gradient. A clip that knows nothing of the other ranks measures
this part alone and scales every shard by a factor of its own. Parameters with large gradients are shortened
more than others, so the update points elsewhere.

A shard's norm is also smaller than the whole one, by about the root of the number of ranks: the limit works
later than it says. The norm that rank 0 logs is that of its own shard.
'''
example = '''
Two ranks hold the shards (3) and (4) of a gradient with a norm of 5. The limit is 3.

    each by itself      (3) and (3), a norm of 4.24, in the direction of (1, 1)
    by the whole norm   (1.8) and (2.4), a norm of 3
'''
fix = '''
Clip by the norm of the whole gradient.

Hand-written loop: Add the squares of the shards' norms over the shard group, take the root, and give it to
  torch.nn.utils.clip_grads_with_norm_.
DDP: Not concerned: every rank holds the whole gradient.
FSDP: FSDP1: call model.clip_grad_norm_(limit) of the root module, on every rank. FSDP2:
  torch.nn.utils.clip_grad_norm_ is right, because its gradients are DTensors.
Trainer: Let it clip, by max_grad_norm.
Accelerate: Use accelerator.clip_grad_norm_ on the prepared model's parameters.
Lightning: Set gradient_clip_val with FSDPStrategy, which clips by the value or through the module.
DeepSpeed: Set gradient_clipping in its configuration.
'''
not_a_fault_when = '''
Norms that are equal on all ranks of a shard group are those of the whole gradient: they pass. Where they
differ, but the root of the sum of their squares is not the norm that the shards had together, something
else was measured: not judged. The same goes for a missing rank, or a record that does not tell the shards.

Where neither a shard nor the whole gradient reached the limit nothing was shortened: a warning. A clip with
an infinite limit only logs the norm.

Clipping each layer or shard by itself on purpose looks the same: ignore the rule there.
'''
references = [
    "pytorch/pytorch#72548",
    "PrimeIntellect-ai/OpenDiloco#6",
]

[params]
spread = 0.001  # by how much the norms of the shards must differ
tolerance = 0.01  # by how much the root of their squares may be off the whole norm
*/
WITH calls AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           replica_rank,
           shard_size,
           contains(word, 'C') AS clips_it,
           CASE WHEN grad_norm_after_scope = 'shard' THEN grad_norm_after_clip END AS left_over,
           -- The last call; an infinite limit is NULL. A rank whose shard is empty has a norm of 0.
           list_filter(
               clips, lambda x: x.kind = 'norm' AND x."limit" IS NOT NULL AND (x.complete OR x.norm = 0)
           )[-1] AS call
    FROM updates
    WHERE applied IS NOT FALSE
      AND (wrapper NOT IN ('none', 'ddp') AND shard_size > 1) IS NOT FALSE
),
clipped AS (
    SELECT *,
           struct_extract(call, 'norm') AS norm,
           struct_extract(call, 'limit') AS clip_limit,
           CASE
               WHEN norm = 0 THEN 1
               ELSE coalesce(struct_extract(call, 'coefficient'), least(1.0, clip_limit / norm))
           END AS coefficient,
           -- What the shard's norm was before the clip, by what is left of it.
           left_over / nullif(coefficient, 0) AS own
    FROM calls
),
groups AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           replica_rank,
           bool_or(clips_it) AS clips_it,
           count(norm) = max(shard_size) AS known,
           min(norm) AS smallest,
           max(norm) AS largest,
           sqrt(sum(norm ** 2)) AS root,
           CASE WHEN count(own) = count(*) THEN sqrt(sum(own ** 2)) END AS whole,
           max(clip_limit) AS clip_limit,
           min(coefficient) AS strongest,
           max(coefficient) AS weakest
    FROM clipped
    GROUP BY ALL
),
judged AS (
    SELECT *,
           CASE
               WHEN NOT known THEN NULL
               WHEN largest <= smallest * (1 + $spread) THEN FALSE
               WHEN abs(root / whole - 1) <= $tolerance THEN TRUE
           END AS fault
    FROM groups
    WHERE clips_it IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN bool_or(fault) THEN TRUE WHEN bool_and(fault IS NOT NULL) THEN FALSE END AS fault,
       CASE WHEN bool_and(strongest >= 1 AND root <= clip_limit) FILTER (WHERE fault) THEN 'warning' ELSE 'error' END
           AS severity,
       max(largest) AS observed,
       max(root) AS expected,
       any_value(
           format(
               'each rank clipped at {:.3g} by the norm of its own shard, {:.3g} to {:.3g}; the whole gradient''s is '
               || '{:.3g}{}',
               clip_limit,
               smallest,
               largest,
               root,
               CASE
                   WHEN strongest < 0.999 OR root > clip_limit
                   THEN format(
                       ': shards were scaled by {:.3g} to {:.3g} where all should be by {:.3g}',
                       strongest,
                       weakest,
                       least(1, clip_limit / root)
                   )
                   ELSE ', and nothing was shortened here'
               END
           )
       ) FILTER (WHERE fault) AS message
FROM judged
GROUP BY ALL
