"""The dashboards: all runs, one run, its ranks."""

from __future__ import annotations

from accumaudit.dashboards.boards import fleet, ranks, run
from accumaudit.dashboards.classic import Json, built


def by_file() -> dict[str, Json]:
    """Each dashboard by the name of its file."""
    return {
        "grafana/fleet.json": built(fleet.BOARD),
        "grafana/run.json": built(run.BOARD),
        "grafana/ranks.json": built(ranks.BOARD),
    }
