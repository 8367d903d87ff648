/*
code = "ACC608"
name = "identical-data-on-ranks"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several data ranks that reduce together"
needs = ["data_digest", "wrapper"]
summary = "ranks that should see different data were given the same"
why = '''
Data-parallel ranks share the work: each takes other samples. Where two of them read the same, their
gradients are copies of each other, and the run costs twice what it learns from. The batch is smaller than
its name, an epoch takes more steps than it should, and nothing in the loss shows it.

The usual causes are a loader without a sampler for the ranks, an iterable data set that each rank reads
from its beginning, and a shuffle that all ranks seed alike on shards that overlap.
'''
example = '''
Two ranks, a batch of 8 on each, no DistributedSampler. Every window holds the same 8 rows twice: 8
different rows and not 16. The gradient is that of a batch of 8, taken at the rate that was chosen for 16.
An epoch of 1,000 rows takes 125 windows on each rank instead of 63.
'''
fix = '''
Give each data rank rows of its own, by its rank.

Hand-written loop: Use DistributedSampler with num_replicas and rank, and set_epoch in each epoch. For an
  iterable data set use split_dataset_by_node or islice(data, rank, None, world_size), and split it over the
  loader's workers too.
DDP: It does not touch the data: see the hand-written loop.
FSDP: It does not touch the data: see the hand-written loop.
Trainer: Do not override get_train_dataloader without sharding.
Accelerate: Prepare the loader.
Lightning: Leave use_distributed_sampler on.
DeepSpeed: Pass training_data, or a sampler for the data ranks.
'''
not_a_fault_when = '''
Ranks of one tensor, context, sequence or pipeline group share their samples: only ranks with different data
coordinates are compared. Independent runs in one folder are out of scope.

An input that a rank is given again and again within an epoch (a constant synthetic batch, a batch of
padding, a fixed graph) says nothing. The same data must come in three windows, and in more where small data
sets that each rank shuffles by itself would meet now and then by chance.

Where the model is not wrapped, or DDP spans a part of the ranks, ranks may be parts of one model whose
coordinates nobody declared: a note. Ranks that each take their own share of one batch inside the model's
forward look the same: ignore the rule there.
'''
references = [
    "stanford-crfm/mistral#194",
    "huggingface/datasets#5360",
    "dreamzero0/dreamzero#91",
]

[params]
windows = 3  # in how many windows, at least, the same data must come
*/
WITH launches AS (
    SELECT run_id,
           launch,
           min(optimizer) AS optimizer,
           bool_or(
               wrapper <> 'none' OR contains(word, 'A') OR coalesce(probe_parameter_moved, FALSE)
           ) AS synchronised,
           count(data_parallel_rank) = count(*) AS placed,
           bool_and(
               wrapper <> 'none' AND (wrapper <> 'ddp' OR gradient_divisor IN (data_parallel_size, token_ranks))
           ) IS TRUE AS sure
    FROM updates
    GROUP BY ALL
    HAVING min(rank) < max(rank)
),
-- One rank for each share of the data.
shares AS (
    SELECT u.run_id, u.launch, u.optimizer, u.attempt_id, u.rank, u.epoch, u.data_digest, l.placed
    FROM updates AS u
    JOIN launches AS l USING (run_id, launch, optimizer)
    WHERE u.tokens_rank
      AND coalesce(u.context_rank, 0) = 0
      AND coalesce(u.sequence_rank, 0) = 0
      AND l.synchronised IS NOT FALSE
),
attempts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           count(*) FILTER (len(data_digest) > 0 AND list_count(data_digest) = len(data_digest)) AS known
    FROM shares
    GROUP BY ALL
    HAVING count(*) > 1
),
inputs AS (
    SELECT run_id, launch, optimizer, attempt_id, rank, epoch, unnest(data_digest) AS digest
    FROM shares
    WHERE placed
),
shared AS (
    SELECT run_id, launch, optimizer, attempt_id, digest, min(rank) AS first_rank
    FROM inputs
    WHERE digest IS NOT NULL
    GROUP BY ALL
    HAVING min(rank) < max(rank)
),
suspects AS (
    SELECT run_id, launch
    FROM shared
    GROUP BY ALL
    HAVING count(DISTINCT attempt_id) >= $windows
),
suspicious AS (
    SELECT * FROM inputs SEMI JOIN suspects USING (run_id, launch)
),
-- An input that other windows of the epoch hold too is no evidence.
once AS (
    SELECT run_id, launch, rank, epoch, digest, any_value(attempt_id) AS attempt_id, count(*) AS times
    FROM suspicious
    SEMI JOIN shared USING (run_id, launch, digest)
    GROUP BY ALL
    HAVING count(DISTINCT attempt_id) = 1
),
meetings AS (
    SELECT s.run_id,
           s.launch,
           s.optimizer,
           s.attempt_id,
           s.digest,
           a.rank,
           b.rank AS other,
           least(a.times, b.times) AS times
    FROM shared AS s
    JOIN once AS a
        ON a.run_id = s.run_id
        AND a.launch = s.launch
        AND a.attempt_id = s.attempt_id
        AND a.digest = s.digest
        AND a.rank = s.first_rank
    JOIN once AS b
        ON b.run_id = s.run_id
        AND b.launch = s.launch
        AND b.attempt_id = s.attempt_id
        AND b.digest = s.digest
        AND b.rank > s.first_rank
),
sizes AS (
    SELECT run_id,
           launch,
           rank,
           count(DISTINCT attempt_id) AS windows,
           count(digest) AS steps,
           count(DISTINCT digest) AS different
    FROM suspicious
    GROUP BY ALL
),
crowds AS (
    SELECT run_id, launch, count(*) AS ranks FROM sizes GROUP BY ALL
),
pairs AS (
    SELECT m.run_id,
           m.launch,
           m.rank,
           m.other,
           sum(m.times)::BIGINT AS steps_shared,
           count(DISTINCT m.digest) AS digests_shared,
           count(DISTINCT m.attempt_id) AS windows_shared,
           any_value(least(a.windows, b.windows)) AS windows,
           any_value(least(a.steps, b.steps)) AS steps,
           any_value(a.different + b.different) - digests_shared AS batches,
           any_value(c.ranks) AS ranks
    FROM meetings AS m
    JOIN sizes AS a ON a.run_id = m.run_id AND a.launch = m.launch AND a.rank = m.rank
    JOIN sizes AS b ON b.run_id = m.run_id AND b.launch = m.launch AND b.rank = m.other
    JOIN crowds AS c ON c.run_id = m.run_id AND c.launch = m.launch
    GROUP BY ALL
),
guilty AS (
    SELECT *,
           -- How often two ranks that shuffle the same batches, each by itself, would meet.
           steps ** 2 / windows / batches AS chance
    FROM pairs
    WHERE windows_shared >= $windows
      AND digests_shared >= $windows
      AND (steps_shared >= 0.9 * steps OR digests_shared > chance + 3 * sqrt(chance) + 2 + log2(ranks))
),
found AS (
    SELECT m.run_id,
           m.launch,
           m.optimizer,
           m.attempt_id,
           list_sort(list_distinct(list(m.rank) || list(m.other))) AS together,
           count(DISTINCT m.digest) AS digests,
           max(g.steps_shared) AS steps_shared,
           arg_max(g.steps, g.steps_shared) AS steps,
           arg_max(g.windows_shared, g.steps_shared) AS windows_shared,
           arg_max(g.windows, g.steps_shared) AS windows
    FROM meetings AS m
    JOIN guilty AS g USING (run_id, launch, rank, other)
    GROUP BY ALL
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN synchronised AND together IS NOT NULL THEN TRUE
           WHEN synchronised AND placed AND known > 1 THEN FALSE
       END AS fault,
       steps_shared / nullif(steps, 0)::DOUBLE AS observed,
       0.0 AS expected,
       CASE
           WHEN together IS NOT NULL
           THEN format(
               'ranks {} were given the same input in {} {} of this window; '
               'in the launch they share {} of {} micro-steps{}',
               CASE
                   WHEN len(together) = 2 THEN format('{} and {}', together[1], together[2])
                   WHEN len(together) <= 4 THEN array_to_string(together, ', ')
                   ELSE array_to_string(together[:3], ', ') || format(' and {} more', len(together) - 3)
               END,
               digests,
               CASE WHEN digests = 1 THEN 'micro-step' ELSE 'micro-steps' END,
               steps_shared,
               steps,
               CASE
                   WHEN steps_shared >= steps THEN ''
                   ELSE format(', in {} of {} windows: their data overlaps in part', windows_shared, windows)
               END
           )
       END AS message,
       CASE WHEN sure THEN 'warning' ELSE 'note' END AS severity
FROM attempts
JOIN launches USING (run_id, launch, optimizer)
LEFT JOIN found USING (run_id, launch, optimizer, attempt_id)
