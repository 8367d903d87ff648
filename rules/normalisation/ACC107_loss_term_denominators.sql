/*
code = "ACC107"
name = "loss-term-denominators"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no window had a further loss term in two micro-steps"
needs = ["valid_tokens", "loss_weight", "weight_uniform"]
summary = "the terms of a loss are divided by different denominators, so their balance moves with the data"
why = '''
A loss of several terms is meant to be balanced by its coefficients: a token of an auxiliary term counts,
say, a tenth of a token of the main one. Where one term is divided by the tokens of the whole window, and
another by those of the micro-step, by its rows or by its padded positions, the balance is another one in
every micro-step. It changes with the batch size, the padding and the accumulation. The logged terms look
normal.
'''
example = '''
Two micro-steps of 20 and 80 tokens. The cross entropy is summed and divided by the window's 100 tokens: a
token weighs 0.01 in both. An auxiliary term over the same tokens is a mean over each micro-step, divided by
2 and multiplied by 0.1.

    first    0.1 / 2 / 20 = 0.0025     1/4 of a main token
    second   0.1 / 2 / 80 = 0.000625   1/16 of a main token
'''
fix = '''
Give every term a denominator of the same kind, and let the coefficients alone set their balance.

Hand-written loop: Sum each term over its positions, and divide all of them by counts over the same window.
DDP: Count over the same ranks for every term.
FSDP: As for DDP.
Trainer: An auxiliary loss that is added in compute_loss needs num_items_in_batch just like the main one.
Accelerate: Gather one count for each term and divide by it.
Lightning: Use manual optimization, with all terms divided over the window.
DeepSpeed: Add up the terms before engine.backward, each normalised in the same way.
'''
not_a_fault_when = '''
A balance that is the same in all micro-steps of a window is a coefficient, however it changes from update
to update. So is a balance between the terms as wholes, where each term is a mean over its own positions:
whether such means are right is a matter of ACC102. Where all token counts are equal, no denominator can
move the balance.

A balance that moves without any recorded count explaining it is a note: a coefficient that is annealed with
the micro-steps looks the same.

Micro-steps in which a term is absent or multiplied by 0 are left out. Positions that weigh differently on
purpose are not judged. Terms that no cross entropy of torch computes are not seen.
'''
references = ["allenai/OLMo#634", "verl-project/verl#5625"]

[params]
spread = 0.01  # by how much the balance must differ between micro-steps
*/
WITH terms AS (
    SELECT *, unnest(loss_terms) AS t
    FROM updates
    WHERE loss_terms IS NOT NULL
      AND valid_tokens IS NOT NULL
      AND tokens_rank IS NOT FALSE
      AND applied IS NOT FALSE
),
pairs AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           t.term,
           t.valid_tokens AS own_tokens,
           valid_tokens[t.micro_step] AS main_tokens,
           loss_weight[t.micro_step] AS main_weight,
           samples[t.micro_step] AS samples,
           input_positions[t.micro_step] AS input_positions,
           t.loss_weight IS NOT NULL
               AND t.valid_tokens IS NOT NULL
               AND main_weight IS NOT NULL
               AND weight_uniform[t.micro_step] IS TRUE AS known,
           abs(t.loss_weight / main_weight) AS of_terms,
           of_terms * main_tokens / t.valid_tokens AS of_tokens
    FROM terms
    WHERE (t.loss_weight <> 0 AND t.valid_tokens > 0 AND main_weight <> 0 AND main_tokens > 0) IS NOT FALSE
),
balances AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           term,
           bool_and(known) AS known,
           min(of_tokens) AS lowest,
           max(of_tokens) AS highest,
           max(of_terms) / min(of_terms) AS between_terms,
           max(own_tokens) / min(own_tokens) AS own_counts,
           max(main_tokens) / min(main_tokens) AS main_counts,
           [
               {'name': 'this term is divided by its own tokens of each micro-step, the main one is not',
                'ratio': max(of_tokens * own_tokens) / min(of_tokens * own_tokens)},
               {'name': 'the main term is divided by its tokens of each micro-step, this one is not',
                'ratio': max(of_tokens / main_tokens) / min(of_tokens / main_tokens)},
               {'name':
                'this term is divided by the main one''s tokens of each micro-step, the main one is not',
                'ratio': max(of_tokens * main_tokens) / min(of_tokens * main_tokens)},
               {'name': 'this term is divided by the rows of each micro-step, the main one is not',
                'ratio': max(of_tokens * samples) / min(of_tokens * samples)},
               {'name': 'the main term is divided by the rows of each micro-step, this one is not',
                'ratio': max(of_tokens / samples) / min(of_tokens / samples)},
               {'name': 'this term is divided by the positions of each micro-step, the main one is not',
                'ratio': max(of_tokens * input_positions) / min(of_tokens * input_positions)},
               {'name': 'the main term is divided by the positions of each micro-step, this one is not',
                'ratio': max(of_tokens / input_positions) / min(of_tokens / input_positions)}
           ] AS likely
    FROM pairs
    GROUP BY run_id, launch, optimizer, attempt_id, rank, term
    HAVING count(*) > 1
),
judged AS (
    SELECT b.*,
           1 + greatest($spread, 3 * coalesce(w.tolerance, 0.01)) AS allowed,
           list_filter(likely, lambda one: one.ratio <= allowed)[1].name AS reason,
           CASE
               WHEN known
               THEN highest > lowest * allowed
                    AND between_terms > allowed
                    AND (own_counts > allowed OR main_counts > allowed)
           END AS fault
    FROM balances AS b
    JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       fault,
       CASE WHEN reason IS NULL THEN 'note' ELSE 'warning' END AS severity,
       highest / lowest AS observed,
       1.0 AS expected,
       format(
           'a token of the term {} counts {:.3g} to {:.3g} of a token of the main term, '
           || 'by the micro-step: {}',
           term,
           lowest,
           highest,
           coalesce(
               reason,
               'no count that was recorded explains it; '
               || 'a coefficient that changes inside the window looks the same'
           )
       ) AS message
FROM judged
-- One row for each rank: of its terms the one that says most.
QUALIFY row_number() OVER (
    PARTITION BY run_id, launch, optimizer, attempt_id, rank
    ORDER BY fault IS TRUE DESC, fault IS NULL DESC, reason IS NULL, highest / lowest DESC
) = 1
