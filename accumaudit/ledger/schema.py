"""The fields of the record, in one place: name, type, unit, writer and meaning.

The hooks, the reader, the rules' `needs` and docs/ledger.md all follow this module.
It imports the standard library alone, because the hooks run where nothing else is.

Types are DuckDB's. A field ending in `[]` has one entry per micro-step of the window,
unless its meaning says otherwise. Integers fit in 53 bits; digests are hex strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEMA_VERSION: Final = 1
"""Raised only when an old reader would misread a new record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a record."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    writer: str = "hooks"
    """hooks, loop (declared or reported by the training script) or importer."""
    required: bool = False
    """A record in which this field is missing or of another type is unreadable."""

    @property
    def is_float(self) -> bool:
        """Whether a non-finite value of this field becomes NULL and a `_nonfinite` flag."""
        return self.type == "DOUBLE"


def _field(
    name: str, type_: str, meaning: str, *, unit: str = "", writer: str = "hooks", required: bool = False
) -> Field:
    return Field(name=name, type=type_, meaning=meaning, unit=unit, writer=writer, required=required)


RECORD_FIELD: Final = _field("record", "VARCHAR", "kind of the record: run, update or mark", required=True)

RUN_FIELDS: Final = (
    _field("schema", "BIGINT", "version of this schema", required=True),
    _field("launch", "VARCHAR", "token of the launch, equal on all its ranks", required=True),
    _field("rank", "BIGINT", "global rank of the writing process", required=True),
    _field("world_size", "BIGINT", "number of processes of the launch; null where a log does not tell"),
    _field("data_parallel_rank", "BIGINT", "coordinate among ranks that see different samples"),
    _field("data_parallel_size", "BIGINT", "number of ranks that see different samples"),
    _field("tensor_rank", "BIGINT", "coordinate in the tensor-parallel group"),
    _field("tensor_size", "BIGINT", "size of the tensor-parallel group"),
    _field("context_rank", "BIGINT", "coordinate in the context-parallel group"),
    _field("context_size", "BIGINT", "size of the context-parallel group"),
    _field("sequence_rank", "BIGINT", "coordinate in the sequence-parallel group"),
    _field("sequence_size", "BIGINT", "size of the sequence-parallel group"),
    _field("pipeline_rank", "BIGINT", "pipeline stage of this rank"),
    _field("pipeline_size", "BIGINT", "number of pipeline stages"),
    _field("shard_rank", "BIGINT", "coordinate in the group that shards the parameters"),
    _field("shard_size", "BIGINT", "size of the group that shards the parameters"),
    _field("replica_rank", "BIGINT", "coordinate among copies of the same parameters"),
    _field("replica_size", "BIGINT", "number of copies of the same parameters"),
    _field(
        "gradient_divisor",
        "DOUBLE",
        "what the sum of the ranks' gradients is divided by; null where a communication hook "
        "or something unknown reduces",
    ),
    _field("runtime", "VARCHAR", "what drives the loop: torch, transformers, accelerate ..."),
    _field("versions", "JSON", "versions of Python, torch, accumaudit and the runtime, by name"),
    _field("wrapper", "VARCHAR", "none, ddp, fsdp1, fsdp2 or deepspeed-zero0..3"),
    _field("cpu_offload", "BOOLEAN", "whether parameters or gradients live on the host"),
    _field("precision", "VARCHAR", "dtype of the parameters, with autocast's dtype where it was on"),
    _field("loss_unit", "VARCHAR", "token or sample: what the loss is averaged over", writer="loop"),
    _field(
        "optimizers",
        'STRUCT("index" BIGINT, "class" VARCHAR, "name" VARCHAR)[]',
        "the attached optimizers, one entry each",
    ),
    _field("accumulation_steps", "BIGINT", "declared micro-steps of a full window", writer="loop"),
    _field("max_grad_norm", "DOUBLE", "declared limit of the gradient norm", writer="loop"),
    _field("scheduler_class", "VARCHAR", "class of the scheduler"),
    _field("warmup_updates", "BIGINT", "declared updates of warm-up", unit="updates", writer="loop"),
    _field("planned_updates", "BIGINT", "declared updates of the run", unit="updates", writer="loop"),
    _field("planned_epochs", "DOUBLE", "declared passes over the data", writer="importer"),
    _field("peak_learning_rate", "DOUBLE", "declared largest rate", writer="loop"),
    _field("min_learning_rate", "DOUBLE", "declared smallest rate after warm-up", writer="loop"),
    _field(
        "schedule",
        "VARCHAR",
        "declared shape of the schedule: constant, linear, cosine, polynomial, inverse_sqrt, wsd; "
        "another name is kept as it is",
        writer="importer",
    ),
    _field(
        "schedule_updates",
        "BIGINT",
        "declared length of the schedule, warm-up included, where it is not planned_updates",
        unit="updates",
        writer="importer",
    ),
    _field(
        "decay_updates",
        "BIGINT",
        "declared updates of the last decay of wsd",
        unit="updates",
        writer="importer",
    ),
    _field("schedule_power", "DOUBLE", "declared power of a polynomial", writer="importer"),
    _field("schedule_unit", "VARCHAR", "what the scheduler's numbers count", writer="loop"),
    _field(
        "scheduler_steps_per_update",
        "DOUBLE",
        "the contract: scheduler steps that belong to one update; null where there is no scheduler",
    ),
    _field("optimizer_state_step_at_attach", "BIGINT", "the optimizer's own step count at attach"),
    _field("scheduler_step_at_attach", "BIGINT", "last_epoch of the scheduler at attach"),
    _field("resumed_from_update", "BIGINT", "update from which this launch continues", writer="loop"),
    _field("recorded_ranks", "BIGINT[]", "the ranks that write; null where all do", writer="loop"),
    _field(
        "recorded_every",
        "BIGINT",
        "attempts to one record: the first is written, and each that many after it; null where all are",
        writer="loop",
    ),
    _field("started_at", "DOUBLE", "time of attach", unit="seconds since 1970", required=True),
)

UPDATE_FIELDS: Final = (
    # who
    _field("launch", "VARCHAR", "token of the launch", required=True),
    _field("rank", "BIGINT", "global rank of the writing process", required=True),
    _field("optimizer", "BIGINT", "index of the optimizer in the run record", required=True),
    _field(
        "attempt_id",
        "BIGINT",
        "attempts to update so far, from 1, within launch and optimizer; joins the ranks",
        required=True,
    ),
    _field("optimizer_update_id", "BIGINT", "applied updates so far in the run, this one included"),
    _field("micro_step_id", "BIGINT", "micro-steps so far in the run, this window included"),
    _field("epoch", "BIGINT", "iterations begun over the data, from 1, at the attempt"),
    _field("time", "DOUBLE", "time of the attempt", unit="seconds since 1970"),
    _field("window_seconds", "DOUBLE", "from the end of the attempt before to this one", unit="seconds"),
    _field("seq", "BIGINT", "number of the line in its file, from 1"),
    # window
    _field("microbatches", "BIGINT", "micro-steps kept: those after the last Z"),
    _field("discarded_microbatches", "BIGINT", "micro-steps before it, whose gradients were thrown away"),
    _field("accumulation_steps", "BIGINT", "micro-steps of a full window, as declared then", writer="loop"),
    _field("events", "VARCHAR", "the transaction as a word; docs/ledger.md has the letters"),
    _field("valid_tokens", "DOUBLE[]", "n: positions whose loss reaches the gradient", unit="positions"),
    _field("loss_weight", "DOUBLE[]", "A1: sum of the positions' weights"),
    _field("loss_weight_sq", "DOUBLE[]", "A2: sum of the squares of the positions' weights"),
    _field(
        "weight_uniform",
        "BOOLEAN[]",
        "whether all positions of a loss call weigh the same; null where weights change sign",
    ),
    _field("weight_source", "VARCHAR", "measured, model_loss or declared"),
    _field("weight_dtype", "VARCHAR", "dtype of the gradient at the loss; decides the tolerance"),
    _field("loss_unobserved", "DOUBLE", "share of the root value of backward that no observed call explains"),
    _field("loss", "DOUBLE[]", "mean loss per valid token, unscaled; null where n is 0"),
    _field(
        "loss_terms",
        "STRUCT(micro_step BIGINT, term VARCHAR, declared BOOLEAN, loss_weight DOUBLE, "
        "loss_weight_sq DOUBLE, valid_tokens DOUBLE, loss DOUBLE)[]",
        "further terms of the loss, one entry per micro-step and term; micro_step is the place "
        "in the lists above, from 1; declared: attach was told this term's coefficient",
    ),
    _field("loss_scale", "DOUBLE[]", "loss scale in force at the backward"),
    _field("samples", "BIGINT[]", "rows of the forward's first tensor", unit="samples"),
    _field(
        "input_positions", "BIGINT[]", "positions of the integer input, padding included", unit="positions"
    ),
    _field("attended_positions", "BIGINT[]", "positions where the attention mask is not 0", unit="positions"),
    _field("masked_positions", "BIGINT[]", "positions of samples without any valid token", unit="positions"),
    _field("data_digest", "VARCHAR[]", "16 hex digits over the input, weighed by position"),
    _field(
        "window_sums",
        "STRUCT(valid_tokens DOUBLE, valid_tokens_min DOUBLE, valid_tokens_max DOUBLE, loss_weight DOUBLE, "
        "loss_weight_min DOUBLE, loss_weight_max DOUBLE, loss_weight_sq DOUBLE, weight_uniform BOOLEAN, "
        "token_weight_min DOUBLE, token_weight_max DOUBLE, loss DOUBLE, loss_scale_min DOUBLE, "
        "loss_scale_max DOUBLE, samples BIGINT, input_positions BIGINT, attended_positions BIGINT, "
        "masked_positions BIGINT)",
        'in place of the lists above, which are null then (microbatch_detail="sums"): sums over the kept '
        "micro-steps, and the smallest and largest entry; token_weight is A1 / n where n is not 0",
    ),
    # tokens
    _field("local_valid_tokens", "DOUBLE", "sum of n over this rank's window", unit="positions"),
    _field(
        "global_valid_tokens_in_update",
        "DOUBLE",
        "tokens of the update over all ranks, as the loop itself used or reported them",
        unit="positions",
        writer="loop",
    ),
    _field("cumulative_train_tokens", "DOUBLE", "the loop's running token count", writer="loop"),
    _field("reported_global_step", "BIGINT", "the framework's or loop's own counter", writer="loop"),
    _field("reported_loss", "DOUBLE", "the loss that the loop logs", writer="loop"),
    _field("reported_tokens", "DOUBLE", "tokens of the update in a foreign log", writer="importer"),
    _field("reported_samples", "DOUBLE", "samples of the update in a foreign log", writer="importer"),
    _field("reported_epoch", "DOUBLE", "passes over the data so far, with their fraction", writer="importer"),
    # optimizer
    _field("learning_rate", "DOUBLE", "first group of the innermost optimizer, at the step"),
    _field("learning_rates", "DOUBLE[]", "one entry per parameter group, at the step"),
    _field("weight_decays", "DOUBLE[]", "one entry per parameter group, at the step"),
    _field("optimizer_step_skipped", "BOOLEAN", "the attempt left the parameters as they were"),
    _field(
        "skip_evidence", "VARCHAR", "what says that it was skipped: scaler, found_inf, state_step, engine ..."
    ),
    _field("grad_scale", "DOUBLE", "loss scale before the scaler's update"),
    _field("grad_scale_after", "DOUBLE", "loss scale after it"),
    _field("grad_norm_before_clip", "DOUBLE", "norm returned by the last clip over all parameters, unscaled"),
    _field("grad_norm_after_clip", "DOUBLE", "norm measured just before the step, clipped or not, unscaled"),
    _field("grad_norm_before_scope", "VARCHAR", "global or shard"),
    _field("grad_norm_after_scope", "VARCHAR", "global or shard"),
    _field(
        "clips",
        'STRUCT(micro_step BIGINT, kind VARCHAR, "limit" DOUBLE, norm DOUBLE, coefficient DOUBLE, '
        "largest DOUBLE, complete BOOLEAN)[]",
        "one entry per call: backwards' micro-steps so far in the transaction, norm or value, the limit, "
        "the norm returned, the ratio of the probe's slices after and before (null without a single "
        "factor), the largest element of the slice after, whether all gradients were among those clipped",
    ),
    _field("grad_rescale", "DOUBLE", "factor by which gradients were multiplied after the last backward"),
    _field("optimizer_state_step", "BIGINT", "the optimizer's own step count after the step"),
    _field("param_digest", "VARCHAR", "16 hex digits over the parameters' bits, every tenth update"),
    _field(
        "param_digest_before",
        "VARCHAR",
        "the same before the step, where there are several ranks: right after parameters were averaged "
        "they agree again",
    ),
    _field("probe_parameter", "VARCHAR", "name of the polled parameter"),
    _field(
        "probe_gradient",
        "DOUBLE[]",
        "a fixed slice of its gradient after the last backward, unscaled: up to 64 elements, whatever the "
        "number of micro-steps",
    ),
    _field("probe_unscale", "DOUBLE", "ratio of the slices after and before unscaling"),
    _field("probe_clip_coefficient", "DOUBLE", "ratio of the slices after and before the last clip"),
    _field("probe_nonfinite", "BOOLEAN", "the slice just before the step holds NaN or infinity"),
    _field("probe_parameter_changed", "BOOLEAN", "the step changed the parameter's slice"),
    _field(
        "probe_parameter_moved",
        "BOOLEAN",
        "the parameter's slice changed between the step before and this one: something beside the "
        "optimizer writes parameters (averaging over ranks, clamping)",
    ),
    # schedule
    _field("scheduler_step", "BIGINT", "last_epoch after the transaction"),
    _field("scheduler_rate", "DOUBLE", "first rate that the scheduler gives after the transaction"),
    _field("ema_updates", "BIGINT", "EMA updates so far"),
    _field("ema_decay", "DOUBLE", "decay of the last EMA update"),
)

MARK_FIELDS: Final = (
    _field("launch", "VARCHAR", "token of the launch", required=True),
    _field("rank", "BIGINT", "global rank of the writing process", required=True),
    _field(
        "kind",
        "VARCHAR",
        "epoch_end, end_of_data, checkpoint, resume, eval, declare, gap, not_recorded, hook_error or close",
        required=True,
    ),
    _field(
        "name",
        "VARCHAR",
        "of the checkpoint, of the error, of what is not recorded; declare: the values as JSON",
        writer="loop",
    ),
    _field("optimizer", "BIGINT", "index of the optimizer; null where the mark is for all"),
    _field("attempt_id", "BIGINT", "attempts before the mark"),
    _field("micro_step_id", "BIGINT", "micro-steps before the mark"),
    _field("epoch", "BIGINT", "iterations begun over the data, from 1"),
    _field("time", "DOUBLE", "time of the mark", unit="seconds since 1970"),
    _field("seq", "BIGINT", "number of the line in its file, from 1"),
    _field("reason", "VARCHAR", "close: closed, exception or exit"),
    _field("finished", "BOOLEAN", "close: the loop ran to its end"),
    _field("leftover_microbatches", "BIGINT", "close: micro-steps after the last attempt"),
    _field("leftover_valid_tokens", "DOUBLE", "close: their valid tokens", unit="positions"),
    _field(
        "repeated_samples",
        "BIGINT",
        "end_of_data: rows of the epoch that all ranks together were given twice, to have equally many",
    ),
    _field("lost_records", "BIGINT", "gap: records that could not be written"),
)

FIELDS: Final = {"run": RUN_FIELDS, "update": UPDATE_FIELDS, "mark": MARK_FIELDS}

NOUNS: Final = {
    "microbatches": "micro-batches",
    "discarded_microbatches": "micro-batches",
    "events": "order of events",
    "valid_tokens": "token counts of micro-batches",
    "loss_weight": "loss weights",
    "loss_weight_sq": "loss weights",
    "weight_uniform": "loss weights",
    "loss": "losses of micro-batches",
    "loss_terms": "terms of the loss",
    "loss_scale": "loss scales of micro-batches",
    "samples": "rows of micro-batches",
    "clips": "clip calls",
    "grad_norm_before_clip": "gradient norms",
    "grad_norm_after_clip": "gradient norms after the clip",
    "optimizer_step_skipped": "word of skipped steps",
    "optimizer_update_id": "count of applied updates",
    "probe_gradient": "slices of gradients",
    "data_digest": "digests of the data",
    "param_digest": "digests of the parameters",
    "scheduler_rate": "rates of the scheduler",
    "scheduler_step": "position of the scheduler",
    "weight_decays": "weight decays",
    "grad_scale": "loss scales",
    "reported_loss": "losses",
    "reported_tokens": "token counts",
    "reported_samples": "batch sizes",
    "global_valid_tokens_in_update": "token counts",
    "cumulative_train_tokens": "running token count",
    "reported_global_step": "step counter",
    "learning_rate": "learning rates",
    "attempt_id": "steps",
    "wrapper": "word of how gradients are reduced",
    "optimizer_state_step": "steps of the optimizer's state",
    "accumulation_steps": "number of accumulation steps",
    "name": "names of checkpoints",
    "epoch": "epochs",
    "planned_updates": "planned number of updates",
    "warmup_updates": "length of the warm-up",
    "peak_learning_rate": "declared rates",
    "min_learning_rate": "declared rates",
    "scheduler_steps_per_update": "steps of the scheduler",
    "gradient_divisor": "word of how gradients are reduced",
    "probe_nonfinite": "slices of gradients",
    "grad_rescale": "rescaling of gradients",
    "input_positions": "token counts of micro-batches",
    "ema_updates": "updates of an average",
}
"""What messages call a field that a log does not have; another is called by its name."""
