/*
code = "ACC406"
name = "clip-always-active"
severity = "note"
since = "0.1.0"
scope = "run"
scope_is_empty = "no launch made 100 updates whose norm was clipped by a finite limit"
needs = ["events"]
summary = "nearly every update was clipped, so the limit sets its length"
why = '''
A clip is there for the rare spike. Where it shortens nearly every update, the gradient's length is lost:
all updates are equally long, a plain optimizer's rate means rate * limit, and the norm no longer warns of
anything. It may be meant, and with Adam, which divides by the gradient's size anyway, it does little. It
may also show a limit that belongs to another model, or gradients that are larger than they should be.
'''
example = '''
Limit 1, norms between 20 and 60 in all of 10,000 updates: each is scaled by 0.02 to 0.05 and has the length
1. With SGD at a rate of 0.1 every step is 0.1 long, near a minimum as well as far from it.
'''
fix = '''
Look at the norms before the clip, then choose a limit above most of them, or keep it and lower the rate on
purpose.

Hand-written loop, DDP, FSDP: log what clip_grad_norm_ returns; a limit near the 95th percentile of a
healthy run clips spikes alone.
Trainer: max_grad_norm.
Accelerate: the argument of clip_grad_norm_.
Lightning: gradient_clip_val.
DeepSpeed: gradient_clipping. Where the norms are far larger than in comparable runs, look for a sum that
should be a mean (ACC104) and for gradients that are still scaled (ACC402).
'''
not_a_fault_when = '''
It is a note, and never more. Early training has large gradients, so launches of fewer than 100 clipped
updates are not judged, and 5 in 100 that pass unclipped keep the rule silent. Clips of single groups, clips
by value and infinite limits are left out. Optimizers and recipes that want every gradient at one length may
ignore it.
'''
references = [
    "verl-project/verl#2282",
    "hiyouga/LlamaFactory#7710",
]

[params]
share = 0.95
updates = 100
*/
WITH calls AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           -- The last call over all gradients; an infinite limit is NULL, and clips nothing.
           list_filter(clips, lambda x: x.kind = 'norm' AND x.complete AND x."limit" IS NOT NULL)[-1] AS call
    FROM updates
    WHERE len(clips) > 0
      AND applied IS NOT FALSE
),
coefficients AS (
    SELECT *,
           CASE
               WHEN call.coefficient IS NOT NULL THEN call.coefficient
               WHEN call.norm > call."limit" THEN call."limit" / call.norm
               WHEN call.norm >= 0 THEN 1
           END AS coefficient
    FROM calls
    WHERE call IS NOT NULL
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           count(DISTINCT attempt_id) AS updates,
           count(DISTINCT attempt_id) FILTER (coefficient < 0.999) AS clipped,
           median(coefficient) AS middle,
           median(call."limit") AS clip_limit
    FROM coefficients
    WHERE coefficient IS NOT NULL
    GROUP BY ALL
    HAVING updates >= $updates
)
SELECT run_id,
       launch,
       optimizer,
       NULL AS attempt_id,
       NULL AS rank,
       clipped > $share * updates AS fault,
       clipped / updates AS observed,
       $share AS expected,
       format(
           '{} of {} updates were clipped at {:.3g}, half of them to {:.3g} of their length or less',
           clipped,
           updates,
           clip_limit,
           middle
       ) AS message
FROM launches
