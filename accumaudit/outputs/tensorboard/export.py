"""Writes runs for TensorBoard whose whole record is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accumaudit.outputs.tensorboard.runs import Run

if TYPE_CHECKING:
    from accumaudit.service.snapshot import Snapshot


def export(snapshot: Snapshot, folder: Path) -> None:
    """Write all runs of a snapshot below a folder; what an earlier export wrote of them is replaced.

    Raises:
        OSError: a file cannot be written.
    """
    for view in snapshot.runs:
        run = Run(folder, view.run_id)
        run.clear(view)
        run.take(view, ())
        run.finish(view)
