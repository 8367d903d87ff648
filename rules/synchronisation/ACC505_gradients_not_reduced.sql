/*
code = "ACC505"
name = "gradients-not-reduced"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was made by a wrapper that leaves comparable gradients on several ranks"
needs = ["wrapper", "probe_gradient"]
explains = ["ACC604", "ACC605"]
summary = "the ranks stepped on different gradients although the wrapper should have reduced them"
why = '''
After the last backward of a window every replica should hold the same gradient. The record keeps a slice of
it from each rank, and the slices differ. All of it, or the part of some micro-step, was never reduced,
whatever the flags say.

Each replica takes a step of its own and they drift apart, while rank 0's loss falls as it should.
'''
example = '''
Two ranks, a window of two micro-steps. In the second, one loss goes through DDP and another through the
inner module, with a backward each. The flags show that the last micro-step was to be reduced, but the
second loss stays local.

    rank 0   a slice of 4.0, 4.6
    rank 1   a slice of 4.0, 5.1

The largest difference is 0.5, 9.8 % of the largest entry, 5.1.
'''
fix = '''
Let every gradient go through the reduction, once, after the last backward has added to it.

Hand-written loop: One backward in the last micro-step, through the wrapper and outside no_sync. No hook
  changes a gradient after the reduction.
DDP: The same, with no parameter that DDP was told to ignore.
FSDP: Leave set_requires_gradient_sync and set_requires_all_reduce on in the last micro-step. An FSDP1 mesh
  of one shard may reduce nothing.
Trainer: Train with the model that the Trainer prepared.
Accelerate: Train with the prepared model.
Lightning: Leave no_sync before the last backward.
DeepSpeed: Leave engine.no_sync() before the boundary. Under ZeRO each rank keeps the gradients of its own
  part, and nothing is compared.
'''
not_a_fault_when = '''
Local SGD averages parameters and not gradients. Where parameters move between the steps, where the
optimizer's class says so, or where digests agree again at this update or a later one, ACC605 alone speaks.

Not judged: gradients that a communication hook or the loop itself reduces, or that something changed in an
unknown way after the last backward; shards whose coordinates are unknown; ranks with different loss scales;
ranks that are a window apart.

Parameters that each rank holds for itself on purpose, as an expert does, look the same where the probed one
is among them: ignore the rule there.
'''
references = [
    "verl-project/verl#7493",
    "pytorch/pytorch#69031",
    "huggingface/picotron#5",
]

[params]
tolerance = 1e-4  # the share of its largest entry by which the slice must differ between ranks
*/
WITH agreements AS (
    SELECT run_id,
           launch,
           optimizer,
           max(attempt_id) AS last_agreement
    FROM windows
    WHERE param_digests = 1
    GROUP BY ALL
),
-- Where each rank has a shard of its own there is nothing to compare.
parted AS (
    SELECT run_id, launch
    FROM runs
    GROUP BY ALL
    HAVING bool_and(shard_size > 1 AND replica_size = 1)
),
spread AS (
    SELECT w.*,
           averages_parameters AS averages,
           last_agreement >= w.attempt_id AS agrees_later,
           regexp_replace(word, '^.*Z', '') AS kept
    FROM windows AS w
    LEFT JOIN agreements USING (run_id, launch, optimizer)
    ANTI JOIN parted USING (run_id, launch)
    WHERE wrapper IN ('ddp', 'fsdp1', 'fsdp2', 'deepspeed-zero0') IS NOT FALSE
      AND (token_ranks > 1) IS NOT FALSE
      AND applied IS NOT FALSE
      AND regexp_matches(word, '[bB]') IS NOT FALSE
),
-- What else can make the slices of ranks differ; asked only where they do.
doubts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           min(u.probe_parameter) AS probe_parameter,
           bool_and(wrapper = 'ddp' OR u.shard_rank IS NOT NULL) AS comparable,
           max(u.grad_scale) > min(u.grad_scale) AS scales_differ,
           max(u.micro_step_id) - min(u.micro_step_id) >= max(u.microbatches) AS shifted,
           bool_or(u.grad_rescale IS NULL AND contains(u.word, 'M') IS NOT FALSE) AS changed_by_hand,
           bool_or(contains(u.word, 'A')) AS reduced_by_hand
    FROM updates AS u
    SEMI JOIN (FROM spread WHERE probe_spread > $tolerance) USING (run_id, launch, optimizer, attempt_id)
    GROUP BY ALL
)
SELECT s.run_id,
       s.launch,
       s.optimizer,
       s.attempt_id,
       NULL AS rank,
       CASE
           WHEN s.wrapper IS NULL OR s.token_ranks IS NULL OR s.gradient_divisor IS NULL OR s.averages
           THEN NULL
           WHEN s.probe_spread <= $tolerance THEN FALSE
           WHEN s.agrees_later OR d.scales_differ OR d.shifted OR d.changed_by_hand OR d.reduced_by_hand
           THEN NULL
           WHEN d.comparable THEN TRUE
       END AS fault,
       s.probe_spread AS observed,
       0.0 AS expected,
       format(
           'slices of the gradient{} differ by {:.3g} % between ranks after the last backward{}',
           coalesce(' of ' || d.probe_parameter, ''),
           100 * s.probe_spread,
           CASE
               WHEN s.wrapper = 'ddp' AND regexp_matches(s.kept, 'F[^bB]*[bB]+[^FfDbB]*$')
                   OR s.wrapper <> 'ddp' AND regexp_matches(s.kept, 'B[^bB]*$')
               THEN ', although its micro-step was to be reduced'
               ELSE ''
           END
       ) AS message
FROM spread AS s
LEFT JOIN doubts AS d USING (run_id, launch, optimizer, attempt_id)
