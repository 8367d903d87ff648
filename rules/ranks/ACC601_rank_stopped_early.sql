/*
code = "ACC601"
name = "rank-stopped-early"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no launch of several ranks that reduce together"
needs = ["attempt_id", "wrapper"]
explains = ["ACC606", "ACC609"]
summary = "a rank ended while others went on, or were left waiting for it"
why = '''
Ranks that reduce together must make the same number of attempts. Where one runs out of data first, the
others wait in a reduction that never completes, until a timeout kills them. Or they go on without its data:
the divisor still counts the rank that is gone, and updates that are not reduced drift apart.

The usual cause is a data set that the number of ranks does not divide, or a filter that drops different
numbers of samples on each rank.
'''
example = '''
9 batches over two ranks, one micro-step an update: rank 0 gets 5 batches, rank 1 gets 4. After attempt 4
rank 1 leaves its loop, and rank 0 waits in the reduction of attempt 5.

Without that reduction rank 0 makes one update alone, and the replicas differ from then on. With DDP's Join,
which still divides by 2, the tokens of attempt 5 weigh 1/2.
'''
fix = '''
Give every rank the same number of windows, or tell the wrapper that it is otherwise.

Hand-written loop: Use DistributedSampler with drop_last, or an equal number of steps for each rank:
  all_reduce the shortest length.
DDP: torch.distributed.algorithms.join.Join shadows the reductions of a rank that is out of data.
FSDP: Give every rank equally many batches: it knows no Join.
Trainer: Leave accelerate's sharding of the loader on.
Accelerate: Leave even_batches on, as it is by default, or use join_uneven_inputs.
Lightning: Its distributed sampler pads. Split an iterable data set evenly by hand.
DeepSpeed: Give every rank equally many batches.
'''
not_a_fault_when = '''
Live and killed runs differ by a record or so. A rank without an end is judged only where another has
finished two or more attempts further on, and its last sign of life is older than that by more than 10
seconds. A rank that ended and another one attempt further on count only where the first ended in good
order. Where only every k-th attempt is recorded, another rank must be two records ahead.

Where the attempts that one rank is missing were reduced under DDP, every other process answered: that is
what Join does, and it is a note.

Ranks that never reduce together (independent runs in one folder) are out of scope, and ranks whose layout
is unknown are not judged. Ranks that attach was told to leave out are not missed. A rank whose file is
missing altogether is not seen by this rule.
'''
references = [
    "pytorch/pytorch#113765",
]

[params]
patience = 10  # by how many seconds a rank's last sign of life must be older than the others'
*/
WITH written AS (
    SELECT run_id, launch, optimizer, rank, attempt_id, time, wrapper, word, token_ranks
    FROM updates
    UNION ALL
    SELECT run_id, launch, optimizer, rank, attempt_id, time, wrapper, word, token_ranks
    FROM superseded
),
counted AS (
    SELECT run_id,
           launch,
           optimizer,
           rank,
           max(attempt_id) AS last_record,
           max(time) AS last_time,
           -- Where the layout is unknown, so is which ranks belong together.
           CASE
               WHEN bool_and(token_ranks IS NOT NULL) THEN bool_or(wrapper <> 'none' OR contains(word, 'A'))
           END AS synchronised
    FROM written
    GROUP BY ALL
),
marked AS (
    SELECT run_id, launch, coalesce(optimizer, 0) AS optimizer, rank, max(attempt_id) AS last_mark
    FROM marks
    GROUP BY ALL
),
lasts AS (
    SELECT c.*,
           coalesce(r.recorded_every, 1) AS every,
           -- Not every attempt need be recorded; a mark says how many there were.
           greatest(c.last_record, last_mark) AS last_attempt
    FROM counted AS c
    LEFT JOIN runs AS r USING (run_id, launch, rank)
    LEFT JOIN marked USING (run_id, launch, optimizer, rank)
),
closes AS (
    SELECT l.run_id,
           l.launch,
           l.optimizer,
           l.rank,
           coalesce(bool_or(m.finished), FALSE) AS finished,
           max(m.time) AS close_time,
           max(m.leftover_microbatches) AS leftover,
           max(m.reason) AS reason
    FROM lasts AS l
    JOIN marks AS m USING (run_id, launch, rank)
    WHERE m.kind = 'close'
      AND coalesce(m.optimizer, l.optimizer) = l.optimizer
    GROUP BY ALL
),
data_ends AS (
    SELECT run_id,
           launch,
           coalesce(optimizer, 0) AS optimizer,
           rank,
           list(DISTINCT attempt_id) AS data_ends,
           max(attempt_id) AS last_data_end
    FROM marks
    WHERE kind = 'end_of_data'
    GROUP BY ALL
),
ranks AS (
    SELECT l.*,
           c.rank IS NOT NULL AS closed,
           coalesce(c.finished, FALSE) AS finished,
           c.close_time,
           coalesce(c.leftover, 0) AS leftover,
           coalesce(c.reason, 'unknown') AS reason,
           coalesce(d.data_ends, []) AS data_ends,
           d.last_data_end,
           -- A loader that looks one batch ahead ends during the last window.
           coalesce(d.last_data_end >= l.last_attempt - 1, FALSE) AS out_of_data
    FROM lasts AS l
    LEFT JOIN closes AS c USING (run_id, launch, optimizer, rank)
    LEFT JOIN data_ends AS d USING (run_id, launch, optimizer, rank)
),
furthest AS (
    SELECT *
    FROM ranks
    QUALIFY row_number() OVER (
                PARTITION BY run_id, launch, optimizer
                ORDER BY last_attempt DESC, leftover DESC, finished ASC, rank ASC
            ) = 1
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           count(*) AS ranks,
           bool_or(synchronised) AS synchronised,
           bool_and(closed) AS all_closed,
           least(min(last_attempt) + 1, max(last_record)) AS first_late
    FROM ranks
    GROUP BY ALL
),
late AS (
    SELECT run_id,
           launch,
           optimizer,
           -- Where none of the late attempts was recorded, the last that was is looked at.
           bool_and(w.wrapper = 'ddp' AND regexp_matches(w.word, 'F[^bB]*[bB][^FfD]*$')) AS reduced
    FROM written AS w
    JOIN launches AS l USING (run_id, launch, optimizer)
    WHERE w.attempt_id >= l.first_late
    GROUP BY ALL
),
judged AS (
    SELECT r.*,
           f.rank AS other,
           f.last_attempt AS other_attempt,
           f.reason AS other_reason,
           l.all_closed,
           coalesce(late.reduced, FALSE) AS joined,
           f.last_attempt - r.last_attempt AS behind,
           NOT list_contains(f.data_ends, r.last_data_end) AS alone,
           (r.finished AND behind >= 1)
               OR (r.closed AND behind >= 2)
               OR (r.out_of_data AND alone AND behind >= 2 * f.every) AS ended_before,
           r.finished
               AND behind = 0
               AND f.closed
               AND NOT f.finished
               AND f.leftover > r.leftover
               AND coalesce(alone, TRUE) AS left_waiting,
           NOT r.closed
               AND NOT r.out_of_data
               AND f.finished
               AND behind >= 2 * f.every
               AND coalesce(f.close_time - r.last_time > $patience, FALSE) AS fell_silent
    FROM ranks AS r
    JOIN furthest AS f USING (run_id, launch, optimizer)
    JOIN launches AS l USING (run_id, launch, optimizer)
    LEFT JOIN late USING (run_id, launch, optimizer)
    WHERE l.ranks > 1
      AND l.synchronised IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       last_record AS attempt_id,
       rank,
       CASE
           WHEN synchronised IS NULL THEN NULL
           WHEN ended_before OR left_waiting OR fell_silent THEN TRUE
           WHEN all_closed THEN FALSE
       END AS fault,
       last_attempt::DOUBLE AS observed,
       other_attempt::DOUBLE AS expected,
       CASE
           WHEN left_waiting
           THEN format(
               'rank {} finished after attempt {}, while rank {} had begun another window and closed by {}',
               rank,
               last_attempt,
               other,
               other_reason
           )
           WHEN fell_silent
           THEN format(
               'rank {} wrote nothing after attempt {}, and rank {} finished after attempt {}',
               rank,
               last_attempt,
               other,
               other_attempt
           )
           ELSE format(
               'rank {} {} after attempt {}, and rank {} went on to attempt {}: {} {} without its data{}',
               rank,
               CASE
                   WHEN out_of_data AND alone THEN 'was out of data'
                   WHEN finished THEN 'finished'
                   ELSE 'closed by ' || reason
               END,
               last_attempt,
               other,
               other_attempt,
               behind,
               CASE WHEN behind = 1 THEN 'attempt' ELSE 'attempts' END,
               CASE
                   WHEN joined
                   THEN '; they were reduced, which needs an answer from every rank, as Join gives it'
                   ELSE ''
               END
           )
       END AS message,
       CASE WHEN joined AND NOT fell_silent AND NOT left_waiting THEN 'note' ELSE 'error' END AS severity
FROM judged
