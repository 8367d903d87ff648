"""One run in TensorBoard: a folder an axis of each of its optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accumaudit.outputs.tensorboard.event_file import RESTART
from accumaudit.outputs.tensorboard.findings import entries
from accumaudit.outputs.tensorboard.names import folder_name
from accumaudit.outputs.tensorboard.series import Series

if TYPE_CHECKING:
    from accumaudit.service.snapshot import FindingView, Point, RunView


class Run:
    """What is written of one run."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id
        self._started_at: float | None = None
        self._optimizers: dict[int, Series] = {}

    def clear(self, run: RunView) -> None:
        """Leave nothing of what was written before."""
        self._see_start(run)
        for index in {0, *(view.index for view in run.optimizers)}:
            self._series(index).clear()

    def take(self, run: RunView, points: Sequence[Point], found: Iterable[FindingView] = ()) -> None:
        """Write what is new: attempts, those that an earlier call could not write too, and findings."""
        self._see_start(run)
        known = [*(one for view in run.optimizers for one in view.history), *points]
        for index in sorted({one.optimizer for one in known}):
            own = {(one.launch, one.attempt_id): one for one in known if one.optimizer == index}
            self._series(index).take(own.values())
        self._tell(run, found)

    def finish(self, run: RunView) -> None:
        """Write what there is to say in the end."""
        for series in self._optimizers.values():
            series.finish()
        self._tell(run, (), final=True)

    def _tell(self, run: RunView, found: Iterable[FindingView], *, final: bool = False) -> None:
        views = {one.code: one for one in (*found, *run.findings)}
        axis = self._series(0).updates
        axis.refresh()
        axis.write(list(entries(run.report, views, axis.told, max(axis.step, 0), final=final)))

    def _see_start(self, run: RunView) -> None:
        """A run that started later is another with the same name: the files are looked at again."""
        known, self._started_at = self._started_at, run.started_at
        if known is not None and run.started_at is not None and run.started_at > known + RESTART:
            self._optimizers.clear()

    def _series(self, optimizer: int) -> Series:
        """The series of one optimizer; the findings of the run stand with the first."""
        found = self._optimizers.get(optimizer)
        if found is None:
            updates, tokens = (
                self._folder / folder_name(self._run_id, optimizer, axis=axis) for axis in ("", "tokens")
            )
            found = self._optimizers[optimizer] = Series(updates, tokens, self._started_at)
        return found
