"""The text of modded-nanogpt: `step:5999/6000 train_loss:3.0936 train_time:2176134ms step_avg:363.36ms`.

The file begins with the source of the script, whose format strings look like records without their digits.
Lines of training name the updates that are done, and from 2025 on no loss. At the planned number of updates
the loop validates and ends.
"""

from __future__ import annotations

import re
from typing import Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.reading.values import whole
from accumaudit.importers.records import Records

_FIELDS: Final = {
    "step": r"^step:(?P<v>\d{1,16})/",
    "planned": r"^step:\d+/(?P<v>\d{1,16}) ",
    "reported_loss": r" train_loss:(?P<v>\S+)",
}
_VALIDATION: Final = re.compile(r"step:(\d{1,16})/(\d{1,16}) ")


def read(log: Log, records: Records) -> None:
    """Give each update and each validation."""
    from accumaudit.importers.reading.step_lines import StepLines

    declared = hyperparameters.declared(log)

    def begin(resumed: int | None, planned: int | None) -> None:
        records.begin(runtime="modded-nanogpt", planned_updates=planned, resumed_from_update=resumed)
        records.know(**declared)

    def validate(line: int, text: str) -> None:
        found = _VALIDATION.match(text)
        step = whole(found[1]) if found else None
        records.mark(line, "eval", attempt_id=step)
        if found and step == whole(found[2]):
            records.note(line, "close", attempt_id=step, finished=True)

    StepLines(
        records,
        record=r"^step:\d+/\d+ (?:train_loss:[-+]?[\dni]\S* )?train_time:\d",
        fields=_FIELDS,
        told=r"^step:\d+/\d+ val_loss:[-+]?[\dni]",
        begin=begin,
        tell=validate,
        counts_from_0=False,
    ).read(log)


FORMAT: Final = Format(
    name="modded_nanogpt",
    title="modded-nanogpt's log",
    read=read,
    marker=b"step:",
    record=re.compile(
        rb"^step:\d+/\d+ (?:(?:val|train)_loss:[-+]?[\dni][^ \n]* )?train_time:\d", re.MULTILINE
    ),
)
