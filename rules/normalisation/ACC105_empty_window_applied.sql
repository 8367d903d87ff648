/*
code = "ACC105"
name = "empty-window-applied"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update with a backward was applied"
needs = ["valid_tokens"]
summary = "an update was applied although no token of its window had a loss"
why = '''
Every label of a window may be masked on every rank: an answer cut off by the maximum length, a bad shard, a
collator that masks too much. Then there is nothing to learn, and yet the optimizer steps. Momentum carries
the parameters on, weight decay shrinks them, and the schedule spends one of its steps. A gradient that is
not zero comes from somewhere else than the data.

With a mean over no token the loss is NaN as well, and often logged as 0.
'''
example = '''
AdamW without weight decay at a rate of 1e-3, after many equal gradients. A normal update moves a parameter
by 0.00100. An update whose gradient is all zero still moves it by 0.00090: momentum keeps 0.9 of itself,
while the second moment keeps 0.999.
'''
fix = '''
Skip the step of a window without valid tokens, or keep such samples out of the data.

Hand-written loop: Count the window's valid tokens first. Where there are none, clear the gradients and go
  on without optimizer.step() and scheduler.step().
DDP: Count over all ranks, so that all of them skip.
FSDP: As for DDP.
Trainer: Filter samples whose labels are all -100 after truncation.
Accelerate: Gather the count over the ranks, then skip the calls on all of them.
Lightning: Filter the data, or return None from training_step on every rank.
DeepSpeed: Filter the data: the engine steps at its boundary whatever the loss.
'''
not_a_fault_when = '''
A micro-step or a rank without a valid token is legal as long as the window has one anywhere.

A loss that the hooks did not see, or further loss terms that bring a gradient of their own, make no empty
window. An update whose gradients are all zero while no schedule moved is not reported.
'''
references = [
    "huggingface/trl#6668",
    "NVIDIA-NeMo/Automodel#3796",
    "karpathy/nanochat#623",
    "mosaicml/composer#3682",
]

[params]
unobserved = 0.001  # the share of the loss outside of the recorded terms from which on a window is not empty
*/
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN several_terms OR loss_unobserved >= $unobserved THEN FALSE
           ELSE valid_tokens = 0 AND (grad_norm_max > 0 OR word LIKE '%S%')
       END AS fault,
       valid_tokens AS observed,
       NULL AS expected,
       format(
           'no {} of {} micro-steps on {} rank{} had a loss, yet the update was applied{}{}',
           loss_unit,
           microbatches,
           ranks,
           CASE WHEN ranks = 1 THEN '' ELSE 's' END,
           CASE
               WHEN grad_norm_max > 0 THEN format(' with a gradient norm of {:.3g}', grad_norm_max)
               ELSE ''
           END,
           CASE
               WHEN word LIKE '%S%' THEN ' and the schedule moved on'
               ELSE ''
           END
       ) AS message
FROM windows
WHERE applied IS NOT FALSE
  AND (microbatches > 0) IS NOT FALSE
