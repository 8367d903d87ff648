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
so far are thrown away, and the step uses those of the last micro-steps alone.

The other forwards and backwards were paid for nothing. The batch is a fraction of what was declared, and a
loss that was divided by the accumulation count makes the update that much shorter. The loss is logged for
all micro-steps and looks normal.
'''
example = '''
4 micro-steps with a gradient of 1 each, every loss divided by 4, and zero_grad in each micro-step. The step
sees 1/4 instead of 4 * 1/4 = 1, and three of four batches have trained nothing.
'''
fix = '''
Clear the gradients once per window: right after the step.

Hand-written loop: Move zero_grad under the condition that guards optimizer.step(), or to the first
  micro-step of a window.
DDP: The same.
FSDP: The same.
Trainer: Call no zero_grad in compute_loss or in a callback.
Accelerate: Call zero_grad on the prepared optimizer, which does nothing inside a window. model.zero_grad()
  clears at once.
Lightning: In manual optimization guard opt.zero_grad().
DeepSpeed: The engine clears at its boundary. A configured count of 1 makes every backward a boundary.
'''
not_a_fault_when = '''
A tail that is dropped and cleared at the next epoch leaves a whole window: ACC205 counts it. A clear after
the end of the data belongs to the new epoch. A window that was short before anything was cleared is judged
only where a whole one of the launch was cleared too.

Gradients that another optimizer used before they were cleared, as the two sides of a GAN do, were not lost.
Two passes over a window (sharpness-aware minimisation by hand) keep a whole window. Steps that run a
closure are left out.

Gradients that something changed in an unknown way after the last backward are not judged: a loop may add
them up in buffers of its own and put the sum back.

A loop that clears the window when it meets a gradient that is not finite shows the same now and then. It is
a warning while fewer than half of the launch's windows do so, unless the weights are wrong as well.
'''
references = [
    "bytetriper/RAE#67",
    "tatsu-lab/alpaca_farm#57",
    "HorizonRobotics/alf#1788",
    "allenai/open-instruct#1498",
    "huggingface/accelerate#616",
]

[params]
share = 0.5  # the share of a launch's windows from which on it is an error even with right weights
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
