/*
code = "ACC304"
name = "schedule-before-optimizer"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no attempt followed a backward outside a closure"
needs = ["events", "scheduler_step"]
summary = "the scheduler was stepped before the optimizer, so the update used the next rate"
why = '''
The scheduler's step sets the rate of the update that follows. Stepped between the last backward and the
optimizer's step, it replaces the rate of this update by the next one. The first rate of the schedule is
never used, and the whole schedule is one update early.

A warm-up that starts at 0 loses that first update, and a linear decay makes its last update at a rate of 0.
The first attempt that a scaler skips moves the schedule unseen.
'''
example = '''
A linear decay over four updates.

    after the optimizer    1, 0.75, 0.5, 0.25, a sum of 2.5
    before the optimizer   0.75, 0.5, 0.25, 0, a sum of 1.5

The last update changes nothing but the optimizer's state.
'''
fix = '''
Call scheduler.step() after optimizer.step().

Hand-written loop: Swap the two lines. With a scaler the order is scaler.step(optimizer), scaler.update(),
  scheduler.step().
DDP: The same.
FSDP: The same.
Trainer: It keeps the order. Look at callbacks that step the schedule.
Accelerate: The same order as by hand.
Lightning: Automatic optimization keeps the order. In manual optimization step the scheduler after the
  optimizer.
DeepSpeed: engine.step() steps both in the right order: do not step the scheduler yourself.
'''
not_a_fault_when = '''
Steps before the first backward of a window (set-up, a fast-forward at resume, an epoch's first batch) set
the rate of that window.

A scheduler that is set to an absolute position before each step, like step(epoch + i / batches), chooses
the rate of this very update. Where steps leave last_epoch as it was, or where there is none, the rule does
not judge.

PyTorch's own warning about the order also appears after a first skipped attempt, and proves nothing.
'''
references = [
    "huggingface/transformers#11106",
    "Lightning-AI/pytorch-lightning#21339",
]
*/
WITH steps AS (
    SELECT *,
           regexp_matches(word, '[bB][^bB]*S[^bB]*[OX]') AS before_step,
           contains(word, 'S')
               AND scheduler_step_max = lag(scheduler_step_max) OVER attempts AS stayed
    FROM windows
    WHERE closure IS NOT TRUE
      AND regexp_matches(word, '[bB].*[OX]') IS NOT FALSE
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
judged AS (
    SELECT *,
           coalesce(bool_or(stayed) OVER (PARTITION BY run_id, launch, optimizer), FALSE) AS set_absolutely
    FROM steps
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN scheduler_step_max IS NOT NULL AND NOT set_absolutely THEN before_step END AS fault,
       learning_rate_max AS observed,
       NULL::DOUBLE AS expected,
       format(
           'the scheduler stepped between the last backward and the optimizer''s step: the attempt used the '
           || 'rate {:.6g} of schedule position {}, and the one before it was passed over',
           learning_rate_max,
           scheduler_step_max
       ) AS message
FROM judged
