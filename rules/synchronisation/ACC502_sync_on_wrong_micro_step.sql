/*
code = "ACC502"
name = "sync-on-wrong-micro-step"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was made by a wrapper that reduces gradients over several ranks"
needs = ["events", "wrapper"]
explains = ["ACC505", "ACC604", "ACC605"]
summary = "an early micro-step was reduced and the last one was not"
why = '''
A reduction averages what has been accumulated so far. What is added afterwards stays on its rank. Where the
reduced micro-step is not the last of the window, the ranks agree on the first part of the gradient and each
adds the rest of its own. They step on different gradients and drift apart. Under FSDP2 the rest waits for
the next reduction, and counts in another update than its own.

Mostly it is an error by one: step % 4 == 0 is the first micro-step of a window, (step + 1) % 4 == 0 the
last.
'''
example = '''
Two ranks and windows of 4. Rank 0's micro-steps bring gradients of 1, 1, 1, 1 and rank 1's 2, 1, 2, 2.

    reduced in the last    both step on (4 + 7) / 2 = 5.5
    reduced in the first   both have (1 + 2) / 2 = 1.5, then add 3 and 5

In the second case rank 0 steps on 4.5 and rank 1 on 6.5.
'''
fix = '''
Reduce in the last micro-step of the window, counted from 1.

Hand-written loop: Enter no_sync where (step + 1) % accumulation_steps != 0 and the batch is not the last of
  the epoch.
DDP: Put no_sync around forward and backward alike, because DDP decides at the forward.
FSDP: The same with no_sync (FSDP1) or set_requires_gradient_sync (FSDP2).
Trainer: It sets the flag. A loop of your own inside training_step must not.
Accelerate: accumulate(model) does it, also for a short last window.
Lightning: In manual optimization use no_sync with the same condition as the step.
DeepSpeed: Do not combine engine.no_sync() with the engine's own boundary.
'''
not_a_fault_when = '''
The last micro-step is reduced: the update is right, whatever came before (ACC504 speaks of the cost).
Forwards through the wrapper and around it in one micro-step count as reduced. The loop itself reduced the
gradients after the last backward. Gradients that were cleared after the reduced micro-step are gone: only
what is kept counts.

Gradients that something changed in an unknown way after the last backward are not judged. Replicas whose
parameters are averaged instead (local SGD) are not judged where something beside the optimizer moves
parameters or the optimizer's class says so; the rule is silent where digests show that they agree again.
'''
references = [
    "modelscope/FunASR#3472",
    "speechbrain/speechbrain#2010",
    "huggingface/picotron#5",
]
*/
WITH agreements AS (
    SELECT run_id,
           launch,
           optimizer,
           max(attempt_id) AS last_agreement
    FROM windows
    WHERE ranks > 1
      AND param_digests = 1
    GROUP BY ALL
),
words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           -- The forwards of the last micro-step, empty where none was seen.
           regexp_extract(kept, '([^bB]*[FfD][^bB]*)[bB][^FfD]*$', 1) AS last_step,
           CASE WHEN last_step <> '' THEN contains(kept, 'F') AND NOT regexp_matches(last_step, '[FD]') END
               AS early_by_ddp,
           regexp_matches(kept, 'B.*b[^bB]*$') AS early_by_others,
           len(regexp_extract_all(regexp_replace(kept, '^.*F[^bB]*[bB]', ''), '[fD][^bB]*[bB]')) AS after_ddp,
           length(regexp_replace(regexp_replace(kept, '^.*B', ''), '[^b]', '', 'g')) AS after_others,
           regexp_matches(kept, 'A[^bB]*[OX]') AS reduced_by_hand,
           regexp_matches(kept, 'M[^bB]*[OX]') AS changed
    FROM (
        SELECT DISTINCT word
        FROM updates
        WHERE regexp_matches(word, '[bB]')
    )
),
records AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.rank,
           u.microbatches,
           -- It keeps what was not reduced from the optimizer, so that replicas agree all the same.
           u.wrapper = 'fsdp2' AS held_back,
           coalesce(u.pipeline_size > 1, FALSE) AS pipelined,
           words.reduced_by_hand,
           CASE
               -- A pipeline's schedule runs forwards ahead, and decides at the backward.
               WHEN u.wrapper = 'ddp' AND NOT pipelined THEN words.early_by_ddp
               WHEN u.wrapper IS NOT NULL THEN words.early_by_others
           END AS reduced_early,
           if(u.wrapper = 'ddp' AND NOT pipelined, words.after_ddp, words.after_others) AS steps_after,
           -- Changed by no single factor after the last backward: it may have been a reduction.
           u.token_ranks IS NULL OR (u.grad_rescale IS NULL AND words.changed) AS doubtful
    FROM updates AS u
    LEFT JOIN words USING (word)
    WHERE (u.wrapper <> 'none') IS NOT FALSE
      AND (u.token_ranks > 1) IS NOT FALSE
      AND u.applied IS NOT FALSE
      AND (u.word IS NULL OR words.word IS NOT NULL)
),
judged AS (
    SELECT r.*,
           w.probe_spread,
           CASE
               WHEN NOT reduced_early THEN FALSE
               WHEN doubtful OR w.averages_parameters THEN NULL
               WHEN reduced_early
               THEN NOT reduced_by_hand AND coalesce(r.held_back OR a.last_agreement < r.attempt_id, TRUE)
           END AS fault
    FROM records AS r
    LEFT JOIN windows AS w
        ON r.reduced_early
       AND w.run_id = r.run_id
       AND w.launch = r.launch
       AND w.optimizer = r.optimizer
       AND w.attempt_id = r.attempt_id
    LEFT JOIN agreements AS a
        ON r.reduced_early AND a.run_id = r.run_id AND a.launch = r.launch AND a.optimizer = r.optimizer
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       fault,
       probe_spread AS observed,
       NULL::DOUBLE AS expected,
       CASE
           WHEN fault
           THEN format(
               'the last {} of {} micro-steps of rank {} came after the reduction: {}{}',
               steps_after,
               microbatches,
               rank,
               CASE
                   WHEN held_back THEN 'their gradients wait for the next one, and enter another update'
                   ELSE 'each rank adds its own gradient of them'
               END,
               CASE
                   WHEN probe_spread > 0
                   THEN format('; slices of the gradient differ by {:.3g} % between ranks', 100 * probe_spread)
                   ELSE ''
               END
           )
       END AS message
FROM judged
