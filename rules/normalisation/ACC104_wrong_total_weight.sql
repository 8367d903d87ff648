/*
code = "ACC104"
name = "wrong-total-weight"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was applied"
needs = ["loss_weight", "grad_rescale", "gradient_divisor", "weight_uniform"]
summary = "the weights of an update's positions do not add up to 1"
why = '''
An update follows the mean loss if the weights with which its tokens enter the gradient, over all ranks and
micro-steps, add up to 1. Any other total multiplies every gradient by it.

With SGD that is another learning rate. With Adam most of it cancels, but clipping sets in at another loss,
epsilon and weight decay weigh differently, and the logged norms mean something else. A total that moves
from window to window moves all of this with it.

The value often names the mistake: the accumulation count where nothing was divided by it, one over it where
it was divided by twice, one over the number of ranks where the average over them was not undone.
'''
example = '''
4 micro-steps make an update, every loss is a mean, and the division by 4 was forgotten: the total is 4. A
gradient norm that should be 0.6 becomes 2.4. With a limit of 1 every update is now clipped to 1/2.4 = 0.417
of itself, where none should be clipped.

Two ranks that divide by the tokens of both and let DDP average have a total of 1/2.
'''
fix = '''
Make the weights add up to 1: divide once, by the tokens of the whole window. Where another total is meant,
declare it (loss_coefficients and gradient_divisor of attach).

Hand-written loop: Divide once, by the accumulation count where token counts are equal, or by the window's
  tokens.
DDP: A count over all ranks needs a factor of the number of ranks, because DDP averages. A mean over a
  rank's own tokens needs none.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: A loss function that is given num_items_in_batch must divide by it. An override that returns a mean
  needs loss_is_scaled_for_ga = False. A model whose forward takes **kwargs without using it, as many for
  classification do, needs accepts_loss_kwargs = False.
Accelerate: accelerator.backward() divides already: do not divide in the loop as well.
Lightning: Automatic optimization divides already.
DeepSpeed: engine.backward divides by the configured count unless scale_wrt_gas=False: do not divide before
  it.
'''
not_a_fault_when = '''
A deliberate coefficient on the loss gives a constant total of its size. A total that no structural factor
fits is a note and no more. So is every total while further loss terms are undeclared, while 0.1 % of the
loss or more was not observed, or while positions weigh differently on purpose (class weights). Declare the
coefficient to have it judged.

A total that moves with the data (a constant divisor, a clip by hand) meets a factor by chance now and then:
a factor counts where half of the launch's wrong windows fit one. A coefficient that happens to be one over
the accumulation count cannot be told from a second division.

Gradients that the loop multiplies before the step are taken into account, and so are micro-steps and ranks
without tokens, and losses that are summed or computed in chunks. Where fully masked samples alone were
counted too it may be policy: a note.

Losses that are summed and divided by nothing weigh as much as the update has tokens. That may be meant: a
warning, and only where the updates have different numbers of tokens.

Weights that change sign (a policy gradient), and gradients that an unknown hook reduces, are not judged.
'''
references = [
    "MakazhanAlpamys/Soup#720",
    "huggingface/transformers#46731",
    "huggingface/transformers#35207",
    "huggingface/transformers#35808",
    "meta-pytorch/torchtune#2172",
    "modelscope/ms-swift#10117",
    "ByteDance-Seed/VeOmni#338",
    "huggingface/transformers#46775",
]

[params]
unobserved = 0.001  # the share of the loss outside of the recorded terms from which on it is a note
*/
WITH launches AS (
    SELECT *,
           weight_uniform IS TRUE
           AND several_terms IS NOT TRUE
           AND loss_unobserved < $unobserved AS whole,
           -- An excess of fully masked samples may be policy, unless another factor fits as well.
           CASE
               WHEN weight_cause IN ('right', 'unexplained') THEN FALSE
               WHEN unscored_kind = 'masked_positions' THEN len(weight_factors) > 1
               ELSE TRUE
           END AS structural,
           min(total_weight) FILTER (WHERE weight_cause <> 'tail') OVER launch_windows AS lowest,
           max(total_weight) FILTER (WHERE weight_cause <> 'tail') OVER launch_windows AS highest,
           count(*) FILTER (WHERE weight_cause <> 'tail') OVER launch_windows AS weighed,
           -- Windows whose total is unknown although they have tokens: nothing is said of those.
           count(*) FILTER (WHERE total_weight IS NULL AND valid_tokens IS DISTINCT FROM 0)
               OVER launch_windows AS unweighed
    FROM windows
    WHERE applied IS NOT FALSE
    WINDOW launch_windows AS (PARTITION BY run_id, launch, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       weight_cause <> 'right' AS fault,
       CASE
           WHEN (whole AND structural) IS NOT TRUE THEN 'note'
           -- Sums may be meant: nothing but the loop's author tells them from a division that was forgotten.
           WHEN weight_cause IN ('N', 'N/W', 'N/R') THEN 'warning'
           ELSE 'error'
       END AS severity,
       total_weight AS observed,
       1.0 AS expected,
       format(
           'the weights of the window add up to {:.4g}, not 1{}{}',
           total_weight,
           CASE
               WHEN weight_cause = 'tail'
               THEN format(
                   ': {:.3g} of a full window, with {} of {} micro-steps',
                   total_weight / coalesce(full_weight, 1.0),
                   microbatches,
                   accumulation_steps
               )
               WHEN len(weight_factors) > 0
               THEN format(
                   ': this fits {} ({} micro-steps{}, {} rank{})',
                   array_to_string(weight_factors, ' and '),
                   microbatches,
                   coalesce(format(' of {}', accumulation_steps), ''),
                   coalesce(world_size, ranks),
                   CASE WHEN coalesce(world_size, ranks) = 1 THEN '' ELSE 's' END
               )
               WHEN weighed = 1 AND unweighed > 0 THEN ', and fits no known factor'
               WHEN highest - lowest <= tolerance * abs(highest)
               THEN format(
                   ', in every {} window of the launch; a deliberate coefficient looks the same',
                   CASE WHEN unweighed > 0 THEN 'weighed' ELSE 'full' END
               )
               ELSE format(' ({:.4g} to {:.4g} over the launch), and fits no known factor', lowest, highest)
           END,
           CASE
               WHEN weight_uniform IS NOT TRUE THEN '; the positions of a loss call weigh differently'
               WHEN several_terms THEN '; further loss terms are not declared'
               WHEN loss_unobserved >= $unobserved
               THEN format('; {:.3g} of the loss was not observed', loss_unobserved)
               WHEN loss_unobserved IS NULL THEN '; how much of the loss was observed is unknown'
               ELSE ''
           END
       ) AS message
FROM launches
