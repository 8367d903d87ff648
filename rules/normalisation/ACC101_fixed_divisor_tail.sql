/*
code = "ACC101"
name = "fixed-divisor-tail"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no window was short"
needs = ["microbatches", "accumulation_steps", "loss_weight", "grad_rescale", "gradient_divisor"]
explains = ["ACC104"]
summary = "a short last window was divided by the full accumulation count"
why = '''
The last window of an epoch often holds fewer micro-steps than the others. A loop that divides every loss by
the accumulation count then divides by too much: the gradient of this window is too short.

The tokens at the end of the data count less than all others. Clipping, weight decay and momentum meet a
gradient of another size. With a short data set it happens in every epoch, and always to the last batches.
'''
example = '''
An epoch has 6 micro-steps of 100 tokens, and 4 micro-steps make an update: windows of 4 and 2. Every loss
is a mean that is divided by 4, so a token weighs 1/4/100 = 0.0025.

    full window   400 tokens * 0.0025 = 1.0
    last window   200 tokens * 0.0025 = 0.5

The last update is half as long as it should be: each of its tokens should weigh 1/200 = 0.005. With a
coefficient of 0.3 on every loss the two totals are 0.30 and 0.15. The rule compares them and still finds
one half.
'''
fix = '''
Divide by what the window really holds: its number of micro-steps, or better its number of valid tokens.

Hand-written loop: Fetch the window's batches first, count their valid tokens, and call backward on the sum
  of the token losses divided by that count. With batches of equal length, divide by len(window).
DDP: Count over all data ranks, and multiply by their number, because DDP averages.
FSDP: As for DDP; or set the gradient divide factor to 1 and leave the number of ranks out.
Trainer: Current releases divide by the real window. A compute_loss of your own must use num_items_in_batch.
Accelerate: backward() always divides by gradient_accumulation_steps. Multiply the loss by that number and
  divide by the tokens gathered for the window.
Lightning: Automatic optimization always divides by accumulate_grad_batches. Choose a number of batches that
  it divides, or use manual optimization.
DeepSpeed: The engine divides by the configured count. Make the epoch a multiple of it, or call
  backward(loss, scale_wrt_gas=False) and divide in the loop.
'''
not_a_fault_when = '''
The short window weighs 1 because it was divided by its own count or tokens. The tail was dropped and never
became an update.

Full and short windows share a coefficient: the short window is judged against the last full one before it.

The totals of the full windows may move (a clip by hand, a constant divisor). Then a short window is found
only if it weighs exactly its share of the full one before it, and most wrong short windows of the launch do
too.

A window of 127 of 128 micro-steps weighs 0.992. It is found in fp32, where the tolerance is 0.002, and
passes in 16 bit, where it is 0.01; the harm is small either way.

A shorter step for a shorter window may be meant. It has the same numbers: ignore the rule then.
'''
references = [
    "Lightning-AI/pytorch-lightning#19987",
    "huggingface/transformers#38837",
    "huggingface/transformers#38872",
    "modelscope/ms-swift#10084",
    "jingyaogong/minimind#749",
]
*/
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       microbatches < accumulation_steps AND weight_cause = 'tail' AS fault,
       total_weight AS observed,
       coalesce(full_weight, 1.0) AS expected,
       format(
           'a short window of {} of {} micro-steps{} weighs {:.3f} {}: '
           || 'its {}s count {:.3f} of what they should',
           microbatches,
           accumulation_steps,
           CASE WHEN accumulation_inferred THEN ' (inferred)' ELSE '' END,
           total_weight,
           CASE
               WHEN abs(coalesce(full_weight, 1.0) - 1) <= tolerance THEN 'of an update'
               ELSE format('where the last full one weighs {:.3f}', full_weight)
           END,
           loss_unit,
           total_weight / coalesce(full_weight, 1.0)
       ) AS message
FROM windows
WHERE (microbatches < accumulation_steps) IS NOT FALSE
  AND applied IS NOT FALSE
