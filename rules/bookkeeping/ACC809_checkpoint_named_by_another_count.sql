/*
code = "ACC809"
name = "checkpoint-named-by-another-count"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no checkpoint was marked with a number in its name"
needs = ["name", "optimizer_update_id"]
summary = "the number in a checkpoint's name counts something else than updates"
why = '''
A checkpoint's name is what people go by when they resume, compare or publish: "step 4000" is put into a
schedule, a plan, a plot. Where the number counts micro-steps, or attempts with the skipped ones among them,
everything that takes it for updates is off by the accumulation count or by the skips. A resume that reads
its position from the name continues in the wrong place.
'''
example = '''
4 micro-steps an update, and a checkpoint after 1,000 updates is called checkpoint-4000. A resume that sets
the schedule to 4,000 of 10,000 updates goes on at the rate of update 4,000, and ends 6,000 updates later,
after 7,000 in all.

In fp16 with three skips, checkpoint-500 holds 497 updates.
'''
fix = '''
Take the number from the count of applied updates, or write the unit into the name.

Hand-written loop: Count where the step was applied, and name by that. "micro-step-4000" misleads nobody.
DDP: The same.
FSDP: The same.
Trainer: checkpoint-N is global_step, which counts skipped attempts too.
Accelerate: save_state numbers its folders by itself: give a name.
Lightning: The step in the name counts the steps of all optimizers.
DeepSpeed: Pass a tag: global_steps counts skipped attempts too.
'''
not_a_fault_when = '''
Out of scope are names whose number says what it is (an epoch, tokens, micro-steps, a date, a version, a
loss) and names without a number (last, best). So is a single number without a word such as step or
checkpoint beside it.

A number is found to be another count only where it is exactly that count. It is right where it is one off
(the loop counts from 0), stays a fixed number away from the updates (continued from another run), or is the
number of the epoch. A number that fits nothing is not judged. One that counts skipped attempts too is a
note: many trainers count so, and it is off by no more than the skips.
'''
references = [
    "Lightning-AI/pytorch-lightning#17958",
    "huggingface/transformers#33455",
]
*/
WITH marked AS (
    SELECT run_id,
           launch,
           attempt_id,
           name,
           min(rank) AS rank,
           min(time) AS time,
           max(epoch) AS epoch,
           max(micro_step_id) AS micro_steps,
           -- Without dates, fractions, versions, and numbers that name another unit, before them or after.
           list_reduce( -- noqa: PRS
               [
                   lower(name),
                   '(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?([0-2]\d|3[01])'
                   || '([-_t ]?[0-2]\d[-_:.h]?[0-5]\d([-_:.m]?[0-5]\d)?)?',
                   '(^|[^a-z])(v|seed|rank|fold|loss|acc|score|lr|bs)[-_=. ]*\d+(\.\d+)?|\d+\.\d+',
                   '(^|[^a-z])(micro[-_ ]?(step|batch)|attempt|tok|token|sample|example|image|batch|epoch|ep)'
                   || '(e?s)?[-_=. ]*\d+[kmb]?',
                   '\d+[kmb]?[-_ ]?(micro[-_ ]?(step|batch)|attempt|tok|token|sample|example|image|epoch|ep)'
                   || '(e?s)?([^a-z]|$)'
               ],
               lambda text, pattern: regexp_replace(text, pattern, '#', 'g')
           ) AS text
    FROM marks
    WHERE kind = 'checkpoint'
    GROUP BY ALL
),
read AS (
    SELECT *,
           regexp_extract_all(
               text,
               '(?:^|[^a-z])(?:step|iter|iteration|update|checkpoint|ckpt|it)s?[-_=. ]*(\d{1,15}[kmb]?)'
               || '(?:[^a-z0-9]|$)',
               1
           ) AS labelled,
           -- Of a path the last part that holds a number.
           regexp_extract_all(
               list_filter(string_split(text, '/'), lambda part: regexp_matches(part, '\d'))[-1],
               '\d+[a-z]?'
           ) AS plain,
           coalesce(
               labelled[-1],
               CASE
                   WHEN len(plain) = 1
                   THEN nullif(regexp_extract(text, '(?:^|[^a-z0-9])(\d{1,15}[kmb]?)(?:[^a-z0-9]|$)', 1), '')
               END
           ) AS digits,
           CASE right(digits, 1)
               WHEN 'k' THEN 1000
               WHEN 'm' THEN 1000000
               WHEN 'b' THEN 1000000000
               ELSE 1
           END AS unit
    FROM marked
),
claims AS (
    SELECT * EXCLUDE (text, labelled, plain, digits, unit),
           TRY_CAST(rtrim(digits, 'kmb') AS BIGINT) * unit AS number,
           len(labelled) > 0 AS says_step,
           unit / 2 AS half,
           regexp_replace(name, '\d+', '#', 'g') AS pattern
    FROM read
    WHERE digits IS NOT NULL
),
written AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           optimizer_update_id,
           time,
           applied,
           valid_tokens,
           cumulative_train_tokens,
           samples
    FROM windows
    SEMI JOIN claims USING (run_id)
    UNION ALL
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           max(optimizer_update_id),
           max(time),
           bool_and(applied),
           NULL,
           max(cumulative_train_tokens),
           NULL
    FROM superseded
    SEMI JOIN claims USING (run_id)
    GROUP BY run_id, launch, optimizer, attempt_id
),
counts AS (
    SELECT *,
           lead(attempt_id) OVER in_launch AS next_attempt,
           lead(optimizer_update_id) OVER in_launch AS next_update,
           -- count() with a FILTER over a growing window takes quadratic time.
           count(CASE WHEN NOT applied THEN 1 END) OVER so_far AS skips,
           count(*) OVER so_far AS rows_so_far,
           count(valid_tokens) OVER so_far = rows_so_far AS all_counted,
           CASE WHEN all_counted THEN sum(valid_tokens) OVER so_far END AS tokens,
           CASE WHEN all_counted THEN sum(samples) OVER so_far END AS all_samples
    FROM written
    WINDOW in_launch AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id),
           so_far AS (PARTITION BY run_id, optimizer ORDER BY launch, attempt_id)
),
firsts AS (
    SELECT * FROM counts QUALIFY optimizer = min(optimizer) OVER (PARTITION BY run_id, launch)
),
-- How far the other optimizers were, by the clock.
others AS (
    SELECT c.run_id, c.launch, c.name, c.attempt_id, list(o.optimizer_update_id) AS other_updates
    FROM (
        SELECT DISTINCT claims.*, counts.optimizer
        FROM claims
        JOIN counts USING (run_id, launch)
        ANTI JOIN firsts USING (run_id, launch, optimizer)
    ) AS c
    ASOF JOIN counts AS o
        ON o.run_id = c.run_id
        AND o.launch = c.launch
        AND o.optimizer = c.optimizer
        AND o.time <= c.time
    GROUP BY ALL
),
placed AS (
    SELECT c.*,
           f.optimizer,
           f.attempt_id AS record,
           -- Where an attempt is not recorded, the ids around it tell whether one was skipped.
           CASE
               WHEN c.attempt_id = f.attempt_id THEN f.optimizer_update_id
               WHEN f.next_update - f.optimizer_update_id = f.next_attempt - f.attempt_id
               THEN f.optimizer_update_id + c.attempt_id - f.attempt_id
           END AS updates,
           updates + f.skips AS attempts,
           CASE WHEN c.attempt_id = f.attempt_id THEN f.tokens END AS tokens,
           CASE WHEN c.attempt_id = f.attempt_id THEN f.cumulative_train_tokens END AS reported_tokens,
           CASE WHEN c.attempt_id = f.attempt_id THEN f.all_samples END AS samples
    FROM claims AS c
    ASOF JOIN firsts AS f
        ON f.run_id = c.run_id
        AND f.launch = c.launch
        AND f.attempt_id <= c.attempt_id
),
compared AS (
    SELECT p.*,
           number - updates AS ahead,
           coalesce(list_contains(o.other_updates, number), FALSE) AS of_another,
           updates + list_sum(o.other_updates) AS all_steps
    FROM placed AS p
    LEFT JOIN others AS o USING (run_id, launch, name, attempt_id)
),
groups AS (
    SELECT run_id,
           launch,
           pattern,
           count(*) > 1 AS several,
           count(updates) = count(*) AS known,
           bool_and(abs(ahead) <= half) AS as_updates,
           max(ahead) = min(ahead) AND (several OR abs(min(ahead)) <= 1) AS as_continued,
           bool_and(of_another) AS as_another,
           max(number - epoch) = min(number - epoch)
               AND abs(min(number - epoch)) <= 1
               AND count(epoch) = count(*) AS as_epochs,
           several OR bool_and(says_step) AS telling,
           list_filter(
               [
                   CASE
                       WHEN bool_and(number = micro_steps) OR (several AND bool_and(number = micro_steps - 1))
                       THEN 'micro-steps'
                   END,
                   CASE WHEN bool_and(number = attempts) THEN 'attempts, skipped ones included' END,
                   CASE WHEN bool_and(number = all_steps) THEN 'steps of all optimizers' END,
                   CASE
                       WHEN bool_and(abs(number - tokens) <= half OR abs(number - reported_tokens) <= half)
                       THEN 'tokens'
                   END,
                   CASE WHEN bool_and(abs(number - samples) <= half) THEN 'samples' END
               ],
               lambda reading: reading IS NOT NULL
           ) AS readings
    FROM compared
    GROUP BY ALL
)
SELECT run_id,
       launch,
       optimizer,
       record AS attempt_id,
       rank,
       CASE
           WHEN NOT known THEN NULL
           WHEN as_updates OR as_another OR as_epochs THEN FALSE
           WHEN len(readings) > 0 THEN CASE WHEN telling THEN TRUE END
           WHEN as_continued THEN FALSE
       END AS fault,
       CASE
           WHEN list_contains(readings, 'attempts, skipped ones included') THEN 'note'
           ELSE 'warning'
       END AS severity,
       number::DOUBLE AS observed,
       updates::DOUBLE AS expected,
       format(
           'checkpoint "{}" was written after {} updates: {} is the number of {}',
           name,
           updates,
           number,
           array_to_string(readings, ' or ')
       ) AS message
FROM compared
JOIN groups USING (run_id, launch, pattern)
