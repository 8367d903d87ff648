"""Importers of logs that other programs wrote, one module a format: each gives records of the ledger.

What a format lacks is null. FORMATS holds them all, in the order in which a file is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import (
    build_nanogpt,
    deepspeed,
    fairseq,
    hf_stdout,
    hf_trainer_state,
    lightning_csv,
    llamafactory,
    llmc,
    logbook,
    mae,
    mapped,
    megatron,
    modded_nanogpt,
    ms_swift,
    named_fields,
    nanogpt,
    nanogpt_csv,
    tensorboard,
    torchtitan,
    wandb,
)
from accumaudit.importers.reading.log import Log, LogError, Options
from accumaudit.importers.recognition import Recognised
from accumaudit.importers.recognition import recognise as _recognise
from accumaudit.importers.records import Records

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FILE_NAMES", "FORMATS", "TITLES", "Format", "Log", "Options", "read", "recognise"]

FORMATS: Final[tuple[Format, ...]] = (
    hf_trainer_state.FORMAT,
    llamafactory.FORMAT,
    ms_swift.FORMAT,
    tensorboard.FORMAT,
    named_fields.FORMAT,
    lightning_csv.FORMAT,
    nanogpt_csv.FORMAT,
    mae.FORMAT,
    wandb.SUMMARY_FORMAT,
    wandb.HISTORY_FORMAT,
    logbook.FORMAT,
    megatron.FORMAT,
    torchtitan.LOSSES_FORMAT,
    deepspeed.FORMAT,
    torchtitan.FORMAT,
    fairseq.FORMAT,
    hf_stdout.FORMAT,
    nanogpt.FORMAT,
    modded_nanogpt.FORMAT,
    llmc.FORMAT,
    build_nanogpt.FORMAT,
)

TITLES: Final = {format_.name: format_.title for format_ in (*FORMATS, mapped.FORMAT)}
"""What messages call a log of each format."""

FILE_NAMES: Final = frozenset(name for format_ in FORMATS for name in format_.names)
"""Names of files that say nothing of the run."""


def recognise(log: Log) -> Recognised:
    """Tell what a file is; columns that the caller named go before what it looks like."""
    lacks = mapped.lacks(log) if log.options.columns else ""
    if lacks is None:
        return Recognised(mapped.FORMAT)
    found = _recognise(log, FORMATS)
    if lacks and found.looks_like and found.is_text:
        return replace(found, looks_like=lacks)
    return found


def read(
    log: Log, format_: Format, sink: Callable[[pa.Table], None]
) -> tuple[int, list[tuple[int | None, str]]]:
    """Give the records of a log to `sink`; return their number, and the lines that are none, and why."""
    records = Records(sink)
    try:
        format_.read(log, records)
    except LogError as error:
        records.damage(None, str(error))
    records.finish()
    return records.count, records.damaged
