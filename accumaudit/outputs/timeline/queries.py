"""The questions to the tables of an audited ledger that a timeline is made of.

All are about one run, $run; `reported` holds the faulty rows that a report tells.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = 10
"""Attempts at the beginning of a section that are shown."""

TAIL: Final = 5
"""Those at its end."""

FAULTY: Final = 100
"""Those with a fault between, of a section; of more, the rest is counted."""

NEAR: Final = 2
"""Attempts shown before and after one that is asked for."""

SMALL_GAP: Final = 2
"""So many left out would cost a line all the same."""

OVERVIEW: Final = f"""
    place <= {HEAD} OR place > total - {TAIL} OR (codes IS NOT NULL AND faulty_so_far <= {FAULTY})
"""

# The attempts of the nearest id that was recorded, where the section has ids on both sides of it.
AT_UPDATE: Final = """
    $around::BIGINT BETWEEN min(id) OVER its_section AND max(id) OVER its_section
    AND abs(id - $around::BIGINT) = min(abs(id - $around::BIGINT)) OVER its_section
"""

AT_PLACES: Final = """
    list_contains($around, {'launch': launch, 'optimizer': optimizer, 'attempt_id': attempt_id})
"""

AROUND: Final = f"""
    bool_or(here) OVER (
        PARTITION BY launch, optimizer ORDER BY place ROWS BETWEEN {NEAR} PRECEDING AND {NEAR} FOLLOWING)
"""

# What stands before a resume is the end of the launch before.
BESIDE: Final = """
    bool_or(here) OVER (
        PARTITION BY optimizer ORDER BY launch, place ROWS BETWEEN %(near)d PRECEDING AND %(near)d FOLLOWING)
"""

SHOWN: Final = """
CREATE OR REPLACE TEMP TABLE shown AS
WITH found AS (
    SELECT launch, optimizer, attempt_id, min(severity) AS severity,
           list(DISTINCT {'s': severity, 'c': code}) AS codes
    FROM reported WHERE run_id = $run GROUP BY launch, optimizer, attempt_id
),
numbered AS (
    SELECT w.*, f.codes, f.severity, coalesce(w.optimizer_update_id, w.attempt_id) AS id,
           row_number() OVER in_order AS place, count(f.codes) OVER in_order AS faulty_so_far,
           count(*) OVER (PARTITION BY w.launch, w.optimizer) AS total
    FROM windows w LEFT JOIN found f USING (launch, optimizer, attempt_id)
    WHERE w.run_id = $run
    WINDOW in_order AS (PARTITION BY w.launch, w.optimizer ORDER BY w.attempt_id)
),
aimed AS (
    SELECT *, %(here)s AS here
    FROM numbered WINDOW its_section AS (PARTITION BY launch, optimizer)
),
marked AS (SELECT *, coalesce((%(wanted)s), false) AS wanted FROM aimed),
spaced AS (
    SELECT *, max(place) FILTER (wanted) OVER (up_to_here ROWS UNBOUNDED PRECEDING) AS shown_before,
           min(place) FILTER (wanted) OVER (up_to_here ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
               AS shown_after
    FROM marked WINDOW up_to_here AS (PARTITION BY launch, optimizer ORDER BY place)
),
chosen AS (FROM spaced WHERE wanted OR shown_after - shown_before <= %(gap)d),
written AS (
    SELECT u.launch, u.optimizer, u.attempt_id, arg_min(u.events, u.rank) AS events,
           max(u.grad_norm_before_clip) FILTER (u.grad_norm_before_scope = 'global') AS grad_norm_before_clip,
           max(u.grad_norm_after_clip) FILTER (u.grad_norm_after_scope = 'global') AS grad_norm_after_clip,
           bool_or(u.grad_norm_after_clip_nonfinite OR u.grad_norm_before_clip_nonfinite) AS norm_nonfinite,
           bool_or(u.loss_nonfinite) AS loss_nonfinite,
           max(u.reported_loss) AS reported_loss,
           bool_or(u.reported_loss_nonfinite) AS reported_loss_nonfinite,
           min(u.grad_scale) AS grad_scale_min, max(u.grad_scale) AS grad_scale_max,
           -- of records that have sums in place of their lists
           sum(u.window_sums.loss * u.window_sums.valid_tokens) FILTER (u.tokens_rank IS NOT FALSE)
               / nullif(sum(u.window_sums.valid_tokens) FILTER (u.tokens_rank IS NOT FALSE), 0) AS mean_loss
    FROM updates u SEMI JOIN chosen USING (launch, optimizer, attempt_id)
    WHERE u.run_id = $run GROUP BY u.launch, u.optimizer, u.attempt_id
),
losses AS (
    SELECT m.launch, m.optimizer, m.attempt_id,
           CASE WHEN count(*) FILTER (m.n IS NULL OR (m.n > 0 AND m.loss IS NULL)) = 0
                THEN sum(m.loss * m.n) FILTER (m.n > 0) / sum(m.n) FILTER (m.n > 0) END AS loss
    FROM microbatches m SEMI JOIN chosen USING (launch, optimizer, attempt_id)
    WHERE m.run_id = $run AND m.tokens_rank IS NOT FALSE GROUP BY m.launch, m.optimizer, m.attempt_id
)
SELECT c.run_id, c.launch, c.optimizer, c.attempt_id, c.optimizer_update_id, c.applied, c.applied_ranks,
       c.skipped_ranks, c.microbatches, c.microbatches_min, c.discarded_microbatches, c.accumulation_steps,
       coalesce(c.accumulation_inferred, false) AS accumulation_inferred, c.valid_tokens, c.total_weight,
       c.weight_cause, c.tolerance, c.distortion_min, c.distortion_max,
       -- what a foreign log says is all that is known of it
       coalesce(l.loss, u.mean_loss, CASE WHEN k.is_foreign THEN u.reported_loss END) AS loss,
       coalesce(u.loss_nonfinite, k.is_foreign AND u.reported_loss_nonfinite, false) AS loss_nonfinite,
       c.learning_rate_min, c.learning_rate_max,
       u.grad_norm_before_clip, u.grad_norm_after_clip, coalesce(u.norm_nonfinite, false) AS norm_nonfinite,
       u.grad_scale_min, u.grad_scale_max, u.events, c.severity, c.place, c.faulty_so_far,
       list_transform(list_sort(c.codes), lambda x: x.c) AS codes
FROM chosen c
LEFT JOIN written u USING (launch, optimizer, attempt_id)
LEFT JOIN losses l USING (launch, optimizer, attempt_id)
CROSS JOIN (SELECT any_value(format) <> 'ledger' AS is_foreign FROM runs WHERE run_id = $run) k
"""
"""The attempts that are wanted; a gap of a line or two among them is closed."""

ATTEMPTS: Final = """
SELECT * EXCLUDE (run_id) FROM shown WHERE run_id = $run ORDER BY launch, optimizer, attempt_id
"""

SECTIONS: Final = """
SELECT w.launch, w.optimizer, count(*) AS total, count(f.attempt_id) AS faulty,
       min(coalesce(w.optimizer_update_id, w.attempt_id)) AS first_id,
       max(coalesce(w.optimizer_update_id, w.attempt_id)) AS last_id
FROM windows w
LEFT JOIN (SELECT DISTINCT launch, optimizer, attempt_id FROM reported WHERE run_id = $run) f
    USING (launch, optimizer, attempt_id)
WHERE w.run_id = $run GROUP BY w.launch, w.optimizer ORDER BY w.launch, w.optimizer
"""

DECLARED: Final = (
    "started_at",
    "resumed_from_update",
    "scheduler_class",
    "accumulation_steps",
    "max_grad_norm",
    "recorded_every",
)
"""What LAUNCHES tells of a launch, besides its ranks and optimizers."""

LAUNCHES: Final = """
SELECT launch, min(started_at) AS started_at, list_sort(list(DISTINCT rank)) AS ranks,
       max(resumed_from_update) AS resumed_from_update, any_value(optimizers) AS optimizers,
       any_value(scheduler_class) AS scheduler_class, max(accumulation_steps) AS accumulation_steps,
       max(max_grad_norm) AS max_grad_norm, max(recorded_every) AS recorded_every
FROM runs WHERE run_id = $run GROUP BY launch ORDER BY launch
"""

MARKS: Final = """
SELECT launch, optimizer, coalesce(attempt_id, 0) AS attempt_id, kind, name, max(epoch) AS epoch, reason,
       finished, leftover_microbatches, lost_records, list_sort(list(DISTINCT rank)) AS ranks
FROM marks WHERE run_id = $run
GROUP BY launch, optimizer, marks.attempt_id, kind, name, reason, finished, leftover_microbatches,
         lost_records
ORDER BY launch, 3, min(seq), min(place)
"""

FAULTS: Final = """
SELECT launch, optimizer, attempt_id, code, severity, rank, message
FROM reported SEMI JOIN shown USING (launch, optimizer, attempt_id)
WHERE run_id = $run
ORDER BY severity, code, rank NULLS FIRST, message
"""

RANKS: Final = """
SELECT launch, optimizer, attempt_id, rank, file, line, events, applied, microbatches,
       discarded_microbatches, learning_rate, grad_norm_before_clip, grad_norm_after_clip,
       grad_norm_after_scope, coalesce(grad_norm_after_clip_nonfinite, false) AS norm_nonfinite, grad_scale,
       grad_rescale, skip_evidence, window_sums
FROM updates SEMI JOIN shown USING (launch, optimizer, attempt_id)
WHERE run_id = $run ORDER BY rank
"""

STEPS: Final = """
SELECT m.launch, m.optimizer, m.attempt_id, m.rank, m.micro_step, m.n, m.loss_weight, m.w,
       CASE WHEN m.weight_uniform THEN m.w * m.grad_rescale / m.gradient_divisor * s.valid_tokens END
           AS distortion,
       m.weight_uniform, m.loss, m.loss_scale, m.samples, m.input_positions, m.attended_positions,
       m.masked_positions
FROM microbatches m JOIN shown s USING (launch, optimizer, attempt_id)
WHERE m.run_id = $run ORDER BY m.rank, m.micro_step
"""
