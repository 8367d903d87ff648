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
Taken over all ranks and micro-steps, the weights with which positions reach the reduced gradient add up to
1 when the update follows the mean loss. Any other total multiplies every gradient by it. With SGD this is
another learning rate. With Adam most of it cancels, but clipping sets in at another loss, epsilon and
weight decay weigh differently, and the logged norms mean something else; a total that changes from window
to window changes all of this with it. The value often names the mistake: G where nothing was divided, 1/G
where it was divided twice, 1/W where the average over W ranks was not undone, N/(N+x) where x positions
without loss were counted too.
'''
example = '''
G = 4, every loss a mean, and the division by 4 was forgotten: T = 4. A gradient norm that should be 0.6
becomes 2.4, and with a limit of 1 it is now clipped to 0.417 of itself in every update, where it would not
have been clipped at all. Two ranks that divide by the global token count and let DDP average: T = 0.5.
'''
fix = '''
Declare what is meant (loss_coefficients, gradient_divisor of attach), or make the weights add up to 1: divide
once, by the tokens of the whole window.

Hand-written loop: one division, by G (equal token counts) or by the window's tokens.
DDP: a global denominator needs a factor of the number of ranks, because DDP averages; a local mean needs
  none.
FSDP: the same, or a gradient divide factor of 1.
Trainer: a loss function that is given num_items_in_batch must divide by it; an override that returns a mean
  needs loss_is_scaled_for_ga = False, and a model whose forward takes **kwargs and does not use it, as many for
  classification do, needs accepts_loss_kwargs = False.
Accelerate: use accelerator.backward(), which divides, or divide in the loop, not both.
Lightning: automatic optimization divides already.
DeepSpeed: engine.backward divides by the configured count unless scale_wrt_gas=False; do not divide before
  it.
'''
not_a_fault_when = '''
A deliberate coefficient on the loss gives a constant total of its size: without a structural factor that
fits, it is a note, and so is every total while further loss terms are undeclared, a part of the loss was
not observed, or positions weigh differently on purpose (class weights). A total that moves with the data (a
constant divisor, a clip by hand) meets a factor by chance now and then: a factor counts where half of the
launch's wrong windows fit one. Declare the coefficient to have it judged; a coefficient that happens to
equal 1/G cannot be told from a second division. Gradients that are multiplied by hand before the step are
taken into account, and so are zero-token micro-steps and ranks, summed losses and chunked ones. Weights
that change sign (a policy gradient), or a gradient that an unknown hook reduces, are not judged. Where the
excess is positions of fully masked samples it may be policy: a note.
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
unobserved = 0.001
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
       CASE WHEN whole AND structural THEN 'error' ELSE 'note' END AS severity,
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
