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
the full count G gives this window a total weight of m/G instead of 1: its gradient is too short, its tokens
count less than all others, and clipping, weight decay and the momentum of the optimizer meet a gradient of
another size. With a short data set it happens in every epoch, and always to the last batches.
'''
example = '''
Six micro-steps of 100 tokens an epoch, G = 4: windows of 4 and 2. Every loss is a mean divided by 4, so a
token weighs (1/4)/100 = 0.0025. Full window: 400 * 0.0025 = 1. Last window: 200 * 0.0025 = 0.5, where each
of its tokens should weigh 1/200 = 0.005. The update is half as long as it should be. With a coefficient of
0.3 on every loss the totals are 0.30 and 0.15; the rule compares the two and still finds one half.
'''
fix = '''
Divide by the number of micro-steps, or better of tokens, that the window really holds.

Hand-written loop: fetch the window's batches first, count their valid tokens N, and call backward on
  sum_of_token_losses / N; or divide by len(window).
DDP: the same, times the number of data ranks, because DDP averages.
FSDP: the same, or set the gradient divide factor to 1 and leave the factor out.
Trainer: current releases divide by the real window; an own compute_loss must use num_items_in_batch.
Accelerate: backward() always divides by gradient_accumulation_steps: multiply the loss by it and divide by
  the tokens gathered for the window.
Lightning: automatic optimization always divides by accumulate_grad_batches; choose a number of batches that
  it divides, or use manual optimization.
DeepSpeed: the engine divides by the configured count; make the epoch a multiple of it, or pass
  scale_wrt_gas=False and normalise in the loop.
'''
not_a_fault_when = '''
The short window weighs 1 (divided by its own count or tokens): it passes. A tail that is dropped never
becomes an update. A coefficient that full and short windows share is no cause: the short window is then
judged against the last full one before it. Where the totals of the full windows move (a clip by hand, a
constant divisor) a short one is found only if it weighs exactly its share of the full one before, and most
wrong short windows of the launch do. A tail of 127 of 128 weighs 0.992: it is found in fp32, where the
tolerance is 0.002, and passes in 16 bit; the harm is small either way. Whoever wants the shorter step on
purpose (a shorter window, a smaller step) has the same numbers and may ignore this rule.
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
