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
The sum of the token losses is divided by more positions than have a loss: padding, prompts, the first label
of every row that a causal shift removes, or one token for every fully masked sample. The total weight is
then N/(N+x) and moves with the data: a window with much padding makes a short step, a packed one a long
step. It is a learning rate that the collator sets.
'''
example = '''
A window of 100 valid tokens in 256 positions, divided by 256: T = 100/256 = 0.391. The next one has 200
valid tokens: T = 0.781, a gradient twice as long for the same mean loss. Four rows of 25 labels whose first
label is removed by the shift: 96 tokens are scored and 100 counted, T = 0.960.
'''
fix = '''
Count the labels that are scored: after the shift, and without those at the ignore index.

Hand-written loop: N = (labels[..., 1:] != -100).sum() over the window, not labels.numel() or the attention
  mask's sum.
DDP and FSDP: add up this N over the data ranks.
Trainer: for a model of your own that shifts its labels, pass shift_labels or count them in
  compute_loss_func. Before version 5 the first label of each row was counted for every causal model.
Accelerate: gather this N for the window.
Lightning: return sum / N with N over the window, in manual optimization.
DeepSpeed: the same, with scale_wrt_gas=False.

Do not clamp a sample's count to at least one.
'''
not_a_fault_when = '''
The denominator is the valid tokens: it passes. Where the excess is exactly the positions of fully masked
samples it may be policy, as some trainers keep masked samples in the divisor: a note. A constant divisor,
as some policy-gradient losses use, fits N/(N+x) only by chance, and then not in all windows. Where another
factor such as 1/G fits this window as well, where positions weigh differently on purpose, and where the
positions were not recorded the rule does not judge.
'''
references = [
    "radixark/miles#2796",
    "ServiceNow/Fast-LLM#426",
    "allenai/OLMo-core#452",
]

[params]
unobserved = 0.001
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
               WHEN 'masked_positions' THEN 'the positions of samples that are masked as a whole'
               ELSE unscored_kind
           END
       ) AS message
FROM windows
WHERE applied IS NOT FALSE
