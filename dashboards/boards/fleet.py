"""All runs that services watch: their states, faults and pace, and how the services keep up."""

from __future__ import annotations

from typing import Final

from accumaudit.dashboards.boards.shared import (
    ANNOTATIONS,
    INSTANCE,
    MATCHERS_OF_RUNS,
    RANGE,
    RUNS,
    faults_table,
    faults_timeline,
    standing,
)
from accumaudit.dashboards.classic import (
    Board,
    Column,
    Query,
    Row,
    chart,
    colored,
    link,
    reaching,
    stat,
    table,
    timeline,
)

_STATES: Final = {
    "running": "green",
    "finished": "blue",
    "silent": "orange",
    "broken off": "red",
}
_TO_RUN: Final = link(
    "Open the run",
    "/d/accumaudit-run?var-run=${__data.fields.Run:percentencode}"
    "&${datasource:queryparam}&${instance:queryparam}&${__url_time_range}",
)
_NAME: Final = Column("Run", label="run", custom=_TO_RUN)


def _found(severity: str) -> str:
    found = f'sum by (run) (accumaudit_findings_active{{@run, severity="{severity}"}})'
    return f"{found} or 0 * max by (run) (accumaudit_run_info{{@run}})"


_NOW: Final = Row(
    "Now",
    (
        stat(
            "Runs",
            "Runs by state. Silent: nothing was written for long, and nothing says why. Broken off: the "
            "training ended before its end.",
            "none",
            Query("sum by (state) (accumaudit_run_state{@run})", "{{state}}"),
            width=10,
        ),
        standing("Errors", "error", "red"),
        standing("Warnings", "warning", "orange"),
        standing("Notes", "note", "blue"),
        stat(
            "Updates per minute",
            "Applied attempts of all runs together.",
            "short",
            Query(f"60 * sum(rate(accumaudit_updates_total{{@run}}{RANGE}))"),
            width=5,
        ),
    ),
)
_RUNS: Final = Row(
    "Runs",
    (
        table(
            "Runs",
            "One line a run; its name leads to its dashboard. Errors and warnings are rules that find a "
            "fault.",
            _NAME,
            Column(
                "State",
                "max by (run, state) (accumaudit_run_state{@run} == 1)",
                label="state",
                custom=colored(_STATES),
            ),
            Column("Errors", _found("error"), custom=reaching("red")),
            Column("Warnings", _found("warning"), custom=reaching("orange")),
            Column("Updates", "sum by (run) (accumaudit_updates_total{@run})", unit="locale"),
            Column("Tokens", "sum by (run) (accumaudit_valid_tokens_total{@run})", unit="short"),
            Column(
                "Since its last record",
                "time() - max by (run) (accumaudit_last_record_timestamp_seconds{@run})",
                unit="s",
            ),
            Column("Ranks", "max by (run) (accumaudit_ranks{@run})"),
            Column(
                "Runtime",
                "max by (run, runtime, wrapper) (accumaudit_run_info{@run})",
                label="runtime",
            ),
            Column("Wrapper", label="wrapper"),
            sort="Errors",
        ),
        timeline(
            "States over time",
            "What state each run was in.",
            Query(
                "max by (run) ("
                + " or ".join(
                    f'{value} * (accumaudit_run_state{{@run, state="{state}"}} == 1)'
                    for value, state in enumerate(_STATES, 1)
                )
                + ")",
                "{{run}}",
            ),
            colors=dict(enumerate(_STATES.items(), 1)),
        ),
    ),
)
_FAULTS: Final = Row("Faults", (faults_table(_NAME), faults_timeline("{{run}}: {{rule}} {{name}}")))
_PACE: Final = Row(
    "Pace",
    (
        chart(
            "Updates per minute",
            "Applied attempts of each run, its optimizers together.",
            "short",
            Query(f"60 * sum by (run) (rate(accumaudit_updates_total{{@run}}{RANGE}))", "{{run}}"),
        ),
        chart(
            "Tokens per second",
            "Tokens with a loss in applied attempts, over all ranks.",
            "short",
            Query(f"sum by (run) (rate(accumaudit_valid_tokens_total{{@run}}{RANGE}))", "{{run}}"),
        ),
        chart(
            "Skipped attempts per minute",
            "Attempts that left the parameters as they were. Some overflows are usual in float16.",
            "short",
            Query(f"60 * sum by (run) (rate(accumaudit_skipped_updates_total{{@run}}{RANGE}))", "{{run}}"),
        ),
        chart(
            "Since the last record",
            "How long ago each run wrote its newest record, by the clock of who wrote it.",
            "s",
            Query("time() - max by (run) (accumaudit_last_record_timestamp_seconds{@run})", "{{run}}"),
        ),
        chart(
            "Loss",
            "Mean over the tokens of the newest attempt.",
            "short",
            Query("max by (run, optimizer) (accumaudit_loss{@run})", "{{run}}, optimizer {{optimizer}}"),
        ),
        chart(
            "Late ranks",
            "Ranks that attempts are judged without, because they lag.",
            "none",
            Query("max by (run) (accumaudit_late_ranks{@run})", "{{run}}"),
        ),
    ),
)
_SERVICE: Final = Row(
    "The service",
    (
        stat(
            "Troubles",
            "What is wrong with the service itself: a folder gone, a disk full. Its page says what.",
            "none",
            Query("sum by (instance) (accumaudit_troubles{@service})", "{{instance}}"),
            steps=((None, "green"), (1, "red")),
        ),
        stat(
            "Runs left out",
            "Runs beyond the service's limits: nothing is known of them, or they have no series.",
            "none",
            Query("sum(accumaudit_runs_left_out{@service} + accumaudit_runs_not_exported{@service})"),
            steps=((None, "green"), (1, "orange")),
        ),
        stat(
            "Files",
            "Files of ledgers that are looked at again, and those of runs that have ended.",
            "none",
            Query("sum(accumaudit_files_followed{@service})", "followed"),
            Query("sum(accumaudit_files_at_rest{@service})", "at rest"),
            width=6,
        ),
        stat(
            "Age of the numbers",
            "When the newest of them were put together.",
            "s",
            Query(
                "time() - min by (instance) (accumaudit_snapshot_timestamp_seconds{@service})", "{{instance}}"
            ),
            width=6,
        ),
        stat(
            "Version",
            "The accumaudit that runs the service.",
            "none",
            Query("max by (version) (accumaudit_build_info{@service})", "{{version}}"),
            field="version",
        ),
        chart(
            "Records read per second",
            "From the files of all runs.",
            "short",
            Query(
                f"sum by (instance) (rate(accumaudit_ingest_records_total{{@service}}{RANGE}))",
                "{{instance}}",
            ),
        ),
        chart(
            "Written and not yet read",
            "How far the service is behind the files.",
            "bytes",
            Query("sum by (instance) (accumaudit_ingest_behind_bytes{@service})", "{{instance}}"),
        ),
        chart(
            "From record to reading",
            "Seconds between the time in a record and its reading. Clocks that disagree are in it.",
            "s",
            *(
                Query(
                    f"histogram_quantile({share}, sum by (le) "
                    f"(rate(accumaudit_ingest_lag_seconds_bucket{{@service}}{RANGE})))",
                    name,
                )
                for share, name in ((0.5, "median"), (0.99, "99 of 100"))
            ),
        ),
        chart(
            "CPU of the rules",
            "Cores that judging takes.",
            "percentunit",
            Query(
                f"sum by (instance) (rate(accumaudit_judgement_cpu_seconds_total{{@service}}{RANGE}))",
                "{{instance}}",
            ),
        ),
        chart(
            "Judgements per minute",
            "How often the rules were run, and how often they could not be run to the end.",
            "short",
            Query(f"60 * sum(rate(accumaudit_judgements_total{{@service}}{RANGE}))", "judgements"),
            Query(f"60 * sum(rate(accumaudit_failed_judgements_total{{@service}}{RANGE}))", "failed"),
        ),
        chart(
            "What could not be read or written",
            "Lines that are no record, files that could not be read, and states that could not be saved: "
            "each counted over the span between two points.",
            "short",
            Query(
                f"sum(increase(accumaudit_ingest_malformed_records_total{{@service}}{RANGE}))",
                "lines that are no record",
            ),
            Query(f"sum(increase(accumaudit_ingest_read_errors_total{{@service}}{RANGE}))", "reading failed"),
            Query(f"sum(increase(accumaudit_state_write_errors_total{{@service}}{RANGE}))", "saving failed"),
        ),
    ),
)
BOARD: Final = Board(
    uid="accumaudit-fleet",
    title="accumaudit: all runs",
    description="Every training that accumaudit watches: its state, its faults and its pace.",
    variables=(INSTANCE, RUNS),
    matchers=MATCHERS_OF_RUNS,
    rows=(_NOW, _RUNS, _FAULTS, _PACE, _SERVICE),
    annotations=ANNOTATIONS,
)
