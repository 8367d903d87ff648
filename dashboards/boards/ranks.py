"""The ranks of one run: how far they are apart, and which of them stand out."""

from __future__ import annotations

from typing import Final

from accumaudit.dashboards.boards.shared import ANNOTATIONS, INSTANCE, MATCHERS, RUN
from accumaudit.dashboards.classic import Board, Column, Json, Query, Row, Variable, chart, stat, table

_FIELDS: Final = (
    ("window_seconds", "window_seconds", "Seconds from update to update", "s"),
    ("valid_tokens", "valid_tokens", "Tokens with a loss", "short"),
    ("loss", "loss", "Loss", "short"),
    ("grad_norm_before", "grad_norm_before_clip", "Gradient norm before clipping", "short"),
    ("grad_norm_after", "grad_norm_after_clip", "Gradient norm that was applied", "short"),
    ("learning_rate", "learning_rate", "Learning rate", "sci"),
    ("grad_scale", "grad_scale", "Scale of the loss", "short"),
)
"""What ranks are compared by: the field, the metric of each rank, a title and a unit."""
_MANY: Final = 20
"""Lines of a table of ranks."""
_LABELS: Final = (Column("Rank", label="rank"), Column("Optimizer", label="optimizer"))


def _over_ranks(field: str, title: str, unit: str) -> Json:
    return chart(
        title,
        "The lowest, the median and the highest of the ranks that are at the same attempt.",
        unit,
        *(
            Query(
                f'max by (optimizer) (accumaudit_ranks_{which}{{@run, field="{field}"}})',
                f"{word}, optimizer {{{{optimizer}}}}",
            )
            for which, word in (("max", "highest"), ("median", "median"), ("min", "lowest"))
        ),
    )


def _of_ranks(metric: str, title: str, unit: str) -> Json:
    query = f'max by (optimizer, rank) (accumaudit_rank_{metric}{{@run, rank=~"$rank"}})'
    return chart(
        title,
        "On the ranks that are chosen at the top.",
        unit,
        Query(query, "rank {{rank}}, optimizer {{optimizer}}"),
    )


def _last(metric: str) -> str:
    return f"max by (optimizer, rank) (accumaudit_rank_{metric}{{@run}})"


_APART: Final = Row(
    "How far apart the ranks are",
    (
        stat(
            "Ranks",
            "Ranks that have written records, and those that are to write.",
            "none",
            Query("max(accumaudit_ranks{@run})", "write"),
            Query("max(accumaudit_expected_ranks{@run})", "are to write"),
            width=8,
        ),
        stat(
            "Late ranks",
            "Ranks that attempts are judged without, because they lag.",
            "none",
            Query("max(accumaudit_late_ranks{@run})"),
            width=8,
            steps=((None, "text"), (1, "orange")),
        ),
        stat(
            "Further ranks that stand out",
            "Those that have no line in the table: counted in each field.",
            "none",
            Query("sum(accumaudit_outlier_ranks_left_out{@run})"),
            width=8,
        ),
        chart(
            "Spread",
            "The highest less the lowest value over the ranks of one attempt, by the size of the median. "
            "After an all-reduce the norms and rates of all ranks are equal: their spread is 0.",
            "percentunit",
            Query(
                "max by (optimizer, field) (accumaudit_ranks_spread_ratio{@run})",
                "{{field}}, optimizer {{optimizer}}",
            ),
            width=12,
        ),
        chart(
            "Ranks that stand out",
            "How many ranks have a value far from the median of all.",
            "none",
            Query(
                "max by (optimizer, field) (accumaudit_outlier_ranks{@run})",
                "{{field}}, optimizer {{optimizer}}",
            ),
            width=12,
        ),
        table(
            "Which ranks stand out",
            "The values furthest from the median, a few of each field.",
            *_LABELS,
            Column("Field", label="field"),
            Column(
                "Value",
                "max by (optimizer, field, rank) (accumaudit_outlier_rank_value{@run})",
                unit="short",
            ),
            Column(
                "Median of all",
                "group by (optimizer, field, rank) (accumaudit_outlier_rank_value{@run}) "
                "* on (optimizer, field) group_left () "
                "max by (optimizer, field) (accumaudit_ranks_median{@run})",
                unit="short",
            ),
            sort="Value",
        ),
    ),
)
_ALL: Final = Row(
    "Over all ranks", tuple(_over_ranks(field, title, unit) for field, _, title, unit in _FIELDS)
)
_EACH: Final = Row(
    "Rank by rank, where Prometheus scrapes /metrics/ranks too",
    (
        table(
            "Furthest behind",
            "Attempts that the foremost rank is ahead of each.",
            *_LABELS,
            Column(
                "Attempts behind",
                f"topk({_MANY}, max by (optimizer) (accumaudit_rank_last_attempt_id{{@run}}) "
                f"- on (optimizer) group_right () {_last('last_attempt_id')})",
            ),
            sort="Attempts behind",
            width=8,
        ),
        table(
            "Silent for longest",
            "How long ago each rank wrote its newest record, by its own clock.",
            *_LABELS,
            Column(
                "Since its last record",
                f"topk({_MANY}, time() - {_last('last_record_timestamp_seconds')})",
                unit="s",
            ),
            sort="Since its last record",
            width=8,
        ),
        table(
            "Slowest",
            "Seconds from update to update.",
            *_LABELS,
            Column("Seconds", f"topk({_MANY}, {_last('window_seconds')})", unit="s"),
            sort="Seconds",
            width=8,
        ),
        *(_of_ranks(metric, title, unit) for _, metric, title, unit in _FIELDS),
        stat(
            "Ranks without series",
            "More ranks than are exported one by one.",
            "none",
            Query("max(accumaudit_rank_series_left_out{@run})"),
            width=8,
        ),
    ),
)
BOARD: Final = Board(
    uid="accumaudit-ranks",
    title="accumaudit: the ranks of a run",
    description="How far the ranks of one training are apart, and which of them stand out or lag.",
    variables=(
        INSTANCE,
        RUN,
        Variable("rank", "Rank", "label_values(accumaudit_rank_last_attempt_id{@run}, rank)", several=True),
    ),
    matchers=MATCHERS,
    rows=(_APART, _ALL, _EACH),
    annotations=ANNOTATIONS,
)
