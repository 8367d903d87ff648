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
all updates are equally long, a plain optimizer's real rate is rate * limit, and the norm no longer warns of
anything.

It may be meant, and with Adam, which divides by the gradient's size anyway, it does little. It may also
show a limit that belongs to another model, or gradients that are larger than they should be.
'''
example = '''
A limit of 1, and norms between 20 and 60 in all of 10,000 updates: each is scaled by 0.017 to 0.05 and has
the length 1. With SGD at a rate of 0.1 every step is 0.1 long, near a minimum as well as far from it.
'''
fix = '''
Look at the norms before the clip, and choose a limit above most of them, or keep it on purpose. Where they
are far larger than in like runs, look for a sum that should be a mean (ACC104) and for a loss scale
(ACC402).

Hand-written loop: Log what clip_grad_norm_ returns. A limit near the 95th percentile of a healthy run clips
  spikes alone.
DDP: The same.
FSDP: The same, by the norm of the whole gradient.
Trainer: The limit is max_grad_norm.
Accelerate: The limit is an argument of accelerator.clip_grad_norm_.
Lightning: The limit is gradient_clip_val.
DeepSpeed: The limit is gradient_clipping in its configuration.
'''
not_a_fault_when = '''
It is a note and never more. Early training has large gradients, so fewer than 100 updates with a clip are
not judged. 5 updates in 100 that pass unclipped keep the rule silent.

Clips of single groups, clips by value and infinite limits are left out. Recipes that want every gradient at
one length may ignore the rule.
'''
references = [
    "verl-project/verl#2282",
    "hiyouga/LlamaFactory#7710",
]

[params]
share = 0.95  # the share of a launch's updates above which it speaks
updates = 100  # how many updates with a clip a launch needs
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
