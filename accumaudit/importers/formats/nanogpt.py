"""The text of nanoGPT and of its forks: `iter 10: loss 4.6810, time 52.57ms, mfu 7.09%`.

The counter is the number of updates before the one that the line tells of; the loss is that of the last
micro-step. A line of evaluation stands before the update of the same number.
"""

from __future__ import annotations

import re
from typing import Any, Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records

_BEGIN: Final = r"^[ \t]*(?:\[train\] )?iter +"
_VALUE: Final = r"(?P<v>[^ ,|\r\n]+)"
_RECORD: Final = rf"{_BEGIN}\d+: +loss +[-+]?[\dni]"
_FIELDS: Final = {
    "step": rf"{_BEGIN}(?P<v>\d{{1,16}}):",
    "reported_loss": rf"loss +{_VALUE}",
    # What forks append.
    "learning_rate": rf"\b(?:lr|learning[ _]rate)[ :=]+{_VALUE}",
    "grad_norm_before_clip": rf"\b(?:grad[ _]?)?norm[ :=]+{_VALUE}",
}
_TOLD: Final = (
    r"^[ \t]*(?:step +\d+: +train loss |\[eval\] iter +\d+:|\[train\] done\b|Traceback \(most recent)"
    r"|tokens(?:/iter| per iteration)"
)
_EVALUATION: Final = re.compile(r"(?:step|iter) +(\d{1,16}):(?:.* lr (\S+))?")
_TOKENS: Final = re.compile(r"tokens(?:/iter| per iteration)[^\d]{1,20}(\d[\d,]*)")


def read(log: Log, records: Records) -> None:
    """Give each iteration and each evaluation."""
    from accumaudit.importers.reading.step_lines import StepLines

    run = _Run(log, records)
    lines = StepLines(
        records,
        record=_RECORD,
        fields=_FIELDS,
        told=_TOLD,
        begin=lambda resumed, _: run.begin(resumed),
        tell=run.tell,
        counts_from_0=True,
    )
    run.rates = lines.rates
    lines.read(log, run.constants)
    if run.finished is not None and lines.last_line and run.told_at > lines.last_line:
        records.note(lines.last_line, "close", attempt_id=lines.last_attempt, finished=run.finished)


class _Run:
    """What lines tell that are no iterations."""

    def __init__(self, log: Log, records: Records) -> None:
        self.rates: dict[int, float | None] = {}
        """The rates that evaluations name, which are those of the updates to come."""
        self.finished: bool | None = None
        """Whether the log said that the run is done, or that it crashed."""
        self.told_at = 0
        """The line that said it."""
        self._records = records
        self._facts = {"runtime": "nanogpt", **hyperparameters.declared(log)}
        self._tokens: float | None = None

    def begin(self, resumed: int | None) -> None:
        self._records.begin(**self._facts, resumed_from_update=resumed)

    def constants(self) -> dict[str, Any]:
        """The tokens of an update, which the heading tells."""
        return {} if self._tokens is None else {"reported_tokens": self._tokens}

    def tell(self, line: int, text: str) -> None:
        evaluation, tokens = _EVALUATION.search(text), _TOKENS.search(text)
        if tokens:
            self._tokens = number(tokens[1])
        elif evaluation:
            self._evaluate(line, int(evaluation[1]), number(evaluation[2]))
        elif "done" in text or "Traceback" in text:
            self.finished, self.told_at = "done" in text, line

    def _evaluate(self, line: int, counter: int, rate: float | None) -> None:
        if not self._records.begun:
            self.begin(None)
        attempt = whole(counter)
        self._records.mark(line, "eval", attempt_id=attempt)
        if rate is not None:
            self.rates[counter] = rate


FORMAT: Final = Format(
    name="nanogpt",
    title="nanoGPT's log",
    read=read,
    marker=b"iter ",
    record=re.compile(rb"(?:^|[\r\n])[ \t]*(?:\[train\] )?iter +\d+: +loss +[-+]?[\dni]"),
)
