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
The data ended inside a window, and its gradients were cleared or left lying. The forwards and backwards
were paid for; their tokens trained nothing. With a new shuffle in every epoch it is a small loss of data;
without one the same samples are never learnt, and with few batches it can be a good part of an epoch. The
number of updates is smaller than the batches divided by G, rounded up: a schedule that was planned with
rounding up does not reach its end.
'''
example = '''
Six batches an epoch and G = 4: one update of 4, and 2 of 6 batches are lost in every epoch, a third of the
data. Three batches and G = 4: no update at all.
'''
fix = '''
Step at the last batch too, divided by what the window holds, or accept that they are lost.

Hand-written loop: `or i + 1 == len(loader)` in the step's condition, with the real count as divisor.
DDP and FSDP: the same on every rank.
Trainer: steps at the end by itself where the dataset has a length.
Accelerate: leave sync_with_dataloader on.
Lightning: automatic optimization steps at the last batch.
DeepSpeed: the window goes on in the next epoch; at the end of training set the boundary by hand.

Or set drop_last and choose a number of batches that G divides.
'''
not_a_fault_when = '''
Dropping a tail is a legitimate choice: this is a note. A run that was interrupted leaves micro-steps behind
without having dropped them: only a run that finished is judged by what it left. Gradients that another
optimizer used before they were cleared were not dropped, and neither were whole windows that were cleared
on purpose (a second pass over the same window).
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
           EXISTS (
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
       -- Where the data is watched its end lies between the last backward and the clear.
       AND regexp_matches(
           word,
           CASE WHEN data_watched THEN '[bB][^FfDbBoZ]*\|[^FfDbBoZ]*Z' ELSE '[bB][^FfDbBoZ]*Z' END
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
