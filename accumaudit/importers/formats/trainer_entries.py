"""The dictionaries that the Trainer of Hugging Face logs, in whatever file they stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from accumaudit.importers.reading.values import LARGEST, number, whole
from accumaudit.importers.records import FLUSHED, Records

ROUNDED: Final = 0.005 + 1e-9
"""How far an epoch of two digits is from the true one, at most."""

_UPDATE: Final = ("loss", "learning_rate", "lr", "grad_norm")
_SUMMARY: Final = ("train_runtime", "train_samples_per_second", "train_loss")
_COLUMNS: Final = (
    *("seq", "attempt_id", "reported_global_step", "reported_loss", "learning_rate", "reported_epoch"),
    *("grad_norm_before_clip", "cumulative_train_tokens", "reported_tokens"),
)
_TOKENS_SO_FAR: Final = ("num_input_tokens_seen", "num_tokens", "total_tokens")


def kind_of(entry: Mapping[str, Any]) -> Literal["update", "close", "eval"]:
    """Whether an entry tells of an update, of the end of the training, or of an evaluation."""
    if entry.get("loss") is not None:
        return "update"
    if any(entry.get(name) is not None for name in _SUMMARY):
        return "close"
    return "update" if any(entry.get(name) is not None for name in _UPDATE) else "eval"


class Entries:
    """Gives entries to the records; updates many at a time."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._rows: list[tuple[Any, ...]] = []
        self._last = (0, 0)  # the line and the step
        self._closed = False

    def add(self, line: int, step: int, entry: Mapping[str, Any], epoch: float | None = None) -> None:
        """Give an entry.

        Args:
            epoch: where it is known better than the entry has it.
        """
        kind = kind_of(entry)
        if kind == "update":
            self.update(line, step, entry, epoch)
        elif kind == "close":
            self.close(line, step, finished=True, name="train summary")
        else:
            self._records.mark(line, "eval", attempt_id=step)

    def update(self, line: int, step: int, entry: Mapping[str, Any], epoch: float | None = None) -> None:
        """Give an entry of an update."""
        if not 0 <= step <= LARGEST:
            self._records.damage(line, f"the step {step} is no count of updates")
            return
        found = entry.get
        epoch = number(found("epoch")) if epoch is None else epoch
        rate = found("learning_rate")
        row = (line, step, step, number(found("loss")), number(found("lr") if rate is None else rate), epoch)
        more = (number(found("grad_norm")), _tokens_so_far(entry), number(found("tokens_this_step")))
        self._rows.append(row + more)
        self._last = (line, step)
        if len(self._rows) >= FLUSHED:
            self.flush()

    def close(self, line: int, step: int, *, finished: bool, name: str) -> None:
        """Give what ends a training."""
        self._closed = True
        self._records.mark(line, "close", attempt_id=step, finished=finished, name=name)

    def end(self, planned_updates: int | None) -> None:
        """A run ends here. Where it came to its plan, it is done, also if the log has no summary."""
        self.flush()
        line, step = self._last
        if planned_updates and step >= planned_updates and not self._closed:
            self._records.note(line, "close", attempt_id=step, finished=True, name="last planned update")
        self._last, self._closed = (0, 0), False

    def flush(self) -> None:
        """Give on what was gathered."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        columns: dict[str, Sequence[Any]] = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
        known = {name: column for name, column in columns.items() if any(one is not None for one in column)}
        if "grad_norm_before_clip" in known:
            known["grad_norm_before_scope"] = ["global"] * len(rows)
        self._records.extend(known)


def _tokens_so_far(entry: Mapping[str, Any]) -> float | None:
    return next((number(entry[name]) for name in _TOKENS_SO_FAR if name in entry), None)


def planned_epochs(
    stated: object, planned_updates: int | None, updates_per_epoch: float | None
) -> float | None:
    """The planned epochs, where they are the plan and not what a limit of updates comes to.

    The Trainer writes their number rounded up in both cases, but it made the planned updates from it in one.
    """
    epochs = whole(stated)
    if not epochs or not planned_updates or not updates_per_epoch or not math.isfinite(updates_per_epoch):
        return None
    whole_updates = {math.floor(updates_per_epoch + 1e-6), math.ceil(updates_per_epoch - 1e-6)}
    return float(epochs) if planned_updates in {epochs * updates for updates in whole_updates} else None


class Epochs:
    """Makes epochs of two digits exact, where one number of micro-batches alone fits them all.

    The versions that round let windows run across the ends of epochs: each update adds the same to the epoch.
    """

    def __init__(self, accumulation_steps: int | None, micro_batches: int | None = None) -> None:
        self._accumulation_steps = accumulation_steps
        self._fewest: float = micro_batches or 1
        self._most: float = micro_batches or math.inf

    def exact(self, step: int, epoch: float | None) -> float | None:
        """The epoch at a step; as it was logged, where nothing is known better."""
        if self._accumulation_steps is None or epoch is None or not math.isfinite(epoch) or epoch <= 0:
            return epoch
        if round(epoch, 2) != epoch:
            self._accumulation_steps = None  # this version does not round
            return epoch
        done = step * self._accumulation_steps
        self._fewest = max(self._fewest, math.ceil(done / (epoch + ROUNDED)))
        if epoch > ROUNDED:
            self._most = min(self._most, math.floor(done / (epoch - ROUNDED)))
        return done / self._fewest if self._fewest == self._most else epoch
