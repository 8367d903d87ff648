"""The terse log of llm.c, and of the first modded-nanogpt: `s:0 trl:11.0091 lr:0.000001 norm:15.37`.

`trl` is the loss of the update after as many as the counter says, `tel` one of the validation before it,
`eval` an accuracy.
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
    "step": r"^s:(?P<v>\d{1,16}) ",
    "reported_loss": r" trl:(?P<v>\S+)",
    "learning_rate": r" lr:(?P<v>\S+)",
    "grad_norm_before_clip": r" norm:(?P<v>\S+)",
}
_EVALUATION: Final = re.compile(r"s:(\d{1,16}) ")


def read(log: Log, records: Records) -> None:
    """Give each update and each evaluation."""
    from accumaudit.importers.reading.step_lines import StepLines

    facts = hyperparameters.declared(log)

    def evaluate(line: int, text: str) -> None:
        found = _EVALUATION.match(text)
        records.mark(line, "eval", attempt_id=whole(found[1]) if found else None)

    StepLines(
        records,
        record=r"^s:\d+ trl:[-+]?[\dni]",
        fields=_FIELDS,
        told=r"^s:\d+ (?:tel|eval):[-+]?[\dni]",
        begin=lambda resumed, _: records.begin(**facts, resumed_from_update=resumed),
        tell=evaluate,
        counts_from_0=True,
    ).read(log)


FORMAT: Final = Format(
    name="llmc",
    title="llm.c's log",
    read=read,
    marker=b"s:",
    record=re.compile(rb"^s:\d+ t[re]l:[-+]?[\dni]", re.MULTILINE),
)
