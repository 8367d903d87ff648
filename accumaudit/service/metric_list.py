"""Every metric that accumaudit exports: its name, kind, labels and meaning, in the order of the exposition.

Names and labels are an interface: dashboards and alerts that other people wrote read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of series."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    """One line, as HELP and the manual give it."""


RUN: Final = ("run",)
OPTIMIZER: Final = ("run", "optimizer")
FIELD: Final = ("run", "optimizer", "field")

RUN_INFO: Final = Metric(
    "accumaudit_run_info",
    GAUGE,
    ("run", "runtime", "wrapper", "world_size"),
    "1 for each run, with what its newest launch is.",
)
OPTIMIZER_INFO: Final = Metric(
    "accumaudit_optimizer_info", GAUGE, (*OPTIMIZER, "name"), "1 for each optimizer, with its name."
)
RUN_STATE: Final = Metric(
    "accumaudit_run_state",
    GAUGE,
    ("run", "state"),
    "1 for the state that the run is in, 0 for the others: running, silent, broken off, finished.",
)
LAUNCHES: Final = Metric(
    "accumaudit_launches_total", COUNTER, RUN, "Launches of the run: 1, and one more for each resume."
)
STARTED: Final = Metric(
    "accumaudit_run_started_timestamp_seconds", GAUGE, RUN, "When the first launch began, since the epoch."
)
LAST_RECORD: Final = Metric(
    "accumaudit_last_record_timestamp_seconds",
    GAUGE,
    RUN,
    "When the newest record was written, since the epoch, by the clock of who wrote it.",
)
RANKS: Final = Metric("accumaudit_ranks", GAUGE, RUN, "Ranks that have written records.")
EXPECTED_RANKS: Final = Metric(
    "accumaudit_expected_ranks", GAUGE, RUN, "Ranks that are to write: all, or those chosen to be recorded."
)
LATE_RANKS: Final = Metric(
    "accumaudit_late_ranks", GAUGE, RUN, "Ranks that attempts are judged without, because they lag."
)
JUDGED_ATTEMPT: Final = Metric(
    "accumaudit_judged_attempt_id", GAUGE, RUN, "The attempt up to which the rules have judged."
)
VERDICTS: Final = Metric(
    "accumaudit_verdicts",
    GAUGE,
    ("run", "status"),
    "Rules by what they say of the run: failed, passed, not_checked, broken.",
)
FINDINGS_ACTIVE: Final = Metric(
    "accumaudit_findings_active",
    GAUGE,
    ("run", "rule", "name", "severity"),
    "1 for each rule that finds a fault in the run.",
)
FINDINGS: Final = Metric(
    "accumaudit_findings_total",
    COUNTER,
    RUN,
    "Rules that have found a fault in the run at any time, those withdrawn later among them.",
)
FAULTY_ATTEMPTS: Final = Metric(
    "accumaudit_faulty_attempts_total",
    COUNTER,
    ("run", "rule"),
    "Attempts in which the rule found a fault.",
)
ATTEMPTS: Final = Metric(
    "accumaudit_attempts_total", COUNTER, OPTIMIZER, "Attempts to update: applied and skipped."
)
UPDATES: Final = Metric("accumaudit_updates_total", COUNTER, OPTIMIZER, "Attempts that were applied.")
SKIPPED: Final = Metric(
    "accumaudit_skipped_updates_total",
    COUNTER,
    (*OPTIMIZER, "reason"),
    "Attempts that left the parameters as they were: overflow of the loss scale, or unknown.",
)
MICROBATCHES: Final = Metric(
    "accumaudit_microbatches_total", COUNTER, OPTIMIZER, "Micro-batches, over all ranks."
)
VALID_TOKENS: Final = Metric(
    "accumaudit_valid_tokens_total",
    COUNTER,
    OPTIMIZER,
    "Tokens with a loss in applied attempts, over all ranks.",
)
NONFINITE_NORMS: Final = Metric(
    "accumaudit_nonfinite_grad_norms_total",
    COUNTER,
    OPTIMIZER,
    "Attempts with a gradient norm that is infinite or no number; comparisons never see such a value.",
)
UPDATE_INTERVAL: Final = Metric(
    "accumaudit_update_interval_seconds",
    GAUGE,
    OPTIMIZER,
    "Median of the seconds between the newest attempts.",
)

POINT_GAUGES: Final = {
    "attempt_id": Metric(
        "accumaudit_last_attempt_id",
        GAUGE,
        OPTIMIZER,
        "The newest attempt that was judged, counted within its launch.",
    ),
    "update_id": Metric(
        "accumaudit_last_update_id", GAUGE, OPTIMIZER, "Updates applied up to the newest judged attempt."
    ),
    "loss": Metric("accumaudit_loss", GAUGE, OPTIMIZER, "Loss of the newest attempt: mean over its tokens."),
    "learning_rate": Metric("accumaudit_learning_rate", GAUGE, OPTIMIZER, "Learning rate that was applied."),
    "scheduled_rate": Metric(
        "accumaudit_scheduled_learning_rate",
        GAUGE,
        OPTIMIZER,
        "Learning rate that the scheduler had announced for this attempt.",
    ),
    "grad_norm_before": Metric(
        "accumaudit_grad_norm_before_clip", GAUGE, OPTIMIZER, "Norm of the gradient before clipping."
    ),
    "grad_norm_after": Metric(
        "accumaudit_grad_norm_after_clip", GAUGE, OPTIMIZER, "Norm of the gradient that was applied."
    ),
    "grad_scale": Metric(
        "accumaudit_grad_scale", GAUGE, OPTIMIZER, "Factor that losses are scaled by for low precision."
    ),
    "total_weight": Metric(
        "accumaudit_total_weight",
        GAUGE,
        OPTIMIZER,
        "T: the sum of the weights of all positions with a loss; right is 1.",
    ),
    "distortion_min": Metric(
        "accumaudit_distortion_min",
        GAUGE,
        OPTIMIZER,
        "Lowest weight of a token in the attempt, as a multiple of its right weight; right is 1.",
    ),
    "distortion_max": Metric(
        "accumaudit_distortion_max",
        GAUGE,
        OPTIMIZER,
        "Highest weight of a token in the attempt, as a multiple of its right weight; right is 1.",
    ),
    "equivalent_batch": Metric(
        "accumaudit_equivalent_batch_tokens",
        GAUGE,
        OPTIMIZER,
        "Tokens of equal weight that the unequal ones of the attempt are worth (Kish).",
    ),
    "valid_tokens": Metric(
        "accumaudit_window_valid_tokens", GAUGE, OPTIMIZER, "Tokens with a loss, over all ranks."
    ),
    "microbatches": Metric(
        "accumaudit_window_microbatches", GAUGE, OPTIMIZER, "Micro-batches of the window on one rank."
    ),
    "accumulation_steps": Metric(
        "accumaudit_accumulation_steps", GAUGE, OPTIMIZER, "Micro-batches that a window is meant to have."
    ),
}
"""Of the newest attempt, by the field of Point."""

RANKS_MIN: Final = Metric(
    "accumaudit_ranks_min", GAUGE, FIELD, "Lowest value of a field over the ranks of one attempt."
)
RANKS_MEDIAN: Final = Metric(
    "accumaudit_ranks_median", GAUGE, FIELD, "Median of a field over the ranks of one attempt."
)
RANKS_MAX: Final = Metric(
    "accumaudit_ranks_max", GAUGE, FIELD, "Highest value of a field over the ranks of one attempt."
)
RANKS_SPREAD: Final = Metric(
    "accumaudit_ranks_spread_ratio",
    GAUGE,
    FIELD,
    "Highest less lowest value over the ranks, by the size of the median; 0 where all are equal.",
)
OUTLIER_RANKS: Final = Metric(
    "accumaudit_outlier_ranks", GAUGE, FIELD, "Ranks whose value is far from the median of all."
)
OUTLIER_RANK_VALUE: Final = Metric(
    "accumaudit_outlier_rank_value",
    GAUGE,
    (*FIELD, "rank"),
    "Value of a rank that is far from the median: the worst few alone.",
)
OUTLIERS_LEFT_OUT: Final = Metric(
    "accumaudit_outlier_ranks_left_out", GAUGE, FIELD, "Such ranks that have no series of their own."
)

BUILD_INFO: Final = Metric("accumaudit_build_info", GAUGE, ("version",), "1, with the version of accumaudit.")
READY: Final = Metric(
    "accumaudit_ready", GAUGE, (), "Whether everything that was there at the start has been read."
)
SNAPSHOT_TIME: Final = Metric(
    "accumaudit_snapshot_timestamp_seconds",
    GAUGE,
    (),
    "When these numbers were put together, since the epoch.",
)
TROUBLES: Final = Metric(
    "accumaudit_troubles", GAUGE, (), "What is wrong with the service itself: a folder gone, a disk full."
)
RUNS: Final = Metric("accumaudit_runs", GAUGE, ("state",), "Runs that the service follows, by state.")
RUNS_LEFT_OUT: Final = Metric(
    "accumaudit_runs_left_out", GAUGE, (), "Runs beyond the limit, which nothing is known of."
)
RUNS_NOT_EXPORTED: Final = Metric(
    "accumaudit_runs_not_exported", GAUGE, (), "Runs that are followed but have no series here: too many."
)
INGEST_LAG: Final = Metric(
    "accumaudit_ingest_lag_seconds",
    HISTOGRAM,
    (),
    "From the time in a record to its reading; clocks that disagree are in it.",
)

INTAKE: Final = {
    "bytes": Metric("accumaudit_ingest_bytes_total", COUNTER, (), "Bytes of ledgers that were read."),
    "records": Metric("accumaudit_ingest_records_total", COUNTER, (), "Records that were read."),
    "malformed_records": Metric(
        "accumaudit_ingest_malformed_records_total", COUNTER, (), "Lines that are no record."
    ),
    "read_errors": Metric(
        "accumaudit_ingest_read_errors_total", COUNTER, (), "Attempts to read a file or folder that failed."
    ),
    "behind_bytes": Metric("accumaudit_ingest_behind_bytes", GAUGE, (), "Bytes written and not yet read."),
    "files_followed": Metric("accumaudit_files_followed", GAUGE, (), "Files that are looked at again."),
    "files_at_rest": Metric("accumaudit_files_at_rest", GAUGE, (), "Files of runs that have ended."),
    "state_write_errors": Metric(
        "accumaudit_state_write_errors_total",
        COUNTER,
        (),
        "Attempts to save the service's state that failed.",
    ),
    "judgements": Metric("accumaudit_judgements_total", COUNTER, (), "Times that the rules were run."),
    "judgement_seconds": Metric(
        "accumaudit_judgement_cpu_seconds_total", COUNTER, (), "CPU time that the rules took."
    ),
    "failed_judgements": Metric(
        "accumaudit_failed_judgements_total", COUNTER, (), "Times that the rules could not be run to the end."
    ),
    "internal_errors": Metric(
        "accumaudit_internal_errors_total", COUNTER, (), "Errors in the service itself; its log has them."
    ),
}
"""By the field of Intake."""

RANK_GAUGES: Final = {
    "attempt_id": Metric(
        "accumaudit_rank_last_attempt_id", GAUGE, (*OPTIMIZER, "rank"), "The rank's newest attempt."
    ),
    "time": Metric(
        "accumaudit_rank_last_record_timestamp_seconds",
        GAUGE,
        (*OPTIMIZER, "rank"),
        "When the rank wrote its newest record, since the epoch.",
    ),
    "learning_rate": Metric(
        "accumaudit_rank_learning_rate", GAUGE, (*OPTIMIZER, "rank"), "Learning rate on the rank."
    ),
    "loss": Metric("accumaudit_rank_loss", GAUGE, (*OPTIMIZER, "rank"), "Loss over the rank's own tokens."),
    "grad_norm_before": Metric(
        "accumaudit_rank_grad_norm_before_clip",
        GAUGE,
        (*OPTIMIZER, "rank"),
        "Norm of the gradient before clipping, on the rank.",
    ),
    "grad_norm_after": Metric(
        "accumaudit_rank_grad_norm_after_clip",
        GAUGE,
        (*OPTIMIZER, "rank"),
        "Norm of the gradient that was applied, on the rank.",
    ),
    "grad_scale": Metric(
        "accumaudit_rank_grad_scale", GAUGE, (*OPTIMIZER, "rank"), "Factor that losses are scaled by."
    ),
    "valid_tokens": Metric(
        "accumaudit_rank_valid_tokens", GAUGE, (*OPTIMIZER, "rank"), "The rank's tokens with a loss."
    ),
    "window_seconds": Metric(
        "accumaudit_rank_window_seconds", GAUGE, (*OPTIMIZER, "rank"), "Seconds from update to update."
    ),
}
"""On /metrics/ranks, by the field of RankView."""
RANKS_NOT_EXPORTED: Final = Metric(
    "accumaudit_rank_series_left_out", GAUGE, RUN, "Ranks that have no series here: too many."
)

OF_RUNS: Final = (
    *(RUN_INFO, OPTIMIZER_INFO, RUN_STATE, LAUNCHES, STARTED, LAST_RECORD, RANKS, EXPECTED_RANKS, LATE_RANKS),
    *(JUDGED_ATTEMPT, VERDICTS, FINDINGS_ACTIVE, FINDINGS, FAULTY_ATTEMPTS),
    *(ATTEMPTS, UPDATES, SKIPPED, MICROBATCHES, VALID_TOKENS, NONFINITE_NORMS, UPDATE_INTERVAL),
    *POINT_GAUGES.values(),
)
OF_RANKS: Final = (
    *(RANKS_MIN, RANKS_MEDIAN, RANKS_MAX, RANKS_SPREAD),
    *(OUTLIER_RANKS, OUTLIER_RANK_VALUE, OUTLIERS_LEFT_OUT),
)
OF_THE_SERVICE: Final = (
    *(BUILD_INFO, READY, SNAPSHOT_TIME, TROUBLES, RUNS, RUNS_LEFT_OUT, RUNS_NOT_EXPORTED, INGEST_LAG),
    *INTAKE.values(),
)
OF_EACH_RANK: Final = (*RANK_GAUGES.values(), RANKS_NOT_EXPORTED)
