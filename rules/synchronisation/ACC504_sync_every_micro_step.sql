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
Two ranks accumulate 1 + 1 and 2 + 2.

    reduced once, at the end   (2 + 4) / 2 = 3
    reduced in both            1.5 on both, then (1.5 + 1 + 1.5 + 2) / 2 = 3

Twice the traffic for the same number.
'''
fix = '''
Run all micro-steps but the last of a window under no_sync.

Hand-written loop: Put model.no_sync() around forward and backward where the micro-step is not the last.
DDP: The same.
FSDP: Not concerned: there a reduction in each micro-step saves memory.
Trainer: It does so by itself.
Accelerate: Use accumulate(model), and leave sync_each_batch off.
Lightning: Automatic optimization does so. In manual optimization use no_sync.
DeepSpeed: Not concerned: there a reduction in each micro-step saves memory.
'''
not_a_fault_when = '''
Windows of one micro-step, a single rank, wrappers other than DDP, and stages of a pipeline are silent. Two
forwards before one backward are one micro-step.

The update is right: a note and no more. Where no_sync cannot be used (a static graph, memory, a model whose
forward must be reduced), or the network is idle anyway, ignore the rule.
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
      -- A pipeline's schedule runs forwards ahead, and decides at the backward.
      AND (pipeline_size > 1) IS NOT TRUE
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
