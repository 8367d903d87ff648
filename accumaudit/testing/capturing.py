"""Records a training in a temporary folder and opens what it wrote."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accumaudit.opened import Ledger

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from accumaudit.hooks import Audit

Training = Callable[[Path], object]
"""A function that trains and records in the folder that it is given."""


class NothingRecordedError(RuntimeError):
    """A training that left no record, or not a whole one; the text says what to do."""


class Captured:
    """A training in the block of `capture`: its audit while it runs, its ledger afterwards."""

    def __init__(self, audit: Audit, folder: Path) -> None:
        self.audit = audit
        """For what the loop tells: `audit.report(...)`, `audit.mark(...)`."""
        self.folder = folder
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """What was recorded.

        Raises:
            NothingRecordedError: the block has not ended yet, or an error ended it.
        """
        if self._ledger is None:
            raise NothingRecordedError("the ledger can be read after the with-block of capture() has ended")
        return self._ledger


@contextmanager
def capture(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: Any = None,
    scaler: Any = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator[Captured]:
    """Record what trains in the block.

        with capture(model, optimizer, accumulation_steps=4) as training:
            train(model, optimizer)
        assert training.ledger.windows["total_weight"] == [1.0] * 3

    Args:
        model: as for `accumaudit.attach`, like the next three.
        optimizer: the optimizer, or several.
        scheduler: the scheduler, or one for each optimizer.
        scaler: the gradient scaler.
        log_dir: where to record; without it a temporary folder, which goes with the ledger.
        options: further arguments of `accumaudit.attach`.

    Raises:
        NothingRecordedError: ACCUMAUDIT=0 switches the recording off.
    """
    import accumaudit

    folder, remove = _folder(log_dir, "training")
    try:
        options = {"summary": False, **options}
        with accumaudit.attach(model, optimizer, scheduler, scaler, log_dir=folder, **options) as audit:
            captured = Captured(audit, folder)
            yield captured
        captured._ledger = _opened(folder, remove, "the block of capture()")
    except BaseException:
        remove()
        raise


def record(train: Training, *, log_dir: str | os.PathLike[str] | None = None) -> Ledger:
    """Call a training function with a folder to record in, and open what it recorded.

        def train(log_dir):
            ...
            with accumaudit.attach(model, optimizer, log_dir=log_dir, accumulation_steps=4):
                ...

        ledger = record(train)

    Args:
        train: attaches an audit to the folder that it gets, trains, and closes the audit.
        log_dir: where to record; without it a temporary folder, which goes with the ledger.

    Raises:
        NothingRecordedError: it attached no audit there, or left it open.
        TypeError: it takes no argument.
    """
    _require_argument(train)
    folder, remove = _folder(log_dir, getattr(train, "__name__", ""))
    try:
        train(folder)
        return _opened(folder, remove, _name(train))
    except BaseException:
        remove()
        raise


def _folder(log_dir: str | os.PathLike[str] | None, name: str) -> tuple[Path, Callable[[], None]]:
    """A folder to record in, and what removes it where it is a temporary one; its name is the run's."""
    if log_dir is not None:
        return Path(log_dir), lambda: None
    above = tempfile.mkdtemp(prefix="accumaudit-")
    return Path(above, name if name.isidentifier() else "training"), lambda: shutil.rmtree(
        above, ignore_errors=True
    )


def _opened(folder: Path, remove: Callable[[], None], training: str) -> Ledger:
    if os.environ.get("ACCUMAUDIT") == "0":
        raise NothingRecordedError("nothing was recorded: ACCUMAUDIT=0 is set, and switches the hooks off")
    if not any(folder.rglob("*.jsonl")):
        raise NothingRecordedError(
            f"{training} recorded nothing in the folder that it was given: "
            "call accumaudit.attach(model, optimizer, log_dir=log_dir, ...) with that folder"
        )
    ledger = Ledger([folder], on_close=remove)
    closed = "(FROM marks WHERE kind = 'close')"
    left_open = ledger.sql(f"SELECT DISTINCT rank FROM runs ANTI JOIN {closed} USING (run_id, launch, rank)")
    if left_open:
        ranks = ", ".join(map(str, sorted(left_open["rank"])))
        ledger.close()
        raise NothingRecordedError(
            f"{training} left its audit open (rank {ranks}): "
            "use `with accumaudit.attach(...)`, or call audit.close() at its end"
        )
    return ledger


def _name(train: Training) -> str:
    return f"`{getattr(train, '__name__', type(train).__name__)}`"


def _require_argument(train: Training) -> None:
    """Say what is wanted where the function cannot be called with one argument."""
    with suppress(ValueError):  # no signature can be told
        signature = inspect.signature(train)
        try:
            signature.bind(Path())
        except TypeError as error:
            raise TypeError(
                f"{_name(train)} is called with one argument, the folder to record in ({error}); "
                "wrap it: lambda log_dir: train(..., log_dir=log_dir)"
            ) from None
