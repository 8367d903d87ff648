/*
code = "ACC110"
name = "unscored-tokens-in-denominator"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was applied"
needs = ["loss_weight", "valid_tokens", "weight_uniform", "grad_rescale", "gradient_divisor"]
explains = ["ACC104", "ACC802"]
summary = "the denominator counts positions that have no loss"
why = '''
The sum of the token losses is divided by more positions than have a loss. Counted too are padding, prompts,
the first label of every row that a causal shift removes, or one token for every fully masked sample.

The total weight is then the share of valid tokens among the counted ones, and moves with the data: a window
with much padding makes a short step, a packed one a long step. It is a learning rate that the collator
sets.
'''
example = '''
A window of 100 valid tokens in 256 positions, divided by 256: the total weight is 100/256 = 0.391. The next
window has 200 valid tokens: 200/256 = 0.781, twice as long a gradient for the same mean loss.

Four rows of 25 labels lose their first label to the shift: 96 tokens have a loss and 100 are counted, which
gives 0.960.
'''
fix = '''
Count the labels that have a loss: after the shift, and without those at the ignored index.

Hand-written loop: Count (labels[..., 1:] != -100).sum() over the window, not labels.numel() or the sum of
  the attention mask. Do not clamp a sample's count to at least one.
DDP: Add up this count over the data ranks.
FSDP: As for DDP.
Trainer: For a model of your own that shifts its labels, pass shift_labels or count in compute_loss_func.
  Before version 5 the first label of each row was counted for every causal model.
Accelerate: Gather this count for the window.
Lightning: Use manual optimization, with the sum divided by this count over the window.
DeepSpeed: Divide by this count and call backward(loss, scale_wrt_gas=False).
'''
not_a_fault_when = '''
The denominator is the number of valid tokens. Where the excess is exactly the positions of fully masked
samples it may be policy, as some trainers keep masked samples in the divisor: a note. So it is while
further loss terms are undeclared, or while 0.1 % of the loss or more was not observed.

A constant divisor, as some policy-gradient losses use, fits such a share only by chance, and then not in
all windows.

Not judged: windows that another factor fits as well (such as one over the accumulation count), positions
that weigh differently on purpose, and windows whose positions were not recorded.
'''
references = [
    "radixark/miles#2796",
    "ServiceNow/Fast-LLM#426",
    "allenai/OLMo-core#452",
]

[params]
unobserved = 0.001  # the share of the loss outside of the recorded terms from which on it is a note
*/
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN weight_cause IN ('right', 'tail') THEN FALSE
           WHEN weight_uniform IS NOT TRUE OR weight_cause IS NULL THEN NULL
           WHEN coalesce(input_positions, attended_positions, samples, masked_positions) IS NULL THEN NULL
           WHEN unscored_kind IS NULL THEN FALSE
           -- Another factor fits as well: the record does not tell which of them it is.
           WHEN len(weight_factors) > 1 THEN NULL
           ELSE TRUE
       END AS fault,
       CASE
           WHEN unscored_kind <> 'masked_positions'
                AND several_terms IS NOT TRUE
                AND loss_unobserved < $unobserved
           THEN 'error'
           ELSE 'note'
       END AS severity,
       total_weight AS observed,
       1.0 AS expected,
       format(
           'the denominator counts {:.15g} positions without loss besides {:.15g} valid {}s, '
           || 'which weigh {:.3f} of an update; {:.15g} is {}',
           unscored_positions,
           valid_tokens,
           loss_unit,
           total_weight,
           unscored_positions,
           CASE unscored_kind
               WHEN 'samples' THEN 'the number of samples: one position a row'
               WHEN 'input_positions' THEN 'all other positions of the input, padding included'
               WHEN 'attended_positions' THEN 'all other positions under the attention mask'
               WHEN 'masked_samples' THEN 'the number of samples that are masked as a whole: one position each'
               WHEN 'masked_positions' THEN 'the positions of samples that are masked as a whole'
               ELSE unscored_kind
           END
       ) AS message
FROM windows
WHERE applied IS NOT FALSE
