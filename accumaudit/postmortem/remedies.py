"""What would have let a rule judge: a field, an argument of attach, a declaration, an option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from accumaudit.engine.findings import RunReport
from accumaudit.importers import options
from accumaudit.ledger.schema import NOUNS, RUN_FIELDS, UPDATE_FIELDS

_CALLS: Final = {
    "global_valid_tokens_in_update": "audit.report(global_valid_tokens=...)",
    "cumulative_train_tokens": "audit.report(cumulative_train_tokens=...)",
    "reported_global_step": "audit.report(global_step=...)",
    "reported_loss": "audit.report(loss=...)",
    "accumulation_steps": "attach(accumulation_steps=...)",
    "max_grad_norm": "attach(max_grad_norm=...)",
    "gradient_divisor": "attach(gradient_divisor=...)",
    "epoch": "attach(dataloader=...)",
    "scheduler_step": "attach(scheduler=...)",
    "scheduler_rate": "attach(scheduler=...)",
    "scheduler_steps_per_update": "attach(scheduler=...)",
    "planned_updates": "audit.declare(planned_updates=...)",
    "warmup_updates": "audit.declare(warmup_updates=...)",
    "peak_learning_rate": "audit.declare(peak_learning_rate=...)",
    "min_learning_rate": "audit.declare(min_learning_rate=...)",
    "resumed_from_update": "audit.declare(resumed_from_update=...)",
}
"""What gives a field to a ledger."""

_LOSS: Final = (
    "losses of torch's own functions are measured; any other is told with "
    "`audit.observe_loss(loss, valid_tokens=...)`, one that the model returns with `attach(labels=...)`"
)
_DETAIL: Final = 'an entry for each micro-step is kept with `attach(microbatch_detail="full")`'
_SPOKEN: Final = {
    **dict.fromkeys(("valid_tokens", "loss_weight", "loss_weight_sq", "weight_uniform", "loss"), _LOSS),
    "grad_scale": "a scaler that is not torch's own is given with `attach(scaler=...)`",
    "data_digest": "the input of the attached model is digested: attach the module that the loop calls",
    "ema_updates": "an average that the loop itself makes is told with `audit.ema_updated()`",
    "param_digest": "the digest of the parameters is written at every tenth update",
    "name": 'a checkpoint is told with `audit.mark("checkpoint", name=...)`',
}
"""Where one call does not say it all."""

_SCOPES: Final = {
    "the loop reported no token count for an update": "global_valid_tokens_in_update",
    "the loop reported its step counter fewer than three times": "reported_global_step",
    "the loop reported no loss for an update whose weights add up to 1": "reported_loss",
    "no checkpoint was marked with a number in its name": "name",
    "no warm-up of several updates was declared for the first update of a run": "warmup_updates",
    "no bounds of the rate were declared": "peak_learning_rate",
}
"""Reasons of an empty scope that the loop could have filled, and with which field."""

_HYPERPARAMETERS: Final = frozenset(
    ("accumulation_steps", "planned_updates", "warmup_updates", "peak_learning_rate", "min_learning_rate")
)
_TABLES: Final = frozenset(("mapped", "named_fields", "lightning_csv", "nanogpt_csv", "wandb_history"))
"""Formats with columns, which a caller may name."""

_FIELD: Final = re.compile(r"`(\w+)`")
_NEIGHBOURS: Final = re.compile(r"\bfollowed\b")
_SEVERAL_RANKS: Final = ("the ledger holds no ", "one rank alone ", "no two replicas ")
_NOT_LACKING: Final = ("a cause was found by ", "ignored: ")
"""How reasons begin that something else answers: nothing is missing there."""

_DECLARED: Final = frozenset(field.name for field in RUN_FIELDS + UPDATE_FIELDS if field.writer == "loop")
PER_MICRO_STEP: Final = frozenset(
    ("valid_tokens", "loss_weight", "loss_weight_sq", "weight_uniform", "loss", "loss_terms", "data_digest")
)
"""Fields with an entry for each micro-step, which sums may stand in place of."""

_COLUMNS: Final = frozenset(options.FIELDS)


def remedy(reason: str, run: RunReport, *, summed: bool) -> str | None:
    """What would have shown it; None where nothing would: what the rule is about did not happen.

    Args:
        summed: some records hold sums in place of an entry for each micro-step.
    """
    if reason.startswith(_NOT_LACKING):
        return None
    if run.is_foreign:
        return _of_log(reason, run)
    fields = _FIELD.findall(reason) or ([_SCOPES[reason]] if reason in _SCOPES else [])
    parts = (_of_field(field, summed) for field in fields) if fields else _of_sampling(reason, run)
    return "; ".join(dict.fromkeys(part for part in parts if part)) or None


def _of_field(name: str, summed: bool) -> str | None:
    """How a field comes into a ledger; None where the hooks record it wherever there is one."""
    if summed and name in PER_MICRO_STEP:
        return _DETAIL
    if name in _CALLS:
        return f"`{name}` is {'told' if name in _DECLARED else 'recorded'} with `{_CALLS[name]}`"
    return _SPOKEN.get(name)


def _of_sampling(reason: str, run: RunReport) -> Iterator[str]:
    """What was left out of the record on purpose, or is not among the files that were read."""
    if run.recorded < run.attempts and _NEIGHBOURS.search(reason):
        yield "attempts that follow each other are recorded with `attach(every=1)`"
    if reason.startswith(_SEVERAL_RANKS):
        if run.recorded_ranks is not None:
            yield 'ranks are compared where all of them write: `attach(ranks="all")`'
        elif len(run.ranks) < (run.world_size or 0):
            yield f"ranks are compared where the files of all {run.world_size:,} are read"


def _of_log(reason: str, run: RunReport) -> str | None:
    """What another program's log lacks."""
    if reason.startswith("no schedule is declared or recognised"):
        return "`--args FILE` reads the hyperparameters of the run, the schedule among them"
    lacks = f"{run.title} holds no "
    if not reason.startswith(lacks):
        return None
    noun = reason.removeprefix(lacks)
    if noun == "updates":
        return "give the log that has a line for each update, or attach accumaudit to the training"
    fields = _fields_of(noun)
    if fields & _HYPERPARAMETERS:
        return "`--args FILE` reads the hyperparameters of the run"
    if run.format in _TABLES and fields & _COLUMNS:
        return "where a column holds it, name it: `--map FIELD=COLUMN`"
    told = sorted(f"`{_CALLS[field]}`" for field in fields & _DECLARED)
    calls = f", as the loop tells it with {' or '.join(told)}" if told else ""
    return f"attach accumaudit to the training: its ledger holds this{calls}"


def _fields_of(noun: str) -> set[str]:
    """The fields that messages about logs call so."""
    return {name for name, text in NOUNS.items() if text == noun} or {noun.replace(" ", "_")}
