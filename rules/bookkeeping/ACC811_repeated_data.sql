/*
code = "ACC811"
name = "repeated-data"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no window with a micro-step was recorded"
needs = ["data_digest", "valid_tokens"]
summary = "the same micro-batch was used more than once in a window, or again at the end of its epoch"
why = '''
A window is meant to gather different data. A micro-batch comes twice where it is drawn outside of the
accumulation loop, or where each worker of a loader reads the same stream. The batch is then smaller than
its number of micro-steps says, and its gradient is as noisy as that of the smaller one.

Where a short end of an epoch is filled up with what the epoch began with, these rows count twice in every
epoch.
'''
example = '''
A batch is drawn once for each window of 4 instead of once for each micro-step. All four micro-steps have
the same gradient, and the update is that of one micro-batch at four times its cost.

Or: 14 batches in windows of 4, the last of which takes batches 1 and 2 again. In each epoch their rows
weigh 2, all others 1.
'''
fix = '''
Draw a new batch for each micro-step, and let the last window of an epoch be short.

Hand-written loop: Call next(batches) inside the accumulation loop, and divide the last window by its own
  tokens. Split an iterable data set by worker (get_worker_info), or each worker repeats it.
DDP: DistributedSampler pads by a row or so for each rank: drop_last avoids it.
FSDP: As for DDP.
Trainer: It lets the last window be short.
Accelerate: Use even_batches=False with join_uneven_inputs.
Lightning: Use a loader that drops the rest.
DeepSpeed: Use a loader that drops the rest.
'''
not_a_fault_when = '''
The same data in another epoch is what epochs are. A sampler that pads so that all ranks get equally many
repeats at most one batch on a rank, and fewer than there are ranks: no fault, unless the loader itself
tells how many rows it gave again (repeated_samples).

Micro-batches without a valid token are left out, and so are inputs that come in many windows of an epoch (a
constant synthetic batch, a data set of a few batches, draws with replacement). Rows may stand twice in the
data itself: a fifth of a window's micro-steps must be repeats, in 2 % of the windows.

Where each micro-batch comes equally often in all windows of a launch (two losses, two augmentations, an
adversarial pass, each with a backward of its own), that is taken for the method. Other passes over a batch
may be meant too, hence a note.

Windows inside a closure are not judged. The end of an epoch is judged only where epochs, and every attempt,
are recorded.
'''
references = [
    "huggingface/trl#6452",
    "huggingface/transformers#28791",
]

[params]
share = 0.2  # the share of a window's micro-steps that must be repeats
windows = 0.02  # the share of a launch's windows that must have them
*/
WITH launches AS (
    SELECT run_id,
           launch,
           min(optimizer) AS optimizer,
           max(data_parallel_size) AS data_ranks,
           max(epoch) AS last_epoch
    FROM updates
    GROUP BY ALL
),
-- One rank for each share of the data.
shares AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.rank,
           u.place,
           coalesce(u.epoch, 0) AS epoch,
           u.micro_step_id - u.microbatches - coalesce(u.discarded_microbatches, 0) AS began,
           u.micro_step_id AS ended,
           len(u.data_digest) AS steps,
           steps > 0 AND list_count(u.data_digest) = steps AND list_count(u.valid_tokens) = steps AS known,
           known AND steps > 1 AND list_unique(u.data_digest) < steps AS repeats_itself
    FROM updates AS u
    JOIN launches AS l USING (run_id, launch, optimizer)
    WHERE u.tokens_rank
      AND coalesce(u.context_rank, 0) = 0
      AND coalesce(u.sequence_rank, 0) = 0
      AND u.microbatches > 0
      AND u.closure IS NOT TRUE
),
-- Inputs that stand twice in a window.
repeating AS (
    SELECT run_id, launch, attempt_id, rank, epoch, steps, digest, count(*) AS times
    FROM (
        SELECT s.*, unnest(u.data_digest) AS digest, unnest(u.valid_tokens) AS n
        FROM updates AS u
        JOIN shares AS s USING (place)
        WHERE s.repeats_itself
    )
    WHERE n > 0
    GROUP BY ALL
),
doubles AS (
    SELECT * FROM repeating WHERE times > 1
),
-- Those that other windows of the epoch hold too are no one window's.
common AS (
    SELECT run_id, launch, rank, epoch, digest
    FROM (
        SELECT s.*, unnest(u.data_digest) AS digest
        FROM updates AS u
        JOIN (FROM shares SEMI JOIN doubles USING (run_id, launch)) AS s USING (place)
    )
    SEMI JOIN doubles USING (run_id, launch, rank, epoch, digest)
    GROUP BY ALL
    HAVING count(DISTINCT attempt_id) > 1
),
repeats AS (
    SELECT run_id, launch, attempt_id, rank, sum(times - 1)::BIGINT AS repeated
    FROM doubles
    ANTI JOIN common USING (run_id, launch, rank, epoch, digest)
    GROUP BY ALL
    HAVING sum(times - 1) >= $share * any_value(steps)
),
-- A few among many are met by chance, or stand twice in the data itself.
habits AS (
    SELECT run_id, launch, windows
    FROM (SELECT run_id, launch, count(*) AS windows FROM shares WHERE steps > 1 GROUP BY ALL)
    JOIN (SELECT run_id, launch, count(*) AS found FROM repeats GROUP BY ALL) USING (run_id, launch)
    WHERE found >= $windows * windows
),
-- Each micro-batch as often as any other, in all windows: several passes over it are the method.
passes AS (
    SELECT run_id, launch
    FROM (
        SELECT run_id,
               launch,
               attempt_id,
               rank,
               count(*) AS different,
               min(times) AS fewest,
               max(times) AS most
        FROM repeating
        GROUP BY ALL
    )
    JOIN habits USING (run_id, launch)
    GROUP BY ALL
    HAVING min(fewest) = max(most)
       AND count(*) = any_value(windows)
       AND (max(different) > 1 OR max(most) = 2)
),
inside AS (
    SELECT * FROM repeats SEMI JOIN habits USING (run_id, launch) ANTI JOIN passes USING (run_id, launch)
),
-- The last window of each epoch.
lasts AS (
    SELECT run_id, launch, rank, epoch, max(attempt_id) AS attempt_id
    FROM shares
    WHERE epoch > 0
    GROUP BY ALL
),
ends AS (
    SELECT run_id, launch, rank, epoch, attempt_id
    FROM lasts
    JOIN launches USING (run_id, launch)
    JOIN runs USING (run_id, launch, rank)
    WHERE recorded_every IS NULL
      AND (
          epoch < last_epoch
          OR EXISTS (
              FROM marks AS m
              WHERE m.run_id = lasts.run_id
                AND m.launch = lasts.launch
                AND m.rank = lasts.rank
                AND m.kind IN ('end_of_data', 'epoch_end')
                AND m.attempt_id IN (lasts.attempt_id - 1, lasts.attempt_id)
          )
      )
),
-- A window that spans two epochs holds data of both.
astride AS (
    SELECT s.run_id, s.launch, s.rank, s.attempt_id
    FROM shares AS s
    JOIN marks AS m
        ON m.run_id = s.run_id
        AND m.launch = s.launch
        AND m.rank = s.rank
        AND m.attempt_id = s.attempt_id - 1
    WHERE m.kind = 'epoch_end'
      AND m.micro_step_id > s.began
      AND m.micro_step_id < s.ended
),
tails AS (
    SELECT e.*, unnest(u.data_digest) AS digest, unnest(u.valid_tokens) AS n
    FROM updates AS u
    JOIN (
        SELECT run_id, launch, rank, epoch, attempt_id, place
        FROM shares
        SEMI JOIN ends USING (run_id, launch, rank, epoch, attempt_id)
        ANTI JOIN astride USING (run_id, launch, rank, attempt_id)
        WHERE known
    ) AS e USING (place)
),
bodies AS (
    SELECT run_id, launch, epoch, attempt_id, place
    FROM shares
    SEMI JOIN ends USING (run_id, launch, epoch)
    ANTI JOIN ends USING (run_id, launch, rank, epoch, attempt_id)
    ANTI JOIN astride USING (run_id, launch, rank, attempt_id)
    WHERE known
),
again AS (
    SELECT t.run_id, t.launch, t.rank, t.epoch, t.attempt_id, t.digest
    FROM (
        SELECT b.run_id, b.launch, b.epoch, b.attempt_id, unnest(u.data_digest) AS digest
        FROM updates AS u
        JOIN bodies AS b USING (place)
    ) AS seen
    JOIN tails AS t USING (run_id, launch, epoch, digest)
    WHERE t.n > 0
      AND seen.attempt_id < t.attempt_id
    GROUP BY ALL
),
-- Epochs that repeat their data in other places too, as draws with replacement do.
loose AS (
    SELECT run_id, launch, epoch
    FROM (
        SELECT b.run_id, b.launch, b.epoch, unnest(u.data_digest) AS digest, unnest(u.valid_tokens) AS n
        FROM updates AS u
        JOIN (FROM bodies SEMI JOIN again USING (run_id, launch, epoch)) AS b USING (place)
    )
    WHERE n > 0
    GROUP BY ALL
    HAVING count(DISTINCT digest) < count(*)
),
fills AS (
    SELECT run_id, launch, rank, epoch, attempt_id, count(*) AS refilled
    FROM again
    ANTI JOIN loose USING (run_id, launch, epoch)
    GROUP BY ALL
),
at_end AS (
    SELECT *
    FROM fills
    JOIN launches USING (run_id, launch)
    WINDOW epochs AS (PARTITION BY run_id, launch, epoch)
    -- Fewer than there are ranks, one each: what it takes to give all ranks equally many.
    QUALIFY max(refilled) OVER epochs > 1 OR sum(refilled) OVER epochs > coalesce(data_ranks, 1) - 1
),
-- What the loader itself says of an epoch; the last ranks got it.
told AS (
    SELECT run_id, launch, attempt_id, max(rank) AS rank, max(repeated_samples) AS given_again
    FROM marks
    WHERE kind = 'end_of_data'
    GROUP BY ALL
    HAVING max(repeated_samples) > 0
)
SELECT s.run_id,
       s.launch,
       s.optimizer,
       s.attempt_id,
       s.rank,
       CASE
           WHEN repeated IS NOT NULL OR refilled IS NOT NULL OR given_again IS NOT NULL THEN TRUE
           WHEN known THEN FALSE
       END AS fault,
       CASE
           WHEN repeated IS NOT NULL OR refilled IS NOT NULL
           THEN s.steps - coalesce(repeated, refilled)
           ELSE s.steps
       END::DOUBLE AS observed,
       s.steps::DOUBLE AS expected,
       CASE
           WHEN repeated IS NOT NULL
           THEN format(
               '{} of {} micro-steps had an input that this window had used: {} different {} and not {}',
               repeated,
               s.steps,
               s.steps - repeated,
               CASE WHEN s.steps - repeated = 1 THEN 'micro-batch' ELSE 'micro-batches' END,
               s.steps
           )
           WHEN refilled IS NOT NULL
           THEN format(
               '{} of the {} micro-steps of the last window of epoch {} had inputs that this epoch had used',
               refilled,
               s.steps,
               s.epoch
           )
           WHEN given_again IS NOT NULL
           THEN format(
               'the loader filled up the end of epoch {} with {} that this epoch had used, '
               || 'so that all ranks had equally many',
               s.epoch,
               CASE WHEN given_again = 1 THEN '1 row' ELSE format('{} rows', given_again) END
           )
       END AS message
FROM shares AS s
LEFT JOIN inside AS i USING (run_id, launch, attempt_id, rank)
LEFT JOIN at_end AS e USING (run_id, launch, attempt_id, rank)
LEFT JOIN told AS t USING (run_id, launch, attempt_id, rank)
