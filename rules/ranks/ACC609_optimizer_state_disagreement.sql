/*
code = "ACC609"
name = "optimizer-state-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that step the same parameters together"
needs = ["optimizer_state_step", "wrapper"]
explains = ["ACC605"]
summary = "the optimizer has made different numbers of steps on ranks that reduce together"
why = '''
The optimizer's own count of steps is part of its arithmetic: Adam divides its averages by 1 - beta^step.
Ranks whose counts differ hold other moments too. Equal gradients give them different steps, and the
replicas part.

The first attempt at which the counts differ is the one to look at: a rank skipped, a rank stepped alone, or
a checkpoint was loaded on some ranks only.
'''
example = '''
A run resumes at update 1,000, and rank 0 alone loads the optimizer's state. After the next update its count
is 1,001 and that of rank 1 is 1. Rank 1's first step of Adam is the rate times the sign of the gradient,
often ten times and more what rank 0's settled moments give.
'''
fix = '''
Give every rank the same state, and let all of them step or none.

Hand-written loop: Load the optimizer's state on every rank, and take the decision to skip together.
DDP: It broadcasts parameters and buffers when it is built, and no optimizer state: load that on every rank.
FSDP: Load sharded states with torch.distributed.checkpoint on all ranks.
Trainer: Resume through its own checkpoints.
Accelerate: Resume with load_state on every rank.
Lightning: Resume with ckpt_path.
DeepSpeed: Use load_checkpoint on every rank, with load_optimizer_states.
'''
not_a_fault_when = '''
Counts are compared among ranks whose records name the same parameter: where the optimizer's state is
divided so that each rank steps parameters of its own (ZeRO, by hand or by torch), some of these may begin
later than others.

Pipeline stages are not compared, nor ranks that do not reduce together or whose layout is unknown, nor
local SGD. An optimizer that keeps no count (plain SGD) is not checked.
'''
references = [
    "pytorch/pytorch#113765",
]
*/
WITH launches AS (
    SELECT run_id, launch, optimizer, reduces_together AS synchronised, averages_parameters AS averaged
    FROM windows
    GROUP BY ALL
),
counts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           probe_parameter,
           coalesce(pipeline_rank, 0) AS stage,
           count(optimizer_state_step) AS known,
           min(optimizer_state_step) AS lowest,
           max(optimizer_state_step) AS highest
    FROM updates
    GROUP BY ALL
    HAVING count(*) > 1
),
extremes AS (
    SELECT c.run_id,
           c.launch,
           c.optimizer,
           c.attempt_id,
           c.probe_parameter,
           c.stage,
           min(u.rank) FILTER (u.optimizer_state_step = c.lowest) AS low_rank,
           min(u.rank) FILTER (u.optimizer_state_step = c.highest) AS high_rank
    FROM updates AS u
    JOIN counts AS c
        ON c.run_id = u.run_id
        AND c.launch = u.launch
        AND c.optimizer = u.optimizer
        AND c.attempt_id = u.attempt_id
        AND c.stage = coalesce(u.pipeline_rank, 0)
    WHERE c.lowest < c.highest
      AND c.probe_parameter IS NOT DISTINCT FROM u.probe_parameter
    GROUP BY ALL
)
SELECT c.run_id,
       c.launch,
       c.optimizer,
       c.attempt_id,
       NULL AS rank,
       CASE WHEN synchronised AND NOT averaged AND known > 1 THEN lowest < highest END AS fault,
       lowest::DOUBLE AS observed,
       highest::DOUBLE AS expected,
       CASE
           WHEN lowest < highest
           THEN format(
               'the optimizer has made {} steps on rank {} and {} on rank {}: {} apart',
               highest,
               high_rank,
               lowest,
               low_rank,
               highest - lowest
           )
       END AS message
FROM counts AS c
JOIN launches USING (run_id, launch, optimizer)
LEFT JOIN extremes AS e
    ON e.run_id = c.run_id
    AND e.launch = c.launch
    AND e.optimizer = c.optimizer
    AND e.attempt_id = c.attempt_id
    AND e.stage = c.stage
    AND e.probe_parameter IS NOT DISTINCT FROM c.probe_parameter
WHERE synchronised IS NOT FALSE
