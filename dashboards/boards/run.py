"""One run: what stands against it, and what each of its updates was."""

from __future__ import annotations

from typing import Final

from accumaudit.dashboards.boards.shared import (
    ANNOTATIONS,
    INSTANCE,
    MATCHERS,
    RANGE,
    RUN,
    faults_table,
    faults_timeline,
    standing,
)
from accumaudit.dashboards.classic import Board, Json, Query, Row, chart, stat


def _newest(metric: str, legend: str = "optimizer {{optimizer}}", dashed: bool = False) -> Query:
    """A gauge of the newest attempt, by optimizer."""
    return Query(f"max by (optimizer) (accumaudit_{metric}{{@run}})", legend, dashed)


def _each_minute(metric: str, legend: str = "optimizer {{optimizer}}", by: str = "optimizer") -> Query:
    return Query(f"60 * sum by ({by}) (rate(accumaudit_{metric}_total{{@run}}{RANGE}))", legend)


def _right_is_one(title: str, description: str, *queries: Query) -> Json:
    return chart(title, description, "none", *queries, Query("vector(1)", "right", dashed=True))


_NOW: Final = Row(
    "Now",
    (
        stat(
            "State",
            "Running; silent, where nothing was written for long and nothing says why; broken off, where the "
            "training ended before its end; or finished.",
            "none",
            Query("max by (state) (accumaudit_run_state{@run} == 1)", "{{state}}"),
            field="state",
        ),
        standing("Errors", "error", "red"),
        standing("Warnings", "warning", "orange"),
        standing("Notes", "note", "blue"),
        stat("Update", "The newest update that was judged.", "locale", _newest("last_update_id"), width=3),
        stat(
            "Updates per minute",
            "Applied attempts.",
            "short",
            _each_minute("updates"),
            width=4,
        ),
        stat(
            "Since the last record",
            "How long ago the newest record was written, by the clock of who wrote it.",
            "s",
            Query("time() - max(accumaudit_last_record_timestamp_seconds{@run})"),
        ),
        stat(
            "Ranks",
            "Ranks that have written records, and those that are to write.",
            "none",
            Query("max(accumaudit_ranks{@run})", "write"),
            Query("max(accumaudit_expected_ranks{@run})", "are to write"),
        ),
        stat(
            "Late ranks",
            "Ranks that attempts are judged without, because they lag.",
            "none",
            Query("max(accumaudit_late_ranks{@run})"),
            width=3,
            steps=((None, "text"), (1, "orange")),
        ),
        stat(
            "Launches",
            "1, and one more for each resume.",
            "none",
            Query("max(accumaudit_launches_total{@run})"),
            width=3,
        ),
        stat(
            "Rules",
            "What the rules say of the run. Not checked: the record lacks what a rule needs, or has nothing "
            "that it is about.",
            "none",
            Query("max by (status) (accumaudit_verdicts{@run})", "{{status}}"),
            width=10,
        ),
        stat(
            "Judged attempt",
            "The attempt up to which the rules have judged.",
            "locale",
            Query("max(accumaudit_judged_attempt_id{@run})"),
        ),
    ),
)
_FAULTS: Final = Row("Faults", (faults_table(), faults_timeline("{{rule}} {{name}}")))
_WINDOWS: Final = Row(
    "What each update weighed",
    (
        _right_is_one(
            "Total weight T",
            "The sum of the weights that the losses of the window's positions got. 1 is the mean over all "
            "tokens; a half is a gradient half as long.",
            _newest("total_weight"),
        ),
        _right_is_one(
            "Distortion",
            "The lowest and the highest weight of a token in the attempt, as a multiple of its right weight.",
            _newest("distortion_min", "lowest, optimizer {{optimizer}}"),
            _newest("distortion_max", "highest, optimizer {{optimizer}}"),
        ),
        chart(
            "Equivalent batch",
            "Tokens of equal weight that the unequal ones of the attempt are worth; dashed, the tokens that "
            "there were.",
            "short",
            _newest("equivalent_batch_tokens"),
            _newest("window_valid_tokens", "tokens, optimizer {{optimizer}}", dashed=True),
        ),
        chart(
            "Micro-batches",
            "Micro-batches of the window on one rank; dashed, those that it is meant to have.",
            "none",
            _newest("window_microbatches"),
            _newest("accumulation_steps", "meant, optimizer {{optimizer}}", dashed=True),
        ),
        chart(
            "Skipped attempts per minute",
            "Attempts that left the parameters as they were, by reason.",
            "short",
            _each_minute("skipped_updates", "{{reason}}, optimizer {{optimizer}}", "optimizer, reason"),
        ),
        chart(
            "Gradient norms that are no number",
            "Attempts per minute with a norm that is infinite or no number, which charts of norms leave out.",
            "short",
            _each_minute("nonfinite_grad_norms"),
        ),
    ),
)
_TRAJECTORY: Final = Row(
    "Loss, norms and rates",
    (
        chart("Loss", "Mean over the tokens of the newest attempt.", "short", _newest("loss")),
        chart(
            "Gradient norm",
            "Of the gradient before clipping, and of the one that was applied.",
            "short",
            _newest("grad_norm_before_clip", "before clipping, optimizer {{optimizer}}"),
            _newest("grad_norm_after_clip", "applied, optimizer {{optimizer}}"),
        ),
        chart(
            "Learning rate",
            "As it was applied; dashed, as the scheduler had announced it for the attempt.",
            "sci",
            _newest("learning_rate"),
            _newest("scheduled_learning_rate", "announced, optimizer {{optimizer}}", dashed=True),
        ),
        chart(
            "Scale of the loss",
            "Factor that losses are scaled by for low precision. It falls at overflows.",
            "short",
            _newest("grad_scale"),
            lineInterpolation="stepAfter",
        ),
        chart("Updates per minute", "Applied attempts.", "short", _each_minute("updates")),
        chart(
            "Tokens per second",
            "Tokens with a loss in applied attempts, over all ranks.",
            "short",
            Query(
                f"sum by (optimizer) (rate(accumaudit_valid_tokens_total{{@run}}{RANGE}))",
                "optimizer {{optimizer}}",
            ),
        ),
        chart(
            "From attempt to attempt",
            "Median of the seconds between the newest attempts.",
            "s",
            _newest("update_interval_seconds"),
        ),
        chart(
            "Attempts",
            "The newest attempt that was judged, counted within its launch: it falls at a resume.",
            "locale",
            _newest("last_attempt_id"),
        ),
        chart(
            "Micro-batches per minute",
            "Over all ranks.",
            "short",
            _each_minute("microbatches"),
        ),
    ),
)
BOARD: Final = Board(
    uid="accumaudit-run",
    title="accumaudit: one run",
    description="One training: its faults, what each of its updates weighed, and its loss, norms and rates.",
    variables=(INSTANCE, RUN),
    matchers=MATCHERS,
    rows=(_NOW, _FAULTS, _WINDOWS, _TRAJECTORY),
    annotations=ANNOTATIONS,
)
