/*
code = "ACC501"
name = "update-without-sync"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was made by a wrapper that reduces gradients over several ranks"
needs = ["events", "wrapper"]
explains = ["ACC203", "ACC505", "ACC604", "ACC605"]
summary = "the optimizer stepped on gradients that no backward had reduced over the ranks"
why = '''
DDP reduces gradients only in the backward of a forward that went through its wrapper while synchronisation
was on. Where every micro-step of a window runs under no_sync, or the last forward goes to the inner module,
each rank steps on its own gradients. The replicas drift apart from this update on: several separate
trainings, each on its share of the data, of which one is saved.

Nothing fails, and rank 0's loss falls. FSDP, engines and the schedules of pipelines decide at the backward
instead. Under FSDP2 the optimizer then sees no gradient at all, and the model stays as it is.
'''
example = '''
Two ranks gather gradients of 5 and 3 over a window. Reduced, both step on their average, 4. With all of the
window under no_sync, rank 0 steps on 5 and rank 1 on 3. At a rate of 0.1 their parameters differ by 0.2
after one update, and no later reduction takes that back.
'''
fix = '''
Let the last micro-step of each window be reduced: forward and backward outside no_sync, through the
wrapper.

Hand-written loop: Use no_sync for all micro-steps but the last of a window, a short last window included.
  Without a wrapper, all_reduce the gradients before the step.
DDP: Call the wrapper, ddp(x), and never ddp.module(x), for a forward that is trained.
FSDP: Leave no_sync, or call set_requires_gradient_sync(True), before the last micro-step.
Trainer: A training_step of your own must call the model that it is given.
Accelerate: Use accumulate(model) with the prepared model.
Lightning: Call self(...) or the wrapped module in training_step. In manual optimization leave no_sync
  before the last backward.
DeepSpeed: End engine.no_sync() before the boundary, and let the engine's own counter decide where it is.
'''
not_a_fault_when = '''
The loop itself reduced the gradients after the last backward; there is a single rank; the attempt was
skipped.

Not judged: a window whose forward was not seen, and gradients that something changed in an unknown way
after the last backward.

Local SGD averages the parameters later instead of the gradients now. Where something beside the optimizer
moves parameters between the steps, or the optimizer's class says so, ACC605 alone speaks. The rule is
silent too where digests show that the replicas agree again at this update or a later one. A run that has
not averaged yet cannot be told from the fault.

Old releases of PyTorch reduced forwards of the inner module too: compare the gradients over the ranks
there.
'''
references = [
    "jingyaogong/minimind#853",
    "bytetriper/RAE#40",
    "huggingface/picotron#5",
    "verl-project/verl#7493",
    "k2-fsa/icefall#226",
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
           contains(last_step, 'D') AND NOT contains(last_step, 'F') AS bypassed,
           CASE WHEN last_step <> '' THEN bypassed OR NOT contains(kept, 'F') END AS unreduced_by_ddp,
           NOT contains(kept, 'B') AS unreduced_by_others,
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
           held_back AND u.probe_gradient IS NULL AS nothing_seen,
           words.bypassed,
           words.reduced_by_hand,
           CASE
               -- A pipeline's schedule runs forwards ahead, and decides at the backward.
               WHEN u.wrapper = 'ddp' AND (u.pipeline_size > 1) IS NOT TRUE THEN words.unreduced_by_ddp
               WHEN u.wrapper IS NOT NULL THEN words.unreduced_by_others
           END AS unreduced,
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
               WHEN NOT unreduced THEN FALSE
               WHEN doubtful OR w.averages_parameters THEN NULL
               WHEN unreduced
               THEN NOT reduced_by_hand AND coalesce(r.held_back OR a.last_agreement < r.attempt_id, TRUE)
           END AS fault
    FROM records AS r
    LEFT JOIN windows AS w
        ON r.unreduced
       AND w.run_id = r.run_id
       AND w.launch = r.launch
       AND w.optimizer = r.optimizer
       AND w.attempt_id = r.attempt_id
    LEFT JOIN agreements AS a
        ON r.unreduced AND a.run_id = r.run_id AND a.launch = r.launch AND a.optimizer = r.optimizer
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
               '{} {} micro-steps of rank {} {}{}',
               CASE WHEN bypassed THEN 'the last of the' ELSE 'none of the' END,
               microbatches,
               rank,
               CASE
                   WHEN bypassed THEN 'bypassed DDP and was not reduced'
                   WHEN nothing_seen THEN 'was reduced: the optimizer saw no gradient of them'
                   ELSE 'was reduced: it stepped on its own gradients'
               END,
               CASE
                   WHEN probe_spread > 0
                   THEN format('; slices of the gradient differ by {:.3g} % between ranks', 100 * probe_spread)
                   ELSE ''
               END
           )
       END AS message
FROM judged
