/*
code = "ACC204"
name = "window-too-long"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "every step ran a closure"
needs = ["microbatches", "accumulation_steps"]
summary = "a window holds more micro-steps than a full one"
why = '''
A step came late: the rest of one epoch leaked into the first window of the next, or two counters disagree
about where a window ends.

Divided by the usual accumulation count, the update is too long. Divided by its own tokens it is a right
update over more data than was declared, at the same learning rate.
'''
example = '''
Epochs of 6 batches, a step whenever (i + 1) % 4 == 0, and no clear between the epochs. The first window of
the second epoch holds batches 5 and 6 of the first epoch and 1 to 4 of its own. Six losses divided by 4
weigh 6/4 = 1.5.
'''
fix = '''
End a window at its declared number of micro-steps, and end or clear what is left when the data ends.

Hand-written loop: Step at the last batch too, divided by what the window holds; or clear the gradients at
  the end of an epoch; or count micro-steps over epochs instead of by the batch index.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Give the dataset a length. Without one the rest of an epoch leaks into the next.
Accelerate: Leave sync_with_dataloader on, or count over epochs throughout.
Lightning: In manual optimization count the batches yourself.
DeepSpeed: The engine counts over epochs: do not end windows by a second counter.
'''
not_a_fault_when = '''
A loop that changes accumulation_steps during the run declares the new number: it holds from the window in
which it is declared.

It is a note where the count was not declared but inferred from the windows themselves. It is a note too
where the windows are right and the launch's usual ones are as long: the count was declared wrongly, or each
batch is gone through twice (adversarial training).

Where no forward was seen, every backward counts as a micro-step, so two backwards for each would double the
number. There the rule judges only windows longer than the launch's usual ones, and only where these have
the declared length. Steps that run a closure are left out.
'''
references = [
    "WalkingMeatAxolotl/AnimaLoraStudio#305",
    "timoschick/pet#25",
]
*/
WITH judged AS (
    SELECT *,
           mode(microbatches) OVER (PARTITION BY run_id, launch, optimizer) AS usual,
           regexp_matches(word, '[FfD]') IS NOT FALSE AS forward_seen
    FROM windows
    WHERE closure IS NOT TRUE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN microbatches <= accumulation_steps THEN FALSE
           WHEN forward_seen OR usual = accumulation_steps THEN microbatches > accumulation_steps
       END AS fault,
       CASE
           WHEN accumulation_inferred THEN 'note'
           -- Right windows, all longer: two passes over each batch, or a count that was declared wrongly.
           WHEN usual > accumulation_steps AND weight_cause = 'right' THEN 'note'
           ELSE 'warning'
       END AS severity,
       microbatches AS observed,
       accumulation_steps AS expected,
       format(
           'a window of {} micro-steps where {} {}{}',
           microbatches,
           accumulation_steps,
           CASE WHEN accumulation_inferred THEN 'are usual (inferred)' ELSE 'are declared' END,
           coalesce(format('; it weighs {:.3f} of an update', total_weight), '')
       ) AS message
FROM judged
