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
after the forward changes nothing: every micro-step is reduced. The numbers are right, because reducing
twice averages what is already equal on all ranks; what is lost is the communication that no_sync was to
save.
'''
example = '''
Windows of 4 on 8 ranks, 1 GB of gradients: four reductions of 1 GB an update instead of one. With G = 32 it
is 32 instead of one, and the run becomes bound by its network.
'''
fix = '''
Enter no_sync before the forward.

Hand-written loop and DDP: put forward, loss and backward of a micro-step into the same with-block. Trainer,
Accelerate and Lightning cover both; look for an own no_sync. FSDP and DeepSpeed decide at the backward and
are not judged by this rule.
'''
not_a_fault_when = '''
A micro-step whose forward and backward agree is silent. Where the last forward was inside no_sync its
micro-step is not reduced, wherever its backward was: that is ACC501 or ACC502, an error, and this rule is
silent. Under the rule's own pattern the update is right, and a run that does not wait for its network loses
nothing.
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
