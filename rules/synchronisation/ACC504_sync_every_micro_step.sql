/*
code = "ACC504"
name = "sync-every-micro-step"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no window of several micro-steps ran under DDP on several ranks"
needs = ["events", "wrapper"]
summary = "gradients were reduced in micro-steps before the last one, which costs communication"
why = '''
One reduction in the last micro-step of a window is enough: it reduces everything that was accumulated.
Where earlier micro-steps are reduced too, the result is the same up to rounding, and the communication is
multiplied.
'''
example = '''
Two ranks accumulate 1 + 1 and 2 + 2. Reduced once at the end: (2 + 4) / 2 = 3. Reduced in both micro-steps:
1.5 on both after the first, then 1.5 + 1 and 1.5 + 2, and (2.5 + 3.5) / 2 = 3 again. Twice the traffic for
the same number.
'''
fix = '''
Run all micro-steps but the last of a window under no_sync.

Hand-written loop and DDP: with model.no_sync() around forward and backward where the micro-step is not the
last. Trainer: it does so by itself. Accelerate: use accumulate(model), and leave sync_each_batch off.
Lightning: automatic optimization does so; in manual optimization use no_sync. FSDP and DeepSpeed are not
judged: there a reduction in each micro-step saves memory.
'''
not_a_fault_when = '''
Windows of one micro-step, a single rank, and wrappers other than DDP are silent. Two forwards before one
backward are one micro-step. Whoever cannot use no_sync (a static graph, memory, a model whose forward must
be reduced) or whose network is idle anyway may ignore the rule: the update is right.
'''
references = [
    "karpathy/nanochat#33",
    "huggingface/accelerate#2790",
]
*/
WITH reductions AS (
    SELECT *,
           regexp_replace(word, '^.*Z', '') AS kept,
           regexp_extract(kept, '([^bB]*[FfD][^bB]*)[bB][^FfD]*$', 1) AS last_step,
           len(regexp_extract_all(kept, 'F[^bB]*B')) AS reduced
    FROM windows
    WHERE (wrapper = 'ddp') IS NOT FALSE
      AND (token_ranks > 1) IS NOT FALSE
      AND (microbatches > 1) IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN wrapper IS NOT NULL AND token_ranks IS NOT NULL AND last_step <> ''
           THEN reduced > 1 AND contains(last_step, 'F')
       END AS fault,
       reduced::DOUBLE AS observed,
       1.0 AS expected,
       format(
           '{} of {} micro-steps were reduced where the last alone is enough: right, at {} times the communication',
           reduced,
           microbatches,
           reduced
       ) AS message
FROM reductions
