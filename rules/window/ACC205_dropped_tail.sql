/*
code = "ACC205"
name = "dropped-tail"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no window and no end of a run was seen"
needs = ["discarded_microbatches"]
summary = "the last micro-steps of the data were computed and never applied"
why = '''
The data ended inside a window, and the gradients of this tail were cleared or left lying. Their forwards
and backwards were paid for, and their tokens trained nothing.

With a new shuffle in every epoch this is a small loss of data. Without one the same samples are never
learnt, and with few batches it can be a good part of an epoch. A schedule that was planned with the number
of windows rounded up does not reach its end.
'''
example = '''
Six batches an epoch, 4 micro-steps an update: one update, and 2 of 6 batches are lost in every epoch, a
third of the data. With three batches an epoch there is no update at all.
'''
fix = '''
Step at the last batch too, divided by what the window holds, or accept that the tail is lost.

Hand-written loop: Add or i + 1 == len(loader) to the step's condition, with the real count as divisor. Or
  set drop_last and choose a number of batches that the accumulation count divides.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: It steps at the end by itself where the dataset has a length.
Accelerate: Leave sync_with_dataloader on.
Lightning: Automatic optimization steps at the last batch.
DeepSpeed: The window goes on in the next epoch. At the end of training set the boundary by hand.
'''
not_a_fault_when = '''
Dropping a tail is a legitimate choice: this is a note and no more.

A run that was interrupted leaves micro-steps behind without having dropped them: only a run that finished
is judged by what it left. Gradients that another optimizer used before they were cleared were not dropped,
and neither were whole windows that were cleared on purpose (a second pass over the same window).
'''
references = [
    "NVIDIA-NeMo/Automodel#2257",
    "tracel-ai/burn#5695",
    "dscripka/openWakeWord#316",
]
*/
WITH sharing AS (
    -- Optimizers whose gradients another one uses before they are cleared: what they leave is not lost.
    SELECT DISTINCT run_id, launch, optimizer
    FROM windows
    WHERE regexp_matches(word, '[bB]o+Z')
),
ends AS (
    SELECT *,
           EXISTS(
               SELECT 1
               FROM sharing AS s
               WHERE s.run_id = marks.run_id
                 AND s.launch = marks.launch
                 AND s.optimizer = coalesce(marks.optimizer, s.optimizer)
           ) AS shares
    FROM marks
    WHERE kind = 'close'
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       discarded_microbatches > 0
       AND discarded_microbatches < accumulation_steps
       AND microbatches >= accumulation_steps
       -- Where the data is watched its end lies between the last backward and the clear, or the next pass begins
       -- there: a loop that fetches whole windows sees the end before the window that it leaves out.
       AND (
           regexp_matches(
               word,
               CASE WHEN data_watched THEN '[bB][^FfDbBoZ]*\|[^FfDbBoZ]*Z' ELSE '[bB][^FfDbBoZ]*Z' END
           )
           OR regexp_matches(word, '[bB][^FfDbBoZ]*Z') AND EXISTS (
               SELECT 1
               FROM marks AS m
               WHERE m.kind = 'epoch_end'
                 AND m.run_id = windows.run_id
                 AND m.launch = windows.launch
                 AND coalesce(m.optimizer, windows.optimizer) = windows.optimizer
                 AND m.attempt_id = windows.attempt_id - 1
                 AND m.micro_step_id = windows.micro_step_id - windows.microbatches
           )
       ) AS fault,
       discarded_microbatches AS observed,
       0 AS expected,
       format(
           '{} before this window {} computed and cleared without a step',
           CASE
               WHEN discarded_microbatches = 1 THEN '1 micro-step'
               ELSE format('{} micro-steps', discarded_microbatches)
           END,
           CASE WHEN discarded_microbatches = 1 THEN 'was' ELSE 'were' END
       ) AS message
FROM windows
WHERE closure IS NOT TRUE
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN leftover_microbatches IS NULL THEN NULL
           WHEN leftover_microbatches = 0 OR NOT finished OR shares THEN FALSE
           WHEN finished THEN leftover_microbatches > 0
       END AS fault,
       leftover_microbatches AS observed,
       0 AS expected,
       format(
           'the last {}{} {} computed and never applied',
           CASE
               WHEN leftover_microbatches = 1 THEN 'micro-step'
               ELSE format('{} micro-steps', leftover_microbatches)
           END,
           coalesce(format(' ({:.15g} valid positions)', leftover_valid_tokens), ''),
           CASE WHEN leftover_microbatches = 1 THEN 'was' ELSE 'were' END
       ) AS message
FROM ends
