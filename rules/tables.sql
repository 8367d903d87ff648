/*
The tables that the rules speak of. Built once, as plain SQL, after the reader has made `run_records` and
`mark_records`: the readable lines with the fields of their kind, typed and cleaned by the schema. The updates
are many and their lists long: they stay where they were read, in `stored.records`, and views show them.
`stored.homes` says whose each stretch of a file is, `stored.sources` where the runs lie.

Three values everywhere: what was not observed is NULL, and what follows from it is NULL too.
A DOUBLE that is not finite is NULL, and its BOOLEAN `<field>_nonfinite` is true; in a DOUBLE[] the
entry is NULL. An integer beyond 53 bits is NULL. All tables of records have these columns:
  run_id, launch   the run, and the number of the launch in it, from 1, by the time of its start
  launch_token     the launch as the record names it
  file, line       the place of the record; line counts the lines of a ledger's file that are not blank,
                   and all lines of a foreign log
  place            the order in which the records were read
*/

-- A sum over the ranks with different tokens: NULL where one is unknown, and where there is none. NaN spreads as
-- NULL should.
CREATE TEMP MACRO rank_total(x, mine) AS nullif(sum(if(mine, coalesce(x::DOUBLE, 'NaN'), NULL)), 'NaN');
-- How many times a ratio is off 1, up or down; and whether a value is a factor, and nearer to it than to 1.
CREATE TEMP MACRO off(ratio) AS greatest(ratio, 1 / nullif(ratio, 0));
CREATE TEMP MACRO fits(t, f, tolerance) AS t > 0 AND f > 0 AND abs(t / f - 1) <= tolerance AND off(t / f) < off(t);

-- runs: a row per run_id, launch and rank ----------------------------------------------------------------
-- Every field of the run record, with what the loop declared later (a mark of kind declare), and
--   path, format     where the run lies; 'ledger', or the kind of a foreign log
--   token_ranks      R, the number of ranks with different tokens; NULL where the layout is unknown
--   tokens_rank      this rank is one of them: the first of its tensor group, in the stage that has the loss
--   parameter_part   ranks of equal parts hold the same parameters; NULL where the layout is unknown
-- A rank whose run line was lost has what its launch shares, and NULL elsewhere.

CREATE TEMP TABLE declared AS
SELECT run_id, launch, rank,
       arg_max(TRY_CAST(name ->> '$.planned_updates' AS BIGINT), place) AS planned_updates,
       arg_max(TRY_CAST(name ->> '$.warmup_updates' AS BIGINT), place) AS warmup_updates,
       arg_max(TRY_CAST(name ->> '$.peak_learning_rate' AS DOUBLE), place) AS peak_learning_rate,
       arg_max(TRY_CAST(name ->> '$.min_learning_rate' AS DOUBLE), place) AS min_learning_rate,
       arg_max(TRY_CAST(name ->> '$.resumed_from_update' AS BIGINT), place) AS resumed_from_update,
       arg_max(name ->> '$.schedule_unit', place) AS schedule_unit,
       arg_max(TRY_CAST(name ->> '$.scheduler_steps_per_update' AS DOUBLE), place) AS scheduler_steps_per_update
FROM (SELECT * REPLACE (CASE WHEN json_valid(name) THEN name END AS name) FROM mark_records WHERE kind = 'declare')
GROUP BY ALL;

CREATE TEMP TABLE run_lines AS
SELECT r.* REPLACE (
           coalesce(d.warmup_updates, r.warmup_updates) AS warmup_updates,
           coalesce(d.planned_updates, r.planned_updates) AS planned_updates,
           coalesce(d.peak_learning_rate, r.peak_learning_rate) AS peak_learning_rate,
           coalesce(d.min_learning_rate, r.min_learning_rate) AS min_learning_rate,
           coalesce(d.schedule_unit, r.schedule_unit) AS schedule_unit,
           coalesce(d.scheduler_steps_per_update, r.scheduler_steps_per_update) AS scheduler_steps_per_update,
           coalesce(d.resumed_from_update, r.resumed_from_update) AS resumed_from_update)
FROM run_records r LEFT JOIN declared d USING (run_id, launch, rank)
QUALIFY row_number() OVER (PARTITION BY r.run_id, r.launch, r.rank ORDER BY r.place) = 1;

INSERT INTO run_lines BY NAME
SELECT lost.run_id, lost.launch, lost.launch_token, lost.rank,
       CASE WHEN peer.data_parallel_size = peer.world_size THEN lost.rank END AS data_parallel_rank,
       peer.* EXCLUDE (
           run_id, launch, launch_token, rank, data_parallel_rank, tensor_rank, context_rank, sequence_rank,
           pipeline_rank, shard_rank, replica_rank, versions, optimizer_state_step_at_attach,
           scheduler_step_at_attach, started_at, file, line, place)
FROM (SELECT run_id, launch, rank, min(token) AS launch_token FROM stored.homes GROUP BY ALL) lost
LEFT JOIN (FROM run_lines QUALIFY row_number() OVER (PARTITION BY run_id, launch ORDER BY rank) = 1) peer
  ON peer.run_id = lost.run_id AND peer.launch = lost.launch
WHERE NOT EXISTS (
    FROM run_lines l WHERE l.run_id = lost.run_id AND l.launch = lost.launch AND l.rank = lost.rank);

CREATE TEMP TABLE loss_stages AS
SELECT l.run_id, l.launch, max(l.pipeline_rank) AS loss_stage
FROM (FROM run_lines WHERE pipeline_size > 1) l
JOIN stored.homes h USING (run_id, launch, rank)
JOIN stored.records u
  ON u.file_id = h.file_id AND u.launch = h.token AND u.rank = h.rank AND u.n >= h.first AND u.n < h.last
WHERE u.record = 'update' AND coalesce(u.window_sums[1].valid_tokens, list_sum(u.valid_tokens)) > 0
GROUP BY ALL;

CREATE TABLE runs AS
WITH sized AS (
    SELECT *, coalesce(tensor_size, 1)::DOUBLE * coalesce(pipeline_size, 1) AS same_tokens,
           coalesce(context_size, 1)::DOUBLE * coalesce(sequence_size, 1) AS sample_parts,
           -- A wrapper may reduce over a part of the ranks: what the others are must be known.
           coalesce(data_parallel_size IS NOT NULL
                        OR shard_size::DOUBLE * replica_size * same_tokens >= world_size, true) AS placed,
           (tensor_size > 1 AND tensor_rank IS NULL) OR (pipeline_size > 1 AND pipeline_rank IS NULL)
               OR (shard_size > 1 AND shard_rank IS NULL) AS unplaced_part
    FROM run_lines
)
SELECT sized.* EXCLUDE (same_tokens, sample_parts, placed, unplaced_part), src.path, src.format,
       TRY_CAST(
           CASE WHEN data_parallel_size >= 1 THEN data_parallel_size
                WHEN placed AND world_size % nullif(same_tokens * sample_parts, 0) = 0
                THEN world_size / (same_tokens * sample_parts) END * sample_parts AS BIGINT) AS token_ranks,
       coalesce(pipeline_rank = coalesce(loss_stage, pipeline_size - 1), true)
           AND CASE WHEN data_parallel_rank IS NULL THEN coalesce(tensor_rank, 0) = 0
                    ELSE row_number() OVER (
                        PARTITION BY run_id, launch, data_parallel_rank, context_rank, sequence_rank, pipeline_rank
                        ORDER BY tensor_rank, rank) = 1
               END AS tokens_rank,
       if(placed AND unplaced_part IS NOT TRUE,
          concat_ws('/', coalesce(tensor_rank, 0), coalesce(pipeline_rank, 0), coalesce(shard_rank, 0)), NULL)
           AS parameter_part
FROM sized LEFT JOIN loss_stages USING (run_id, launch) LEFT JOIN stored.sources src USING (run_id);

-- updates: a row per run_id, launch, optimizer, attempt_id and rank --------------------------------------
-- Every field of the update record, `<field>_nonfinite` for each DOUBLE and DOUBLE[] and for window_sums, and
--   applied                NOT optimizer_step_skipped
--   word                   events with repeated groups written out; NULL where they cannot be
--   closure                a closure ran inside the step
--   lists_agree            all lists have one entry per micro-step; where not, the lists are NULL
--   undeclared_terms       the loss has further terms that were not declared
--   window_*               the list's sum over the record's micro-steps; NULL where one is unknown, or there is none
--   window_loss            mean loss of their valid tokens
--   weight_min, weight_max smallest and largest A1 / n of the micro-steps that have valid tokens
--   weights_uniform        all micro-steps are uniform; NULL where one is unknown or its weights change sign
--   loss_scale_min/max     of the list
--   wrapper, world_size, gradient_divisor, coordinates, token_ranks, tokens_rank, parameter_part   from runs
-- Where window_sums stands in place of the lists, all this comes from it, as far as it tells.
-- A second record of the same rank and attempt stands in `duplicates`; what a later launch did again
-- stands in `superseded`. Both have the same columns.

CREATE TABLE stored.places AS
SELECT h.*, r.wrapper, r.world_size, r.gradient_divisor, r.runtime, r.loss_unit, r.data_parallel_rank,
       r.data_parallel_size, r.tensor_rank, r.tensor_size, r.context_rank, r.context_size, r.sequence_rank,
       r.sequence_size, r.pipeline_rank, r.pipeline_size, r.shard_rank, r.shard_size, r.replica_rank,
       r.replica_size, r.token_ranks, r.tokens_rank, r.parameter_part
FROM stored.homes h LEFT JOIN runs r USING (run_id, launch, rank);

CREATE VIEW stored.updates AS
SELECT p.run_id, p.launch, u.launch AS launch_token,
       u.* EXCLUDE (record, launch, rest, file_id, n) REPLACE (window_sums[1] AS window_sums),
       p.file, if(p.numbered, u.seq, u.n - p.first_line + 1) AS line, u.n AS place,
       NOT optimizer_step_skipped AS applied,
       coalesce(len(list_filter(loss_terms, lambda t: t.declared IS NOT TRUE)) > 0, false) AS undeclared_terms,
       contains(events, '(') AS closure,
       p.* EXCLUDE (file_id, token, rank, first, last, run_id, launch, file, first_line, numbered)
FROM (FROM stored.records WHERE record = 'update') u
JOIN stored.places p
  ON u.file_id = p.file_id AND u.launch = p.token AND u.rank = p.rank AND u.n >= p.first AND u.n < p.last;

CREATE TABLE stored.copies AS
SELECT place FROM stored.updates
SEMI JOIN (SELECT run_id, launch, optimizer, attempt_id, rank FROM stored.updates GROUP BY ALL HAVING count(*) > 1) again
    USING (run_id, launch, optimizer, attempt_id, rank)
QUALIFY row_number() OVER (PARTITION BY run_id, launch, optimizer, attempt_id, rank ORDER BY place) > 1;

-- A launch continues after the updates that were done before its first. Where neither its ids nor a
-- declaration tell how many those were, nothing is superseded.
-- A foreign log counts steps, and seldom updates.
CREATE TABLE stored.redone AS
WITH counted AS (
    SELECT u.run_id, u.launch, u.optimizer, u.place, u.applied, r.resumed_from_update,
           if(r.format = 'ledger', u.optimizer_update_id, u.attempt_id) AS id
    FROM stored.updates u JOIN runs r USING (run_id, launch, rank)
),
starts AS (
    SELECT run_id, launch, optimizer,
           greatest(min(id - (applied IS NOT FALSE)::BIGINT), coalesce(max(resumed_from_update), 0)) AS done_before
    FROM counted
    WHERE launch > 1 GROUP BY ALL
)
SELECT DISTINCT u.place FROM counted u
JOIN (FROM starts WHERE done_before > 0) s
  ON s.run_id = u.run_id AND s.optimizer = u.optimizer AND s.launch > u.launch
 AND u.id > s.done_before
ANTI JOIN stored.copies c ON c.place = u.place;

CREATE VIEW updates AS
FROM stored.updates ANTI JOIN (FROM stored.copies UNION ALL FROM stored.redone) USING (place);
CREATE VIEW duplicates AS FROM stored.updates SEMI JOIN stored.copies USING (place);
CREATE VIEW superseded AS FROM stored.updates SEMI JOIN stored.redone USING (place);

-- microbatches: a row per micro-step that was kept; none where window_sums stands in place of the lists ---
--   micro_step             its place in the window, from 1
--   n, loss_weight, loss_weight_sq, weight_uniform   valid tokens, A1, A2, whether all positions weigh the same
--   w                      A1 / n, the weight of one token; NULL where n is 0
--   loss, loss_scale, samples, ..._positions, data_digest   its entries of the update's lists
--   microbatches, applied, closure, tokens_rank, grad_rescale, gradient_divisor   its update's

CREATE VIEW microbatches AS
SELECT run_id, launch, optimizer, attempt_id, rank, micro_step, microbatches, applied, closure, tokens_rank,
       grad_rescale, gradient_divisor, valid_tokens[micro_step] AS n, loss_weight[micro_step] AS loss_weight,
       loss_weight_sq[micro_step] AS loss_weight_sq, weight_uniform[micro_step] AS weight_uniform,
       loss[micro_step] AS loss, loss_scale[micro_step] AS loss_scale, samples[micro_step] AS samples,
       input_positions[micro_step] AS input_positions, attended_positions[micro_step] AS attended_positions,
       masked_positions[micro_step] AS masked_positions, data_digest[micro_step] AS data_digest,
       loss_weight[micro_step] / nullif(valid_tokens[micro_step], 0) AS w
FROM (
    SELECT *, unnest(range(1, 1 + coalesce(
                  len(valid_tokens), len(loss_weight), len(loss), len(samples), len(input_positions),
                  len(data_digest),
                  if(window_sums IS NULL AND microbatches > 0, least(microbatches, 65536), 0)))) AS micro_step
    FROM updates
);

-- marks: a row per mark, with every field of its record ----------------------------------------------------

ALTER TABLE mark_records RENAME TO marks;

-- windows: a row per run_id, launch, optimizer and attempt_id, over all ranks ------------------------------
--   optimizer_update_id, micro_step_id, epoch, time   the largest
--   applied                true where all ranks applied, false where all skipped, else NULL
--   ranks, applied_ranks, skipped_ranks    how many; ranks_missing: which of those that write wrote no record
--   token_ranks, complete  R; whether each of these ranks wrote a record
--   wrapper, gradient_divisor, runtime, loss_unit ('token' where unknown), world_size, pipeline_size,
--   recorded_every         of the launch
--   reduces_together       gradients of the launch and optimizer are reduced: by a wrapper, or by the loop (A);
--                          NULL where the layout is unknown
--   averages_parameters    parameters are, instead (local SGD): they move between steps, and not beside a reduction
--                          of the gradients (clamped weights do), or the optimizer's class says so
--   closure                a closure ran inside the step of a rank
--   microbatches, microbatches_min, discarded_microbatches   the largest and the smallest over ranks
--   accumulation_steps     declared, else the number that 90 % of the launch's windows have
--   accumulation_inferred  it is the latter
--   word                   of the lowest rank that wrote one
--   valid_tokens, loss_weight, loss_weight_sq   N and the sums of A1 and A2; NULL where a rank is unknown
--   loss                   mean loss of the valid tokens; NULL where a rank is unknown
--   total_weight           T; NULL where N is 0 and where weights change sign
--   distortion_min/max     d of the micro-steps; NULL where weights are not uniform
--   equivalent_batch       Kish's
--   tolerance              of T and d, by weight_dtype
--   samples, ..._positions sums; NULL where a rank is unknown
--   masked_samples         samples without any valid token; NULL where a rank is unknown
--   previous_*             of attempt_id - 1, NULL where it has no record; previous_full_applied: it was a
--                          whole window and applied
--   full_weight            T of the last whole window before that was applied
--   epoch_changed          against the last recorded window; NULL where those between are not recorded
--   data_ended             the data ended in this window, in the one before or between
--   data_watched           the run's records tell of epochs or of the end of the data
--   weight_cause           right, tail, the name of the factor that fits best, or unexplained
--   weight_factors, weight_factor   the names of all factors that fit; the value of the best. None where most of
--                          the launch's wrong windows fit none: some meet one by chance
--   unscored_positions, unscored_kind   x of N/(N+x) where that fits, and what it counts
--   grad_norm_min/max, grad_norm_before_min/max   of grad_norm_after_clip and _before_clip where it is global; where
--                          they are of shards, joined over each shard group, and NULL unless all of it wrote one
--   param_digests          distinct digests among ranks with the same parameters; NULL where none compare
--   probe_spread           largest difference of probe_gradient among them, as a share of its largest entry
--   learning_rate_min/max, scheduler_step_min/max, grad_scale_min/max (at the step), loss_scale_min/max (at the
--   backwards), loss_unobserved (max), several_terms (undeclared ones),
--   reported_global_step, global_valid_tokens_in_update, cumulative_train_tokens, reported_loss, reported_tokens,
--   reported_samples (max)
-- Weights and norms are NULL where every rank skipped.

CREATE TEMP TABLE layouts AS
SELECT run_id, launch, max(world_size) AS world_size, max(token_ranks) AS token_ranks, min(wrapper) AS wrapper,
       min(runtime) AS runtime, coalesce(min(loss_unit), 'token') AS loss_unit,
       CASE WHEN bool_and(gradient_divisor > 0) AND count(gradient_divisor) = count(*) THEN max(gradient_divisor) END
           AS gradient_divisor,
       max(context_size) AS cp, max(sequence_size) AS sp, max(pipeline_size) AS pipeline_size,
       max(accumulation_steps) AS declared_at_attach, max(recorded_every) AS recorded_every, any_value(recorded_ranks) AS recorded_ranks,
       coalesce(len(any_value(recorded_ranks)), max(world_size)) AS writers
FROM runs GROUP BY run_id, launch;

-- Words repeat: what is asked of each is asked once.
CREATE TEMP TABLE habits AS
SELECT run_id, launch, optimizer,
       if(bool_and(token_ranks IS NOT NULL), bool_or(wrapper <> 'none' OR contains(word, 'A')), NULL)
           AS reduces_together,
       coalesce(bool_or(probe_parameter_moved AND world_size IS DISTINCT FROM 1 AND (
           wrapper = 'none' OR gradient_divisor IS NULL
           OR regexp_matches(word, if(wrapper = 'ddp', 'F[^bB]*[bB][^FfD]*$', 'B[^bB]*$')) IS NOT TRUE)),
           false) AS moved
FROM (
    SELECT DISTINCT run_id, launch, optimizer, token_ranks, wrapper, gradient_divisor, world_size, word,
                    probe_parameter_moved
    FROM updates
) GROUP BY ALL;

CREATE TEMP TABLE averaging AS
SELECT DISTINCT run_id, launch, attached."index" AS optimizer
FROM (SELECT DISTINCT run_id, launch, unnest(optimizers) AS attached FROM runs)
WHERE regexp_matches(attached."class", '(?i)local_?sgd|diloco|(model|parameter|periodic)_?averag')
UNION SELECT run_id, launch, optimizer FROM habits WHERE moved;

CREATE TEMP TABLE joined AS
SELECT run_id, launch, optimizer, attempt_id,
       max(optimizer_update_id) AS optimizer_update_id, max(micro_step_id) AS micro_step_id, max(epoch) AS epoch,
       max(time) AS time,
       count(*) AS ranks, count(*) FILTER (applied) AS applied_ranks, count(*) FILTER (NOT applied) AS skipped_ranks,
       count(*) FILTER (tokens_rank) AS token_ranks_present,
       bool_or(closure) AS closure, arg_min(word, rank) AS word, bool_or(contains(word, '|')) AS data_ends_inside,
       max(microbatches) AS microbatches, min(microbatches) AS microbatches_min,
       max(discarded_microbatches) AS discarded_microbatches, max(accumulation_steps) AS declared_steps,
       rank_total(window_valid_tokens, tokens_rank) AS n, rank_total(window_loss_weight, tokens_rank) AS a1,
       rank_total(window_loss_weight_sq, tokens_rank) AS a2,
       rank_total(if(window_valid_tokens = 0, 0, window_loss * window_valid_tokens), tokens_rank) AS losses,
       rank_total(window_loss_weight * grad_rescale, tokens_rank) AS rescaled_a1,
       min(weight_min * grad_rescale) FILTER (tokens_rank) AS w_min,
       max(weight_max * grad_rescale) FILTER (tokens_rank) AS w_max,
       rank_total((NOT weights_uniform)::DOUBLE, tokens_rank) = 0 AS weight_uniform,
       any_value(weight_source) AS weight_source, any_value(weight_dtype) AS weight_dtype,
       bool_and(ends_with(weight_dtype, '32') OR ends_with(weight_dtype, '64')) AS exact_weights,
       -- What a pipeline's other stages go backward from is no loss.
       max(loss_unobserved) FILTER (tokens_rank) AS loss_unobserved,
       bool_or(undeclared_terms) FILTER (tokens_rank) AS several_terms,
       -- the ranks of a sample's parts see the same rows
       rank_total(if(coalesce(context_rank, 0) = 0 AND coalesce(sequence_rank, 0) = 0, window_samples, 0), tokens_rank)
           AS rows_seen,
       rank_total(window_input_positions, tokens_rank) AS input_seen,
       rank_total(window_attended_positions, tokens_rank) AS attended_seen,
       rank_total(window_masked_positions, tokens_rank) AS masked_seen,
       -- All rows of a micro-step are padded to one length.
       rank_total(list_sum(list_transform(
           list_zip(masked_positions, samples, input_positions), lambda x: if(x[1] = 0, 0, x[1] * x[2] / x[3]))),
           tokens_rank) AS masked_rows_seen,
       min(learning_rate) AS learning_rate_min, max(learning_rate) AS learning_rate_max,
       min(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'global') AS norm_min,
       max(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'global') AS norm_max,
       min(grad_norm_before_clip) FILTER (grad_norm_before_scope = 'global') AS norm_before_min,
       max(grad_norm_before_clip) FILTER (grad_norm_before_scope = 'global') AS norm_before_max,
       min(grad_scale) AS grad_scale_min, max(grad_scale) AS grad_scale_max,
       min(loss_scale_min) AS loss_scale_min, max(loss_scale_max) AS loss_scale_max,
       min(scheduler_step) AS scheduler_step_min, max(scheduler_step) AS scheduler_step_max,
       max(reported_global_step) AS reported_global_step,
       max(global_valid_tokens_in_update) AS global_valid_tokens_in_update,
       max(cumulative_train_tokens) AS cumulative_train_tokens, max(reported_loss) AS reported_loss,
       max(reported_tokens) AS reported_tokens, max(reported_samples) AS reported_samples
FROM updates GROUP BY run_id, launch, optimizer, attempt_id;

-- The squares of the shards' norms add up to that of the whole gradient, once for each replica. A norm that a clip
-- returned alike on all ranks of a group is that of the group already.
CREATE TEMP TABLE shards AS
SELECT run_id, launch, optimizer, attempt_id, min(norm) AS norm_min, max(norm) AS norm_max,
       min(norm_before) AS norm_before_min, max(norm_before) AS norm_before_max
FROM (
    SELECT run_id, launch, optimizer, attempt_id,
           max(if(parted, shard_size, replica_size)::DOUBLE * coalesce(tensor_size, 1) * coalesce(pipeline_size, 1))
               AS parts,
           CASE WHEN count(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'shard') = parts
                THEN sqrt(sum(grad_norm_after_clip ** 2)) END AS norm,
           CASE WHEN count(grad_norm_before_clip) FILTER (grad_norm_before_scope = 'shard') <> parts THEN NULL
                WHEN min(grad_norm_before_clip) = max(grad_norm_before_clip) THEN min(grad_norm_before_clip)
                ELSE sqrt(sum(grad_norm_before_clip ** 2)) END AS norm_before
    FROM (SELECT *, shard_size > 1 OR tensor_size > 1 AS parted FROM updates)
    WHERE grad_norm_after_scope = 'shard' OR grad_norm_before_scope = 'shard'
    -- Gradients that are parted where the parameters are not are parted over the replicas.
    GROUP BY run_id, launch, optimizer, attempt_id, if(parted, replica_rank, NULL)
) GROUP BY ALL;

CREATE TEMP TABLE missing AS
SELECT run_id, launch, optimizer, attempt_id,
       list_filter(coalesce(any_value(f.recorded_ranks), range(least(any_value(f.writers), 100000))),
                   lambda x: NOT list_contains(list(rank), x)) AS ranks_missing
FROM updates
JOIN (SELECT run_id, launch, optimizer, attempt_id, recorded_ranks, writers
      FROM joined JOIN layouts USING (run_id, launch) WHERE ranks < writers AND writers <= 100000) f
    USING (run_id, launch, optimizer, attempt_id)
GROUP BY ALL;

CREATE TEMP TABLE inferred AS
SELECT run_id, launch, optimizer, arg_max(microbatches, windows) AS inferred_steps
FROM (
    SELECT run_id, launch, optimizer, microbatches, count(*) AS windows,
           sum(count(*)) OVER (PARTITION BY run_id, launch, optimizer) AS all_windows
    FROM joined WHERE microbatches > 0 GROUP BY run_id, launch, optimizer, microbatches
) GROUP BY run_id, launch, optimizer HAVING max(windows) >= 0.9 * any_value(all_windows);

CREATE TEMP TABLE ended AS
SELECT DISTINCT j.run_id, j.launch, j.optimizer, j.attempt_id
FROM (SELECT DISTINCT run_id, launch, optimizer, attempt_id + unnest([1, 2]) AS attempt_id
      FROM marks WHERE kind IN ('end_of_data', 'epoch_end')) e
JOIN joined j
  ON j.run_id = e.run_id AND j.launch = e.launch AND j.attempt_id = e.attempt_id
 AND j.optimizer = coalesce(e.optimizer, j.optimizer);

CREATE TEMP TABLE watched AS
SELECT run_id FROM joined WHERE epoch IS NOT NULL OR data_ends_inside
UNION SELECT run_id FROM marks WHERE kind IN ('end_of_data', 'epoch_end');

CREATE TEMP TABLE digests AS
SELECT run_id, launch, optimizer, attempt_id, max(distinct_digests) AS param_digests
FROM (
    SELECT run_id, launch, optimizer, attempt_id, count(DISTINCT param_digest) AS distinct_digests
    FROM updates WHERE param_digest IS NOT NULL AND parameter_part IS NOT NULL
    GROUP BY run_id, launch, optimizer, attempt_id, parameter_part HAVING count(*) > 1
) GROUP BY ALL;

-- The slices are compared entry by entry only where they differ at all.
CREATE TEMP TABLE probes AS
WITH slices AS (
    SELECT run_id, launch, optimizer, attempt_id, parameter_part, probe_parameter, len(probe_gradient) AS length,
           min(hash(probe_gradient)) = max(hash(probe_gradient)) AS equal
    FROM updates WHERE len(probe_gradient) > 0 AND parameter_part IS NOT NULL GROUP BY ALL HAVING count(*) > 1
),
entries AS (
    SELECT u.run_id, u.launch, u.optimizer, u.attempt_id, u.parameter_part, u.probe_parameter,
           unnest(u.probe_gradient) AS entry, unnest(range(len(u.probe_gradient))) AS entry_place
    FROM updates u
    SEMI JOIN (FROM slices WHERE NOT equal) s
      ON s.run_id = u.run_id AND s.launch = u.launch AND s.optimizer = u.optimizer AND s.attempt_id = u.attempt_id
     AND s.parameter_part = u.parameter_part AND s.probe_parameter IS NOT DISTINCT FROM u.probe_parameter
     AND s.length = len(u.probe_gradient)
),
spreads AS (
    SELECT run_id, launch, optimizer, attempt_id, coalesce(max(span) / nullif(max(size), 0), 0) AS spread
    FROM (
        SELECT run_id, launch, optimizer, attempt_id, parameter_part, probe_parameter, entry_place,
               max(entry) - min(entry) AS span, max(abs(entry)) AS size
        FROM entries GROUP BY ALL HAVING count(entry) > 1
    ) GROUP BY run_id, launch, optimizer, attempt_id, parameter_part, probe_parameter
    UNION ALL
    SELECT run_id, launch, optimizer, attempt_id, 0.0 FROM slices WHERE equal
)
SELECT run_id, launch, optimizer, attempt_id, max(spread) AS probe_spread FROM spreads GROUP BY ALL;

CREATE TEMP TABLE weighed AS
SELECT j.*, l.* EXCLUDE (run_id, launch, declared_at_attach, recorded_ranks),
       coalesce(j.declared_steps, l.declared_at_attach) AS declared,
       coalesce(declared, i.inferred_steps) AS accumulation_steps,
       declared IS NULL AND i.inferred_steps IS NOT NULL AS accumulation_inferred,
       CASE WHEN applied_ranks = ranks THEN true WHEN skipped_ranks = ranks THEN false END AS applied,
       applied AND microbatches >= accumulation_steps AS full_applied,
       applied IS NOT FALSE AS weighs,
       token_ranks_present = token_ranks AS complete,
       if(exact_weights, 0.002::DOUBLE, 0.01::DOUBLE) AS tolerance,
       if(complete, n, NULL) AS valid_tokens,
       if(complete AND weighs, a1, NULL) AS loss_weight,
       if(complete AND weighs, a2, NULL) AS loss_weight_sq,
       if(complete AND weighs AND weight_uniform IS NOT NULL AND n IS DISTINCT FROM 0,
          rescaled_a1 / gradient_divisor, NULL) AS total_weight,
       if(weight_uniform AND total_weight IS NOT NULL, n / gradient_divisor, NULL) AS tokens_per_weight,
       if(complete, rows_seen, NULL)::BIGINT AS samples, if(complete, input_seen, NULL)::BIGINT AS input_positions,
       if(complete, attended_seen, NULL)::BIGINT AS attended_positions,
       if(complete, masked_seen, NULL)::BIGINT AS masked_positions,
       if(complete, masked_rows_seen, NULL) AS masked_samples
FROM joined j LEFT JOIN layouts l USING (run_id, launch) LEFT JOIN inferred i USING (run_id, launch, optimizer);

-- What the windows before tell of a window.
CREATE TEMP TABLE histories AS
SELECT run_id, launch, optimizer, attempt_id, lag(attempt_id) OVER in_order = attempt_id - 1 AS follows,
       if(follows, lag(total_weight) OVER in_order, NULL) AS previous_total_weight,
       if(follows, lag(microbatches) OVER in_order, NULL) AS previous_microbatches,
       if(follows, lag(accumulation_steps) OVER in_order, NULL) AS previous_accumulation_steps,
       if(follows, lag(full_applied) OVER in_order, NULL) AS previous_full_applied,
       if(follows IS NOT FALSE OR recorded_every IS NULL, epoch <> lag(epoch) OVER in_order, NULL) AS epoch_changed,
       data_ends_inside IS TRUE OR (lag(data_ends_inside) OVER in_order IS TRUE AND (follows OR recorded_every IS NULL))
           AS data_ends_near,
       last_value(CASE WHEN full_applied AND total_weight > 0 THEN total_weight END IGNORE NULLS)
           OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS full_weight
FROM (SELECT run_id, launch, optimizer, attempt_id, total_weight, microbatches, accumulation_steps, full_applied,
             epoch, data_ends_inside, recorded_every FROM weighed)
WINDOW in_order AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id);

CREATE TEMP TABLE moving AS
SELECT run_id, launch, optimizer
FROM weighed WHERE full_applied GROUP BY ALL
HAVING max(total_weight) > min(total_weight) * (1 + 3 * max(tolerance));

-- What explains a T that is not 1: a tail divided by the full count, positions without loss in the
-- denominator, or a structural factor (where G = W = 2 a T of 0.5 fits two).
-- A total that moves with the data (a constant divisor, a clip by hand) meets any of them by chance now and then:
-- an explanation is kept where half of the launch's wrong windows have it.
CREATE TEMP TABLE fitted AS
WITH wrong AS (
    SELECT run_id, launch, optimizer, attempt_id, total_weight AS t, tolerance, weight_uniform, valid_tokens AS n,
           samples, input_positions, attended_positions, masked_positions, masked_samples, cp, sp,
           accumulation_steps::DOUBLE AS g, microbatches::DOUBLE AS m, gradient_divisor AS w, token_ranks::DOUBLE AS r,
           discarded_microbatches, moving.run_id IS NOT NULL AS full_weights_vary, m < g IS TRUE AS short,
           weight_uniform AND full_weights_vary AS sums,
           total_weight / coalesce(full_weight, 1) AS ratio
    FROM (FROM weighed WHERE abs(total_weight - 1) > tolerance)
    JOIN histories USING (run_id, launch, optimizer, attempt_id) LEFT JOIN moving USING (run_id, launch, optimizer)
),
alone AS (
    SELECT *,
           list_filter(
               map_entries(MAP {
                   'G': g, '1/G': 1 / g, 'W': w, '1/W': 1 / w, 'R': if(r <> w, r, NULL), '1/R': if(r <> w, 1 / r, NULL),
                   'G*W': if(w <> 1, g * w, NULL), 'G*R': if(r <> w AND r <> 1, g * r, NULL),
                   '1/(G*W)': if(w <> 1, 1 / (g * w), NULL),
                   'cp': cp::DOUBLE, '1/cp': 1::DOUBLE / cp, 'sp': sp::DOUBLE, '1/sp': 1::DOUBLE / sp,
                   -- Sums that nothing divides: where all windows have as many tokens, N is a coefficient.
                   'N': if(sums, n, NULL), 'N/W': if(sums AND w <> 1, n / w, NULL),
                   'N/R': if(sums AND r <> w AND r <> 1, n / r, NULL),
                   'm': if(short, m, NULL), '1/m': if(short, 1 / m, NULL), 'm*W': if(short AND w <> 1, m * w, NULL),
                   'm*R': if(short AND r <> w AND r <> 1, m * r, NULL),
                   '1/(m*W)': if(short AND w <> 1, 1 / (m * w), NULL)}),
               lambda f: fits(t, f.value, tolerance)) AS factors,
           list_filter(
               map_entries(MAP {
                   'masked_positions': masked_positions::DOUBLE, 'input_positions': input_positions - n,
                   'attended_positions': attended_positions - n, 'samples': samples::DOUBLE,
                   'masked_samples': masked_samples}),
               lambda x: weight_uniform AND x.value > 0 AND fits(t, n / (n + x.value), tolerance)) AS unscored,
           short AND m > 0 AND t > 0 AND coalesce(discarded_microbatches, 0) = 0
               -- nothing was divided at all, neither by the micro-steps nor by the tokens
               AND len(list_filter([m, m * w, m * r, n, n / w, n / r], lambda f: abs(t / f - 1) <= tolerance)) = 0
               AND if(weight_uniform AND NOT full_weights_vary,
                      abs(ratio - m / g) < abs(ratio - 1), abs(ratio * g / m - 1) <= tolerance)
               AS short_share
    FROM wrong
),
shares AS (
    SELECT * REPLACE (
        short_share AND 2 * count(*) FILTER (short_share) OVER wrong_ones >= count(*) FILTER (short) OVER wrong_ones
            AS short_share)
    FROM alone WINDOW wrong_ones AS (PARTITION BY run_id, launch, optimizer)
)
SELECT * REPLACE (
    if(2 * count(*) FILTER (NOT short_share AND len(factors) > 0) OVER shared_ones
           >= count(*) FILTER (NOT short_share) OVER shared_ones, factors, factors[:0]) AS factors)
FROM shares WINDOW shared_ones AS (PARTITION BY run_id, launch, optimizer);

-- A denominator with x positions too many fits nearly every window that is wrong; a coefficient meets it by chance.
CREATE TEMP TABLE usual AS
SELECT run_id, launch, optimizer, list(kind) AS kinds
FROM (
    SELECT run_id, launch, optimizer, kind
    FROM (SELECT run_id, launch, optimizer, unnest(list_transform(unscored, lambda x: x.key)) AS kind,
                 count(*) OVER (PARTITION BY run_id, launch, optimizer) AS all_windows
          FROM fitted WHERE NOT short_share)
    GROUP BY ALL HAVING count(*) >= 0.9 * any_value(all_windows)
) GROUP BY ALL;

CREATE TEMP TABLE explained AS
WITH kept AS (
    SELECT f.*, list_filter(f.unscored, lambda x: list_contains(kinds, x.key)) AS usual_unscored
    FROM fitted f LEFT JOIN usual USING (run_id, launch, optimizer)
),
nearest AS (
    SELECT *,
           CASE WHEN usual_unscored[1].key = 'masked_positions' THEN usual_unscored[1]
                ELSE list_sort(list_transform(
                    usual_unscored, lambda x, i: {'off': off(t * (n + x.value) / n), 'order': i, 'x': x}))[1].x
           END AS chosen,
           struct_extract(chosen, 'value') AS unscored_positions, struct_extract(chosen, 'key') AS unscored_kind,
           if(chosen IS NULL, factors,
              list_append(factors, {'key': 'N/(N+x)', 'value': n / (n + unscored_positions)})) AS fitting
    FROM kept
)
SELECT run_id, launch, optimizer, attempt_id, unscored_positions, unscored_kind,
       list_transform(fitting, lambda f: f.key) AS weight_factors,
       list_sort(list_transform(fitting, lambda f, i: {'off': off(t / f.value), 'order': i, 'f': f}))[1].f AS best,
       CASE WHEN NOT short_share THEN struct_extract(best, 'key')
            WHEN chosen IS NULL THEN 'tail' ELSE 'N/(N+x)' END AS cause
FROM nearest;

CREATE TABLE windows AS
SELECT w.* EXCLUDE (
           token_ranks_present, data_ends_inside, declared, declared_steps, n, a1, a2, losses, rescaled_a1, w_min,
           w_max, exact_weights, tokens_per_weight, rows_seen, input_seen, attended_seen, masked_seen,
           masked_rows_seen, norm_min, norm_max, norm_before_min, norm_before_max, weighs, cp, sp, writers,
           full_applied),
       h.* EXCLUDE (run_id, launch, optimizer, attempt_id, follows, data_ends_near),
       w_min * tokens_per_weight AS distortion_min, w_max * tokens_per_weight AS distortion_max,
       loss_weight * loss_weight / nullif(loss_weight_sq, 0) AS equivalent_batch,
       losses / nullif(valid_tokens, 0) AS loss,
       if(weighs, coalesce(w.norm_min, s.norm_min), NULL) AS grad_norm_min,
       if(weighs, coalesce(w.norm_max, s.norm_max), NULL) AS grad_norm_max,
       if(weighs, coalesce(w.norm_before_min, s.norm_before_min), NULL) AS grad_norm_before_min,
       if(weighs, coalesce(w.norm_before_max, s.norm_before_max), NULL) AS grad_norm_before_max,
       if(w.ranks >= w.writers, [], missing.ranks_missing) AS ranks_missing,
       h.data_ends_near OR ended.attempt_id IS NOT NULL AS data_ended,
       w.run_id IN (SELECT run_id FROM watched) AS data_watched,
       CASE WHEN abs(w.total_weight - 1) <= w.tolerance THEN 'right'
            WHEN w.total_weight IS NOT NULL THEN coalesce(x.cause, 'unexplained') END AS weight_cause,
       if(w.total_weight IS NULL, NULL, coalesce(x.weight_factors, [])) AS weight_factors,
       x.best.value AS weight_factor, x.unscored_positions, x.unscored_kind,
       digests.param_digests, probes.probe_spread, habits.reduces_together,
       averaging.run_id IS NOT NULL AS averages_parameters
FROM weighed w
JOIN histories h USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN explained x USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN shards s USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN missing USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN ended USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN digests USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN probes USING (run_id, launch, optimizer, attempt_id)
LEFT JOIN habits USING (run_id, launch, optimizer)
LEFT JOIN averaging USING (run_id, launch, optimizer);

-- schedules: a row per run_id, launch and optimizer whose rates move --------------------------------------
-- Filled from the rates (accumaudit/schedules): of all foreign logs, and of the last launch of a ledger that finished.
--   schedule               as declared, else as recognised
--   declared               its shape and length are declared
--   fits                   all rates are on this one schedule, at whole positions that fall behind the steps but never
--                          run ahead; only then the following are known
--   warmup_updates, schedule_updates (the length, warm-up included), decay_updates (of wsd), peak, minimum, power
--   habit                  1 where the log gives the rate that was used, 0 where the one of the next step

CREATE TABLE schedules (
    run_id VARCHAR, launch BIGINT, optimizer BIGINT, schedule VARCHAR, declared BOOLEAN, fits BOOLEAN,
    warmup_updates BIGINT, schedule_updates BIGINT, decay_updates BIGINT, peak DOUBLE, minimum DOUBLE, power DOUBLE,
    habit BIGINT
);

-- positions: a row per record of a foreign log whose schedule fits -----------------------------------------
--   position               steps that the schedule had made by then; NULL where the rate is flat or printed too
--                          coarsely to tell it from the next
--   lag                    attempt_id - habit - position

CREATE TABLE positions (
    run_id VARCHAR, launch BIGINT, optimizer BIGINT, attempt_id BIGINT, position BIGINT, lag BIGINT
);

DROP MACRO rank_total; DROP MACRO fits; DROP MACRO off; DROP TABLE run_records;
DROP TABLE declared; DROP TABLE run_lines; DROP TABLE loss_stages; DROP TABLE layouts; DROP TABLE joined;
DROP TABLE shards; DROP TABLE missing; DROP TABLE inferred; DROP TABLE ended; DROP TABLE watched; DROP TABLE digests;
DROP TABLE probes; DROP TABLE weighed; DROP TABLE histories; DROP TABLE moving; DROP TABLE fitted;
DROP TABLE usual; DROP TABLE explained; DROP TABLE habits; DROP TABLE averaging;
