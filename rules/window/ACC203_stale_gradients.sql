/*
code = "ACC203"
name = "stale-gradients"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no attempt followed another without a closure"
needs = ["events", "microbatches", "accumulation_steps"]
explains = ["ACC104", "ACC204"]
summary = "the gradients of the attempt before were not cleared and count again"
why = '''
Between two steps nothing cleared the gradients. The new ones are added to those that the last step has
already used. Old batches count again and again, with gradients of parameters that are long gone.

The norm grows with every update, and with clipping the newest batch is a smaller and smaller part of the
step. The loss may still fall for a while, as it does with too much momentum.
'''
example = '''
A gradient of 1 in every window, and SGD with a rate of 0.1. Cleared, three updates move the parameter by
0.1 + 0.1 + 0.1 = 0.3. Never cleared, the gradients are 1, 2 and 3, and it moves by 0.1 + 0.2 + 0.3 = 0.6.
'''
fix = '''
Clear the gradients after every step.

Hand-written loop: Call optimizer.zero_grad() right after optimizer.step(), or before the first micro-step
  of a window; also where a step is skipped.
DDP: The same. The optimizer and the wrapped model hold the same parameters: either can clear them.
FSDP: As for DDP.
Trainer: It clears by itself, if training_step and the inner loop are not overridden.
Accelerate: Call zero_grad on the prepared optimizer.
Lightning: In manual optimization call opt.zero_grad().
DeepSpeed: The engine clears at its boundary. Do not step the same parameters with a torch optimizer of your
  own beside it.
'''
not_a_fault_when = '''
The gradients were cleared in any way: by the model, by the optimizer, by setting them to None or to zero,
before or after the step, or after another optimizer had used them.

Steps that follow each other inside a window without a clear are ACC201. Steps that run a closure are left
out.

A loop that carries gradients over on purpose has no way to say so: ignore the rule there.
'''
references = ["pytorch/pytorch#47175"]
*/
WITH attempts AS (
    SELECT *,
           max(CASE WHEN word LIKE '%Z%' THEN attempt_id END) OVER earlier AS last_cleared,
           lag(attempt_id) OVER (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id) AS attempt_before
    FROM windows
    WINDOW earlier AS (
        PARTITION BY run_id, launch, optimizer
        ORDER BY attempt_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       word NOT LIKE '%Z%' AND microbatches >= accumulation_steps AS fault,
       attempt_id - coalesce(last_cleared, 1) + 1 AS observed,
       1 AS expected,
       format(
           'no gradient was cleared since attempt {}: the step used the gradients of {} windows, not of one',
           attempt_id - 1,
           attempt_id - coalesce(last_cleared, 1) + 1
       ) AS message
FROM attempts
WHERE attempt_before = attempt_id - 1
  AND closure IS NOT TRUE
