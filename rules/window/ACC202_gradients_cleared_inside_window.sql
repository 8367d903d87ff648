/*
code = "ACC202"
name = "gradients-cleared-inside-window"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "every step ran a closure"
needs = ["microbatches", "discarded_microbatches", "accumulation_steps", "events"]
explains = ["ACC101", "ACC104"]
summary = "gradients were cleared between the micro-steps of a window"
why = '''
zero_grad runs before every micro-step, or once too often in the middle of a window. The gradients gathered
so far are thrown away, and the step uses those of the last micro-steps alone. The forwards and backwards of
the others were paid for nothing, the batch is a fraction of what was declared, and a loss that was divided
by G makes the update that much shorter. The loss is logged for all micro-steps and looks normal.
'''
example = '''
G = 4, equal micro-steps with a gradient of 1, every loss divided by 4, zero_grad in each micro-step: the
step sees 1/4 instead of 4 * 1/4 = 1, and three of four batches have trained nothing.
'''
fix = '''
Clear gradients once per window: right after the step.

Hand-written loop: move zero_grad under the condition that guards optimizer.step, or to the first micro-step
  of a window.
DDP: the same.
FSDP: the same; ZeRO-like engines clear for themselves.
Trainer: no zero_grad in compute_loss or in a callback.
Accelerate: call zero_grad on the prepared optimizer, which does nothing inside a window; model.zero_grad()
  clears at once.
Lightning: in manual optimization guard opt.zero_grad().
DeepSpeed: the engine clears at its boundary; a configured count of 1 makes every backward a boundary.
'''
not_a_fault_when = '''
A tail that is dropped and cleared at the next epoch leaves a whole window: it passes (ACC205 counts it). A
window that was short before anything was cleared is judged only where a whole one of the launch was cleared
too. Gradients that another optimizer used before they were cleared (the two sides of a GAN) were not lost.
A clear after the end of the data belongs to the new epoch. Two passes over the window (sharpness-aware
minimisation by hand) keep a whole window. Gradients that something changed in an unknown way after the last
backward are not judged: a loop may add them up in buffers of its own and put the sum back. Steps that run a
closure are left out. A loop that clears the window when it meets a non-finite gradient shows the same word
now and then: a warning while fewer than half of the launch's windows do, unless the weights are wrong as
well.
'''
references = [
    "bytetriper/RAE#67",
    "tatsu-lab/alpaca_farm#57",
    "HorizonRobotics/alf#1788",
    "allenai/open-instruct#1498",
    "huggingface/accelerate#616",
]

[params]
share = 0.5
*/
WITH scope AS (
    SELECT *,
           microbatches + discarded_microbatches AS held,
           microbatches < accumulation_steps
           AND discarded_microbatches > 0
           -- Changed by no single factor after the last backward: it may be what the loop had kept elsewhere.
           AND CASE WHEN NOT (total_weight IS NULL AND regexp_matches(word, 'M[^bB]*[OX]')) THEN TRUE END
           -- A clear right after a backward: neither another optimizer's step nor an end of data between.
           AND regexp_matches(word, '[bB][^FfDbBoZ|]*Z') AS looks_cleared
    FROM windows
    WHERE closure IS NOT TRUE
),
passes AS (
    SELECT run_id,
           launch,
           optimizer,
           -- Whole windows that are gone through twice: so is the tail.
           coalesce(
               bool_or(microbatches >= accumulation_steps AND discarded_microbatches >= accumulation_steps),
               FALSE
           ) AS two_passes
    FROM scope
    GROUP BY ALL
),
words AS (
    SELECT s.*,
           looks_cleared
           AND NOT (p.two_passes AND discarded_microbatches % nullif(microbatches, 0) = 0) AS cleared
    FROM scope AS s
    JOIN passes AS p USING (run_id, launch, optimizer)
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           bool_or(cleared AND held >= accumulation_steps) AS whole_cleared,
           count(*) FILTER (WHERE cleared) / count(*) AS share
    FROM words
    GROUP BY ALL
),
judged AS (
    SELECT w.*,
           l.share,
           -- A tail is judged only where a whole window of the launch shows the fault.
           w.cleared AND (w.held >= w.accumulation_steps OR l.whole_cleared) AS fault
    FROM words AS w
    JOIN launches AS l USING (run_id, launch, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       CASE
           WHEN weight_cause NOT IN ('right', 'unexplained') THEN 'error'
           WHEN share >= $share THEN 'error'
           ELSE 'warning'
       END AS severity,
       microbatches AS observed,
       least(held, accumulation_steps) AS expected,
       format(
           '{} of {} micro-steps were cleared before the step: the update lost them and holds {}{}',
           discarded_microbatches,
           held,
           microbatches,
           CASE
               WHEN weight_cause <> 'right' THEN format(', which weigh {:.3f} of an update', total_weight)
               ELSE ''
           END
       ) AS message
FROM judged
