"""What the dashboards have in common: choices, marks on charts, and how findings are shown."""

from __future__ import annotations

from typing import Final

from accumaudit.dashboards.classic import (
    Column,
    Json,
    Query,
    Variable,
    annotation,
    colored,
    stat,
    table,
    timeline,
)

SERVICE: Final = 'instance=~"$instance"'
"""The job is left out: the ranks of a service are scraped by a job of their own."""

INSTANCE: Final = Variable(
    "instance", "Service", "label_values(accumaudit_build_info, instance)", several=True, or_all=True
)
RUNS: Final = Variable(
    "run", "Run", "label_values(accumaudit_run_info{@service}, run)", several=True, or_all=True
)
RUN: Final = Variable("run", "Run", "label_values(accumaudit_run_info{@service}, run)")

MATCHERS: Final = {"@service": SERVICE, "@run": f'{SERVICE}, run="$run"'}
"""For one run."""
MATCHERS_OF_RUNS: Final = {"@service": SERVICE, "@run": f'{SERVICE}, run=~"$run"'}

ANNOTATIONS: Final = (
    annotation(
        "Faults",
        "sum by (run) (changes(accumaudit_findings_total{@run}[$__rate_interval])) > 0",
        "orange",
        "new fault in {{run}}",
    ),
    annotation(
        "Alerts",
        'ALERTS{alertname=~"Accumaudit.*", alertstate="firing"}',
        "red",
        "{{alertname}} {{run}}",
    ),
)

RANGE: Final = "[$__rate_interval]"
_SEVERITIES: Final = {1: ("note", "blue"), 2: ("warning", "orange"), 3: ("error", "red")}


def standing(title: str, severity: str, color: str) -> Json:
    """How many findings of a severity stand."""
    return stat(
        title,
        f"Rules of severity {severity} that find a fault, counted in each run.",
        "none",
        Query(f'sum(accumaudit_findings_active{{@run, severity="{severity}"}}) or vector(0)'),
        width=3,
        steps=((None, "text"), (1, color)),
    )


def faults_table(*first: Column) -> Json:
    """The findings that stand, one a line."""
    active = "accumaudit_findings_active{@run}"
    attempts = "max by (run, rule) (accumaudit_faulty_attempts_total{@run})"
    return table(
        "Faults",
        "Rules that find a fault, and in how many attempts. `accumaudit explain CODE` says what a fault "
        "means and what to do.",
        *first,
        Column("Rule", label="rule"),
        Column("Fault", label="name"),
        Column(
            "Severity",
            f"max by (run, rule, name, severity) ({active})",
            label="severity",
            custom=colored(dict(_SEVERITIES.values())),
        ),
        Column("Attempts", f"{attempts} and on (run, rule) {active}", unit="locale"),
        sort="Attempts",
    )


def faults_timeline(legend: str) -> Json:
    """When which rule found a fault, or had found one."""
    found = (
        f'{value} * accumaudit_findings_active{{@run, severity="{severity}"}}'
        for value, (severity, _) in sorted(_SEVERITIES.items(), reverse=True)
    )
    return timeline(
        "Faults over time",
        "From when on a fault stands. A fault that the whole record does not confirm ends here again.",
        Query(f"max by (run, rule, name) ({' or '.join(found)})", legend),
        colors=_SEVERITIES,
    )
