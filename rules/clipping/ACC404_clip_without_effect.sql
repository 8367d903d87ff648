/*
code = "ACC404"
name = "clip-without-effect"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no gradient was clipped by a finite limit"
needs = ["events"]
summary = "a clip did not do to the gradients what its limit and norm say"
why = '''
A clip was called, but the gradients that the optimizer then used were not scaled by limit / norm. It
clipped other parameters than those that are trained: an exhausted generator, groups that were replaced at a
restart, another copy of the model. Or its result was undone, or something else scaled the gradients too.

The logged norm looks like a working clip, and the spike that it was meant for goes through.
'''
example = '''
With a limit of 1 and a norm of 5 the gradients should be scaled by 1/5 = 0.2. They are left as they were:
this update is five times as long as it should be.

A common cause: params = filter(...) is empty when it is used a second time. clip_grad_norm_(params, 1.0)
then returns 0, and clips nothing from the second update on.
'''
fix = '''
Clip the parameters that the optimizer steps, as a list, right before the step.

Hand-written loop: Call clip_grad_norm_(list(model.parameters()), limit), after scaler.unscale_ if there is
  a scaler.
DDP: The same: the wrapper and the module have the same parameters.
FSDP: Use model.clip_grad_norm_ under FSDP1, clip_grad_norm_ under FSDP2.
Trainer: Set max_grad_norm and clip nowhere else.
Accelerate: Give accelerator.clip_grad_norm_ a list.
Lightning: Set gradient_clip_val.
DeepSpeed: Set gradient_clipping in its configuration. torch's function does not see the engine's gradients.
'''
not_a_fault_when = '''
A norm below the limit leaves the gradients alone: it passes. A logged norm is that before the clip, so it
may exceed the limit in every update. Differences up to 1 % are rounding.

A clip of some parameters alone (each group with a limit of its own) says nothing about the parameter that
is probed, and a norm over one shard says nothing about the whole: neither is judged. A clip by value has no
single factor: it is judged by the largest element that it left.
'''
references = [
    "pytorch/pytorch#148259",
    "PixArt-alpha/PixArt-alpha#160",
    "microsoft/rat-sql#45",
    "pytorch/torchtitan#766",
]

[params]
difference = 0.01  # by how much the factor, or the largest element, may be off
*/
WITH calls AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           grad_norm_before_scope AS scope,
           grad_norm_after_clip AS norm_at_step,
           -- A clip that the word alone tells of has no numbers.
           unnest(CASE WHEN len(clips) > 0 THEN clips ELSE [NULL] END, recursive := TRUE)
    FROM updates
    WHERE applied IS NOT FALSE
      AND (len(clips) > 0 OR word LIKE '%C%' OR word IS NULL)
),
expectations AS (
    SELECT *,
           -- least() passes over a NULL, and the norm may not be known.
           CASE WHEN norm > 0 THEN least(1.0, "limit" / norm) END AS wanted,
           -- torch adds 1e-6 to the norm, which shows where the norm is tiny.
           CASE WHEN norm > 0 THEN least(1.0, "limit" / (norm + 1e-6)) END AS wanted_by_torch
    FROM calls
    -- An infinite limit is NULL: the norm was logged.
    WHERE "limit" IS NOT NULL
       OR kind IS NULL
),
judged AS (
    SELECT *,
           CASE
               WHEN kind = 'norm' AND norm = 0 THEN FALSE
               WHEN kind = 'value' AND complete THEN largest > "limit" * (1 + $difference)
               WHEN kind = 'norm' AND complete AND scope = 'global'
               THEN coefficient > wanted * (1 + $difference)
                    OR coefficient < wanted_by_torch * (1 - $difference)
           END AS fault,
           CASE
               WHEN NOT fault THEN NULL
               WHEN kind = 'value'
               THEN format('a clip by value at {:.3g} left an element of {:.3g}', "limit", largest)
               ELSE format(
                   'a clip at {:.3g} with a norm of {:.3g} should scale by {:.3g}, '
                   || 'but the gradients were scaled by {:.3g}',
                   "limit",
                   norm,
                   wanted,
                   coefficient
               )
           END AS message,
           CASE WHEN kind = 'value' THEN largest ELSE coefficient END AS observed,
           CASE WHEN kind = 'value' THEN "limit" ELSE wanted END AS expected
    FROM expectations
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN bool_or(fault) THEN TRUE
           -- Nothing that was clipped had a gradient, although the optimizer stepped with one.
           WHEN bool_and(kind = 'norm' AND norm = 0) AND any_value(norm_at_step) > 0 THEN TRUE
           WHEN bool_and(fault IS NOT NULL) THEN FALSE
       END AS fault,
       first(observed ORDER BY fault DESC NULLS LAST) AS observed,
       first(expected ORDER BY fault DESC NULLS LAST) AS expected,
       coalesce(
           any_value(message) FILTER (WHERE fault),
           format(
               'the clip returned a norm of 0, but the optimizer stepped with a norm of {:.3g}: '
               || 'it clipped none of it',
               any_value(norm_at_step)
           )
       ) AS message
FROM judged
GROUP BY ALL
