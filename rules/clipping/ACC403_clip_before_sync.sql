/*
code = "ACC403"
name = "clip-before-sync"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no gradient that ranks share was clipped by a finite limit"
needs = ["events", "wrapper"]
explains = ["ACC604"]
summary = "each rank clipped its own gradients before they were reduced"
why = '''
The gradient of the update is the average over the ranks. Where each rank clips its own part first, a rank
with a large gradient is shortened more than the others, by a factor of its own. Its tokens weigh less, and
the average points elsewhere.

A part of few tokens is noisier and longer than the whole, so more is clipped than the limit says. Nothing
that was logged bounds the average that is applied.
'''
example = '''
Two ranks with gradients (4, 0) and (0, 1), and a limit of 1.

    clipped first   (1, 0) and (0, 1), whose average is (0.5, 0.5)
    reduced first   the average (2, 0.5) of norm 2.06, clipped to (0.97, 0.24)

The first rank's tokens count for half of what they should.
'''
fix = '''
Reduce the gradients, then clip, then step.

Hand-written loop: all_reduce the gradients after the last backward and clip what it leaves. An optimizer
  that reduces inside step() must finish that first (Horovod: optimizer.synchronize(), clip, then step
  inside optimizer.skip_synchronize()).
DDP: The reduction runs inside the last backward: clip after that.
FSDP: The same, with model.clip_grad_norm_ under FSDP1 or clip_grad_norm_ under FSDP2.
Trainer: Let it clip, by max_grad_norm.
Accelerate: Clip with accelerator.clip_grad_norm_ where accelerator.sync_gradients is true.
Lightning: Let it clip, by gradient_clip_val.
DeepSpeed: Set gradient_clipping in its configuration.
'''
not_a_fault_when = '''
Gradients that were reduced before the clip may be averaged again without harm. A single rank has nothing to
reduce. A clip with an infinite limit only logs the norm.

A clip that reached its limit on no rank shortened nothing: a warning.

Where the wrapper is unknown, or shards gradients while the loop reduces them too, it cannot be told whether
they were reduced at the clip: not judged.

Bounding each rank's part on purpose (private or robust averages) looks the same: ignore the rule there.
'''
references = [
    "mindspore-lab/mindcv#603",
    "determined-ai/determined#602",
    "horovod/horovod#1346",
    "NVIDIA/Megatron-LM#1998",
]
*/
-- In each word a backward that was not reduced, a clip, and the reduction after it; who reduces tells which
-- backwards those are.
WITH words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           regexp_matches(kept, '[bB][^A]*C[^bB]*A') AS before_the_loops,
           CASE
               WHEN NOT contains(kept, 'C') THEN FALSE
               WHEN regexp_matches(kept, '[FfD]')
               THEN regexp_matches(kept, '(^|[bB])[^FbB]*[fD][^FbB]*[bB][^FfDA]*C([^bB]*A|.*F[^bB]*[bB])')
           END AS before_ddps,
           CASE
               WHEN regexp_matches(kept, 'b[^bBA]*C([^bB]*A|.*B)') THEN TRUE
               WHEN NOT regexp_matches(kept, 'C.*A') THEN FALSE
           END AS before_the_shards
    FROM (
        SELECT DISTINCT word
        FROM updates
        WHERE contains(word, 'C')
    )
),
clipped AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           token_ranks,
           CASE
               WHEN token_ranks IS NULL THEN NULL
               WHEN wrapper = 'none' THEN before_the_loops
               WHEN wrapper = 'ddp' THEN before_ddps
               WHEN wrapper IS NOT NULL THEN before_the_shards
           END AS local_clip,
           CASE
               WHEN local_clip
               THEN list_filter(
                   clips,
                   -- An infinite limit is NULL: the norm was logged.
                   lambda x: x."limit" IS NOT NULL AND (x.micro_step > discarded_microbatches) IS NOT FALSE
               )
           END AS calls
    FROM updates
    LEFT JOIN words USING (word)
    WHERE contains(word, 'C') IS NOT FALSE
      AND applied IS NOT FALSE
      AND (token_ranks > 1) IS NOT FALSE
      AND (wrapper <> 'none' OR contains(word, 'A')) IS NOT FALSE
),
told AS (
    SELECT *,
           list_min(
               list_transform(
                   calls,
                   lambda x: coalesce(x.coefficient, if(x.norm > x."limit", x."limit" / x.norm, NULL))
               )
           ) AS smallest,
           -- Every call is known to have left the gradients alone.
           len(calls) > 0
               AND len(
                   list_filter(calls, lambda x: (x.kind = 'norm' AND x.norm <= x."limit") IS NOT TRUE)
               ) = 0 AS idle
    FROM clipped
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       local_clip AS fault,
       CASE WHEN idle THEN 'warning' ELSE 'error' END AS severity,
       smallest AS observed,
       1.0 AS expected,
       CASE
           WHEN local_clip
           THEN format(
               'rank {} clipped its own gradients before they were reduced over {} ranks{}',
               rank,
               token_ranks,
               CASE
                   WHEN idle THEN '; no call reached its limit here'
                   WHEN smallest < 1 THEN format(': they were scaled by {:.3g} first', smallest)
                   ELSE ''
               END
           )
       END AS message
FROM told
