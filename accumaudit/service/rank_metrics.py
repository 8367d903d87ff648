"""The last record of every rank of a run, written by hand: as text it is a hundred thousand lines."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from accumaudit.service.board import Board
from accumaudit.service.metric_list import RANK_GAUGES, RANKS_NOT_EXPORTED, Metric
from accumaudit.service.samples import escaped, label, spelled
from accumaudit.service.snapshot import RankView, RunView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

RANKS_SHOWN: Final = 20_000
"""Ranks (times optimizers) of a run with series of their own."""

RUNS_KEPT: Final = 4
"""Runs whose text is kept for the next scrape."""


class RankExposition:
    """What `/metrics/ranks?run=NAME` answers; the same bytes until the run's ranks write again."""

    def __init__(self, board: Board, ranks_shown: int = RANKS_SHOWN) -> None:
        self._board = board
        self._ranks_shown = ranks_shown
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Sequence[RankView], bytes]] = OrderedDict()

    def render(self, name: str) -> bytes | None:
        """The text for a run by its name, or by its label in the other metrics; None where there is none."""
        run = self._run(name)
        if run is None:
            return None
        with self._lock:
            kept = self._kept.pop(run.run_id, None)
            if kept is None or kept[0] is not run.ranks:
                kept = run.ranks, rank_text(run, self._ranks_shown).encode()
            self._kept[run.run_id] = kept
            if len(self._kept) > RUNS_KEPT:
                self._kept.popitem(last=False)
            return kept[1]

    def _run(self, name: str) -> RunView | None:
        snapshot = self._board.snapshot
        return snapshot.run(name) or next(
            (run for run in snapshot.runs if label(run.run_id) == name),
            None,
        )


def rank_text(run: RunView, limit: int = RANKS_SHOWN) -> str:
    """One series a field, optimizer and rank; a field that is unknown has none."""
    name = escaped(label(run.run_id))
    shown = run.ranks[:limit]
    labels = [f'{{run="{name}",optimizer="{view.optimizer}",rank="{view.rank}"}}' for view in shown]
    parts = []
    for field, metric in RANK_GAUGES.items():
        lines = [
            f"{metric.name}{labels[index]} {spelled(value)}"
            for index, view in enumerate(shown)
            if (value := getattr(view, field)) is not None
        ]
        parts += _family(metric, lines)
    parts += _family(
        RANKS_NOT_EXPORTED, [f'{RANKS_NOT_EXPORTED.name}{{run="{name}"}} {len(run.ranks) - len(shown)}']
    )
    return "\n".join(parts) + "\n"


def _family(metric: Metric, lines: Iterable[str]) -> list[str]:
    return [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}", *lines]
