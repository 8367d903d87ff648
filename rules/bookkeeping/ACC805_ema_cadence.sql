/*
code = "ACC805"
name = "ema-cadence"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no averaged weights (EMA) were updated"
needs = ["events", "ema_updates"]
summary = "averaged weights were updated without an update of the parameters, or with a decay that falls"
why = '''
A moving average of the parameters (EMA) is meant to take each new set of them in once, or every k-th. Where
it is updated again while nothing has changed (after every micro-step, or after a skipped attempt), the same
parameters are taken in twice. The average forgets faster than its decay says, and how much faster depends
on the accumulation count.

A decay that falls while the run goes on makes it forget more and more, where a warm-up of the decay does
the opposite.
'''
example = '''
A decay of 0.999 and 4 micro-steps an update, with the average updated after every micro-step. Each update
of the parameters is taken in four times, and the average keeps 0.999^4 = 0.996 of itself. It reaches back
250 updates where 1,000 were meant.

A decay that was computed anew from itself went 0.90, 0.82, 0.75 and on to 0.50, where a rise to 0.9999 was
planned.
'''
fix = '''
Update the average where the parameters were updated, and nowhere else.

Hand-written loop: Call ema.update_parameters(model) after optimizer.step(), under the same condition. With
  a scaler, only where the step was applied.
DDP: The same, on every rank that keeps an average.
FSDP: As for DDP.
Trainer: Update it in on_step_end, never in on_substep_end.
Accelerate: Update it where accelerator.sync_gradients is true and the step was not skipped.
Lightning: Update it in on_train_batch_end, and only where trainer.global_step has moved.
DeepSpeed: Update it where engine.was_step_applied().
'''
not_a_fault_when = '''
An average that takes in every k-th update, one that begins late, one that is updated just before the step
instead of after it, and two averages side by side are right. The first update of an average, before any
step, copies the parameters. A step of another optimizer in between changed the parameters too.

A decay that rises is a warm-up. One that goes up and down belongs to several averages or to a restart: not
judged, and neither are fewer than three falls.
'''
references = [
    "huggingface/diffusers#1864",
]

[params]
falls = 3  # how often, at least, the decay must fall
*/
WITH averaging AS (
    SELECT DISTINCT run_id, launch
    FROM updates
    WHERE contains(events, 'E')
       OR ema_updates IS NOT NULL
),
words AS (
    SELECT word,
           contains(word, 'X') AS skipped,
           -- What changes the parameters, and when the average looked: b a backward, O a step of this or
           -- another optimizer, X a skip, E the averages.
           regexp_replace(
               translate(regexp_replace(word, '[^bBOoXE]', '', 'g'), 'Bo', 'bO'), 'E+', 'E', 'g'
           ) AS trace,
           ltrim(trace, 'E') AS first_trace,
           regexp_matches(trace, 'E[bX]*$') AS looked_last,
           regexp_matches(trace, '^[bX]*E') AS looks_first,
           list_transform(
               -- As it stands; after a look with no step since; without a copy made before training began.
               [trace, 'E' || first_trace, first_trace],
               lambda looks: {
                   'averages': len(replace(replace(replace(looks, 'b', ''), 'O', ''), 'X', '')),
                   -- Between two steps the average may look once.
                   'again': list_sum(
                       list_transform(
                           string_split(looks, 'O'),
                           lambda part: greatest(len(replace(replace(part, 'b', ''), 'X', '')) - 1, 0)
                       )
                   )
               }
           ) AS readings
    FROM (SELECT DISTINCT word FROM updates SEMI JOIN averaging USING (run_id, launch))
),
looks AS (
    SELECT u.run_id, u.launch, u.optimizer, u.attempt_id, u.rank, u.ema_decay, w.* EXCLUDE (word)
    FROM updates AS u
    SEMI JOIN averaging USING (run_id, launch)
    LEFT JOIN words AS w USING (word)
),
-- The record before is asked where the average is looked at before a step.
previous AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           CASE WHEN lag(attempt_id) OVER earlier = attempt_id - 1 THEN lag(looked_last) OVER earlier END
               AS looked_already
    FROM looks
    SEMI JOIN (FROM looks WHERE looks_first) USING (run_id, launch, optimizer, rank)
    WINDOW earlier AS (PARTITION BY run_id, launch, optimizer, rank ORDER BY attempt_id)
),
changing AS (
    SELECT run_id, launch, optimizer, rank
    FROM looks
    GROUP BY ALL
    HAVING min(ema_decay) < max(ema_decay)
),
decays AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           lag(ema_decay) OVER earlier AS decay_before
    FROM looks
    SEMI JOIN changing USING (run_id, launch, optimizer, rank)
    WHERE contains(trace, 'E')
    WINDOW earlier AS (PARTITION BY run_id, launch, optimizer, rank ORDER BY attempt_id)
),
moves AS (
    SELECT run_id,
           launch,
           optimizer,
           rank,
           count(*) FILTER (ema_decay < decay_before - 1e-9) AS falls,
           count(*) FILTER (ema_decay > decay_before + 1e-9) AS rises
    FROM looks
    JOIN decays USING (run_id, launch, optimizer, attempt_id, rank)
    GROUP BY ALL
),
cadence AS (
    SELECT l.*,
           CASE WHEN attempt_id = 1 THEN 3 WHEN looked_already THEN 2 ELSE 1 END AS which,
           struct_extract(readings[which], 'again') AS again,
           struct_extract(readings[which], 'averages') - (which = 2)::BIGINT AS averages,
           looks_first AND looked_already IS NULL AND attempt_id > 1 AS may_be_again,
           ema_decay < decay_before - 1e-9 AS fell,
           decay_before,
           falls,
           rises
    FROM looks AS l
    LEFT JOIN previous AS p USING (run_id, launch, optimizer, attempt_id, rank)
    LEFT JOIN decays USING (run_id, launch, optimizer, attempt_id, rank)
    LEFT JOIN moves USING (run_id, launch, optimizer, rank)
    WHERE contains(trace, 'E') IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN trace IS NULL THEN NULL
           WHEN again > 0 THEN TRUE
           WHEN fell THEN CASE WHEN falls >= $falls AND rises = 0 THEN TRUE END
           WHEN may_be_again THEN NULL
           ELSE FALSE
       END AS fault,
       CASE WHEN again > 0 THEN averages ELSE ema_decay END::DOUBLE AS observed,
       CASE WHEN again > 0 THEN averages - again ELSE decay_before END::DOUBLE AS expected,
       CASE
           WHEN again > 0 AND skipped AND averages = 1
           THEN 'the averaged weights were updated although the attempt was skipped: '
               || 'they took in the same parameters a second time'
           WHEN again > 0
           THEN format(
               'the averaged weights were updated {} {}, {} of them with no step since the one before{}',
               averages,
               CASE WHEN averages = 1 THEN 'time' ELSE 'times' END,
               again,
               CASE
                   WHEN averages > 1 AND ema_decay > 0
                   THEN format('; a decay of {:.6g} acts as {:.6g}', ema_decay, ema_decay ** averages)
                   ELSE ''
               END
           )
           WHEN fell
           THEN format(
               'the decay of the averaged weights fell from {:.6g} to {:.6g}, {} times in all, never rising',
               decay_before,
               ema_decay,
               falls
           )
       END AS message
FROM cadence
