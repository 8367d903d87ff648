/*
code = "ACC201"
name = "step-inside-window"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no window followed another without a closure"
needs = ["microbatches", "accumulation_steps"]
explains = ["ACC101", "ACC104"]
summary = "the optimizer stepped before the window was full"
why = '''
The optimizer steps on every micro-step, or somewhere in the middle of a window. What was meant as one
update becomes several small ones.

The later gradients are then taken at parameters that have already moved. Momentum and Adam's second moment
see noisier gradients, weight decay is applied once for each step, and a schedule that follows the steps
runs ahead. The batch is a fraction of what was declared.
'''
example = '''
Minimise f(x) = x^2/2 from x = 2, where the gradient is x.

    one step of 0.2     2 - 0.2 * 2 = 1.6
    two steps of 0.1    2 - 0.1 * 2 = 1.8, then 1.8 - 0.1 * 1.8 = 1.62

The second gradient was taken at 1.8 and no longer at 2.
'''
fix = '''
Step only after the last micro-step of a window.

Hand-written loop: Put clip, step, schedule and zero_grad under if (i + 1) % accumulation_steps == 0 or i +
  1 == len(loader). An optimizer that steps in a hook of backward (fused backward, layer-wise updates)
  cannot accumulate: do without it, or without accumulation.
DDP: The same condition must also end no_sync.
FSDP: As for DDP.
Trainer: Keep gradient_accumulation_steps in the arguments, and let no callback step.
Accelerate: Step through the prepared optimizer inside accelerator.accumulate(model).
Lightning: In manual optimization guard opt.step() yourself.
DeepSpeed: Let the engine step: its configured count is the window.
'''
not_a_fault_when = '''
One short window is a tail, or a micro-step that was skipped for a loss that is not finite. Two in a row
count only where together they fit into one window, or where no window of the launch was ever full.

A window before which the data ended is the first of a new epoch. So epochs shorter than a window pass where
the dataloader is given to attach. Without it they look the same as the fault: an error where the weights
are wrong as well, a note where they are right and no window is a single micro-step, and else a warning.
With an accumulation count of 2 and full windows beside it is a warning: two skipped micro-steps look like a
step between.

Left out are steps that run a closure (LBFGS, SAM), steps without a backward, and one backward through the
summed losses of a window's forwards.

Windows that are filled up to a number of tokens have no accumulation count: do not declare
accumulation_steps for them. A count that is only inferred from the windows is not judged.
'''
references = [
    "jiaweizzhao/GaLore#78",
    "pytorch/pytorch#124523",
    "huggingface/accelerate#2790",
]
*/
WITH steps AS (
    SELECT *,
           CASE
               -- A whole window's forwards, and one backward through the sum of their losses.
               WHEN microbatches = 1
                    AND length(regexp_replace(word, '[^FfD]', '', 'g')) >= accumulation_steps
               THEN greatest(accumulation_steps, 1 + discarded_microbatches)
               ELSE microbatches + discarded_microbatches
           END AS held
    FROM windows
    WHERE closure IS NOT TRUE
      AND (microbatches + discarded_microbatches > 0) IS NOT FALSE
),
pairs AS (
    SELECT *,
           lag(held) OVER attempts AS held_before,
           lag(accumulation_steps) OVER attempts AS steps_before,
           (lag(attempt_id) OVER attempts IS NOT DISTINCT FROM attempt_id - 1) AS paired,
           bool_or(held >= accumulation_steps) OVER (PARTITION BY run_id, launch, optimizer) AS some_full
    FROM steps
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
seconds AS (
    SELECT *,
           CASE
               WHEN NOT paired AND held IS NOT NULL THEN FALSE
               WHEN accumulation_inferred IS NOT TRUE AND held IS NOT NULL AND held_before IS NOT NULL
               THEN held < accumulation_steps
                    AND held_before < steps_before
                    AND (held + held_before <= accumulation_steps OR NOT some_full)
                    AND data_ended IS NOT TRUE
                    AND epoch_changed IS NOT TRUE
           END AS stepped_again
    FROM pairs
),
judged AS (
    SELECT *,
           lead(held) OVER attempts AS held_after,
           lead(paired) OVER attempts IS TRUE AS paired_after,
           CASE WHEN lead(paired) OVER attempts THEN lead(stepped_again) OVER attempts ELSE FALSE END
               AS will_step_again
    FROM seconds
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       -- Both windows of a pair are short.
       stepped_again OR will_step_again AS fault,
       CASE
           WHEN weight_cause NOT IN ('right', 'unexplained') THEN 'error'
           WHEN data_watched AND (accumulation_steps > 2 OR NOT some_full) THEN 'error'
           -- Right windows of several micro-steps: short epochs, or a count that was declared wrongly.
           WHEN NOT data_watched AND weight_cause = 'right' AND least(held, held_before, held_after) > 1
           THEN 'note'
           ELSE 'warning'
       END AS severity,
       held AS observed,
       accumulation_steps AS expected,
       format(
           'the optimizer stepped after {} and again after {} of {} micro-steps{}',
           CASE WHEN will_step_again THEN held ELSE held_before END,
           CASE WHEN will_step_again THEN held_after ELSE held END,
           accumulation_steps,
           CASE
               WHEN NOT data_watched THEN '; no dataloader was given, so the data may have ended between'
               WHEN accumulation_steps = 2 AND some_full
               THEN '; micro-steps that the loop skipped would look the same'
               ELSE ' in the middle of the data'
           END
       ) AS message
FROM judged
WHERE paired
   OR paired_after
