/*
code = "ACC506"
name = "unsharded-gradients-held"
severity = "note"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no window of several micro-steps ran under FSDP with shards"
needs = ["events", "wrapper"]
summary = "micro-steps without synchronisation hold the whole gradient on every rank"
why = '''
Sharding saves memory because each rank keeps its part of the gradient alone. A micro-step that is not
reduced cannot be sharded: until the next reduction each rank holds the gradient of all parameters, as much
as without sharding.

The update is right, and the communication of these micro-steps is saved. It costs memory at the very point
where a run that shards is short of it. Where gradients are offloaded to the CPU, these are not.
'''
example = '''
7 billion parameters on 8 ranks, with gradients in fp32: the whole gradient has 28 GB, a shard 3.5 GB.
Windows of 4 under no_sync hold 28 GB on every rank until the last micro-step, and reduce once instead of
four times.
'''
fix = '''
Where memory is short, let every micro-step be reduced. Where the network is slow, leave it as it is.

Hand-written loop: Leave out no_sync around micro-steps.
DDP: Not concerned: its gradients are whole anyway.
FSDP: FSDP1: leave out no_sync. FSDP2: leave set_requires_gradient_sync on; under hybrid sharding
  set_requires_all_reduce(False) reduces inside the shard group alone, and holds shards.
Trainer: Set sync_each_batch in accelerator_config's gradient_accumulation_kwargs.
Accelerate: Use GradientAccumulationPlugin(sync_each_batch=True).
Lightning: FSDPStrategy enters no_sync while it accumulates. In manual optimization leave it out.
DeepSpeed: Not concerned: its stages from 2 on refuse no_sync.
'''
not_a_fault_when = '''
It is a choice between memory and communication, and the numbers are right: a note and no more. Windows of
one micro-step and shards of one rank (NO_SHARD, a mesh that replicates alone) hold nothing more than
otherwise.

Under FSDP2 with replicas it cannot be told whether gradients wait as a whole or as shards
(set_requires_all_reduce): not judged.
'''
references = [
    "huggingface/accelerate#2790",
    "pytorch/pytorch#93139",
]
*/
WITH layouts AS (
    SELECT run_id,
           launch,
           max(shard_size) AS shards,
           max(replica_size) AS replicas,
           bool_or(cpu_offload) AS cpu_offload
    FROM runs
    GROUP BY ALL
),
held AS (
    SELECT w.run_id,
           w.launch,
           w.optimizer,
           w.attempt_id,
           w.microbatches,
           l.shards,
           l.cpu_offload,
           length(regexp_replace(regexp_replace(w.word, '^.*Z', ''), '[^b]', '', 'g')) AS micro_steps,
           CASE
               WHEN w.wrapper IS NULL OR l.shards IS NULL THEN NULL
               WHEN micro_steps = 0 THEN FALSE
               WHEN w.wrapper = 'fsdp1' OR l.replicas = 1 THEN micro_steps > 0
           END AS fault
    FROM windows AS w
    JOIN layouts AS l USING (run_id, launch)
    WHERE (w.wrapper IN ('fsdp1', 'fsdp2')) IS NOT FALSE
      AND (l.shards > 1) IS NOT FALSE
      AND (w.microbatches > 1) IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       micro_steps::DOUBLE AS observed,
       0.0 AS expected,
       format(
           '{} of {} micro-steps were not reduced: until the next reduction each rank held the whole gradient, '
           || '{} times its shard{}',
           micro_steps,
           microbatches,
           shards,
           CASE WHEN cpu_offload THEN ', and none of it on the CPU, to which it is offloaded otherwise' ELSE '' END
       ) AS message
FROM held
