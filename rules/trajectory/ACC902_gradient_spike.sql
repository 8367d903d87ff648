/*
code = "ACC902"
name = "gradient-spike"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no launch has more than 30 updates with a gradient norm"
needs = ["grad_norm_after_clip or grad_norm_before_clip"]
summary = "a single gradient is many times as long as those before it"
why = '''
One batch in thousands may give a gradient that is ten or a hundred times as long as all before it: a broken
sample, a sequence of one repeated token, a number that overflowed. Clipped, the update keeps its direction
alone. Without a clip it moves the parameters by as much as many updates together, and Adam's second moment
remembers it for a thousand more.

A run that survives shows little of it in the loss, so that the batch comes back in the next epoch.
'''
example = '''
Fifty norms lie between 3 and 60, and their median is 9.2. The next one is 790, 86 times the median, and the
one after it 27. With a limit of 1.0 that update took 1/790 of its gradient.
'''
fix = '''
Look at the batch of the update that is named, and keep a limit on the norm. Where spikes come again, filter
the data, or lower the rate or Adam's beta2.

Hand-written loop: Call clip_grad_norm_ before the step, and log the norm that it returns beside the
  samples' ids.
DDP: The same.
FSDP: The norm must be that of the whole gradient: FSDP1 has a method of its own for it.
Trainer: The limit is max_grad_norm.
Accelerate: The limit is an argument of accelerator.clip_grad_norm_.
Lightning: The limit is gradient_clip_val.
DeepSpeed: The limit is gradient_clipping in its configuration.
'''
not_a_fault_when = '''
A spike that the clip caught did little harm: this is a note. Norms that stay high are no spike but another
level: ACC901 speaks of those. Norms of 0, which some logs print for what they round, are left out.

Norms are long while a run warms up: the first 30 records of a launch, and its declared warm-up, serve as
history alone. A later norm is also compared with the highest of the history after them. A run whose norms
always scatter widely is measured by that: a spike lies beyond ten times the median of the 50 records before
it, and four deviations of their logarithms from it.
'''
references = [
    "marin-community/marin#1368",
    "Modalities/modalities#129",
    "stanford-crfm/mistral#115",
]

[params]
factor = 10  # how many times the median before it a spike must be
deviations = 4  # how many deviations of the logarithms it must lie away
history = 30  # how many records at the start of a launch are history alone
*/
WITH norms AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           coalesce(grad_norm_before_max, grad_norm_max) AS norm,
           row_number() OVER (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id) AS place
    FROM windows
    WHERE coalesce(grad_norm_before_max, grad_norm_max) > 0
),
compared AS (
    SELECT *,
           exp(median(ln(norm)) OVER recent) AS usual,
           1.4826 * mad(ln(norm)) OVER recent AS deviation,
           least(place - 1, 50) AS compared_with,
           -- The records that are history alone say nothing of how long a gradient may be.
           max(CASE WHEN place > $history THEN norm END) OVER earlier AS highest,
           median(norm) OVER following AS afterwards,
           count(*) OVER following AS followers
    FROM norms
    WINDOW recent AS (PARTITION BY run_id, launch, optimizer ORDER BY place ROWS BETWEEN 50 PRECEDING AND 1 PRECEDING),
           earlier AS (
               PARTITION BY run_id, launch, optimizer ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ),
           following AS (
               PARTITION BY run_id, launch, optimizer ORDER BY place ROWS BETWEEN 1 FOLLOWING AND 10 FOLLOWING
           )
),
warm_ups AS (
    SELECT run_id, launch, max(warmup_updates) AS warmup
    FROM runs
    GROUP BY ALL
),
judged AS (
    SELECT *,
           norm > $factor * usual
               AND ln(norm / usual) > $deviations * deviation
               AND norm > coalesce(highest, 0) AS far
    FROM compared
    JOIN warm_ups USING (run_id, launch)
    WHERE place > $history
      AND attempt_id > coalesce(warmup, 0)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN NOT far THEN FALSE
           -- At the end of a log nobody knows yet whether it stays so.
           WHEN followers >= 3 THEN afterwards <= $factor * usual
       END AS fault,
       norm AS observed,
       usual AS expected,
       format(
           'the gradient norm is {:.3g}, {:.0f} times the median of the {} before it ({:.3g})',
           norm,
           norm / usual,
           compared_with,
           usual
       ) AS message
FROM judged
