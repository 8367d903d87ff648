/*
code = "ACC503"
name = "no-sync-around-backward-only"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was made under DDP on several ranks"
needs = ["events", "wrapper"]
summary = "no_sync covers the backward and not the forward, so DDP reduces all the same"
why = '''
DDP decides at the forward whether the gradients of its backward will be reduced. A no_sync that is entered
after the forward changes nothing: every micro-step is reduced.

The numbers are right, because reducing again averages what is already equal on all ranks. What is lost is
the communication that no_sync was to save.
'''
example = '''
Windows of 4 on 8 ranks with 1 GB of gradients: four reductions of 1 GB an update instead of one. With
windows of 32 it is 32 instead of one, and the run becomes bound by its network.
'''
fix = '''
Enter no_sync before the forward.

Hand-written loop: Put forward, loss and backward of a micro-step into the same with-block.
DDP: The same: this is DDP's own habit.
FSDP: Not concerned: it decides at the backward.
Trainer: It covers both. Look for a no_sync of your own.
Accelerate: accumulate(model) covers both. Look for a no_sync of your own.
Lightning: It covers both. In manual optimization enter no_sync before the forward.
DeepSpeed: Not concerned: it decides at the backward.
'''
not_a_fault_when = '''
Forward and backward of each micro-step agree. Where the last forward was inside no_sync its micro-step is
not reduced, wherever its backward was: that is ACC501 or ACC502, an error, and this rule is silent.

Stages of a pipeline are left out: their schedule decides at the backward.

The update is right, and a run that does not wait for its network loses nothing: a note and no more.
'''
references = [
    "KellerJordan/modded-nanogpt#31",
    "huggingface/accelerate#1726",
]
*/
WITH reductions AS (
    SELECT *,
           -- Where the last micro-step is not reduced the update is wrong, and other rules say so.
           regexp_matches(regexp_replace(word, '^.*Z', ''), 'F[^bB]*[bB][^FfD]*$') AS last_reduced,
           len(regexp_extract_all(regexp_replace(word, '^.*Z', ''), 'F[^bB]*b')) AS misplaced,
           len(regexp_extract_all(regexp_replace(word, '^.*Z', ''), 'F[^bB]*[bB]')) AS reduced
    FROM windows
    WHERE (wrapper = 'ddp') IS NOT FALSE
      -- A pipeline's schedule runs forwards ahead, and decides at the backward.
      AND (pipeline_size > 1) IS NOT TRUE
      AND (token_ranks > 1) IS NOT FALSE
      AND (microbatches > 0) IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN wrapper IS NOT NULL AND token_ranks IS NOT NULL THEN misplaced > 0 AND last_reduced
       END AS fault,
       reduced::DOUBLE AS observed,
       1.0 AS expected,
       format(
           'no_sync was entered after the forward in {} of {} micro-steps, so they were reduced all the same: '
           || 'right, with {} reduction{} for this update',
           misplaced,
           microbatches,
           reduced,
           CASE WHEN reduced = 1 THEN '' ELSE 's' END
       ) AS message
FROM reductions
