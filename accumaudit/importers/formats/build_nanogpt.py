"""Lines in columns between bars: `step 0 | loss: 10.93 | lr: 6.0000e-05 | norm: 27.0 | dt: 352ms`.

build-nanogpt counts from 0; the trainers of llm.c write `step 1/19560 | loss 10.99 | norm 15.4 | lr 8.57e-07`
and count from 1.
"""

from __future__ import annotations

import re
from typing import Final

from accumaudit.importers import hyperparameters
from accumaudit.importers.format import Format
from accumaudit.importers.reading.log import Log
from accumaudit.importers.records import Records

_FIELDS: Final = {
    "step": r"^[ \t]*step +(?P<v>\d{1,16})[ /|]",
    "reported_loss": r"loss:? +(?P<v>[^ |\r\n]+)",
    "learning_rate": r"\| *lr:? +(?P<v>[^ |\r\n]+)",
    "grad_norm_before_clip": r"\| *norm:? +(?P<v>[^ |\r\n]+)",
    "planned": r"^[ \t]*step +\d+/(?P<v>\d{1,16})[ |]",
}
_RECORD: Final = rb"[ \t]*step +\d+(/\d+)? *\| *(?:train )?loss:? +[-+]?[\dni]"
_FIRST: Final = re.compile(rb"^" + _RECORD, re.MULTILINE)


def read(log: Log, records: Records) -> None:
    """Give each update."""
    from accumaudit.importers.reading.step_lines import StepLines

    declared = hyperparameters.declared(log)
    first = next((found for _, block in log.blocks() if (found := _FIRST.search(block))), None)

    def begin(resumed: int | None, planned: int | None) -> None:
        records.begin(planned_updates=planned, resumed_from_update=resumed)
        records.know(**declared)

    StepLines(
        records,
        record=f"^{_RECORD.decode()}",
        fields=_FIELDS,
        begin=begin,
        counts_from_0=first is not None and not first[1],
    ).read(log)


FORMAT: Final = Format(
    name="build_nanogpt",
    title="build-nanogpt's log",
    read=read,
    marker=b"loss",
    record=_FIRST,
)
