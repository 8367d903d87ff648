"""Says what a text without any record of a training looks like, for messages."""

from __future__ import annotations

import re
from typing import Final

from accumaudit.importers.reading import table
from accumaudit.importers.reading.log import HEAD, Log, text_of

LONGEST_ERROR: Final = 160
"""Characters of an error that a message repeats."""

NAMED: Final = 8
"""Columns of a table that a message names."""

SOURCE_LINES: Final = 5
"""Lines that begin as Python does, from which on a text is a program."""

_CODE: Final = re.compile(
    r"^(?:import \w|from [\w.]+ import |(?:async )?def \w+\(|class \w+\W)", re.MULTILINE
)
_ERROR: Final = re.compile(
    r"""
    ^[ \t]{0,8}(?:\[[^\]\n]{1,40}\]:?[ \t]?){0,3}             # ranks: [rank0]:, [default3]:
    (?P<error>
        [A-Za-z_][\w.]{0,100}?(?:Error|Exception|Interrupt)(?::[ \t][^\r\n]*|[ \t\r]*)$
      | Fatal[ ]Python[ ]error:[^\r\n]*
      | (?:[\w./-]{1,100}:[ ])?error:[ ][^\r\n]*               # of a command
    )
  | ^[^\n]{0,200}?\b(?P<memory>(?:(?:CUDA|Ran)[ ])?out[ ]of[ ]memory\b[^\r\n]*)
    """,
    re.MULTILINE | re.VERBOSE,
)
_ECHO: Final = "ChildFailedError"
"""What a launcher says when a process failed for a reason of its own."""

_BAR: Final = re.compile(r"\|\s*(\d+)/(\d+) \[\d+:\d\d")
_SETTING: Final = re.compile(
    r"""(?:^|[{,])[ \t"'-]{0,40}(
        (?:max_|peak_|base_|blr_)?(?:lr|learning_rate) | weight_decay | \w*batch_size | dropout | seed
      | \w*grad\w*_accum\w* | warmup_\w+ | max_(?:steps|iters|epochs) | (?:num_)?(?:train_)?epochs
    )["']?[ \t]{0,20}[:=]""",
    re.MULTILINE | re.VERBOSE,
)
_ENTRY: Final = re.compile(r"""^[ \t{"',#-]{0,40}[\w./]{1,80}["']?[ \t]{0,20}[:=]""")
_NAME: Final = re.compile(r"[A-Za-z_][\w ./()-]{0,60}")
_SUMMARY: Final = re.compile(r'"(?:\w{1,40}/)?(?:train_runtime|train_loss|eval_loss|_runtime)"\s*:')
_LAUNCH: Final = re.compile(
    r"torchrun|torch\.distributed|deepspeed|MASTER_ADDR|nnodes|nproc_per_node|srun\b|sbatch|NCCL|world_size"
)


def describe(log: Log) -> str:
    """What a text without any record looks like."""
    if log.trouble:
        return log.trouble
    if not log.head.strip():
        return "it is empty so far"
    begin = text_of(log.head)
    end = text_of(log.end) if len(log.head) >= HEAD else begin
    if len(_CODE.findall(begin)) >= SOURCE_LINES and "Traceback" not in end:
        return "it looks like the source of a program"
    error = _last_error(end.replace("\r", "\n"))
    if error:
        return f"it looks like a crash before the first step: {error}"
    return _of_what_ran(begin, end) or _of_a_table(log) or "nothing in it looks like a record of training"


def _last_error(text: str) -> str | None:
    errors = [(match["error"] or match["memory"]).strip() for match in _ERROR.finditer(text)]
    causes = [error for error in errors if _ECHO not in error] or errors
    if not causes:
        return None
    return causes[-1] if len(causes[-1]) <= LONGEST_ERROR else causes[-1][:LONGEST_ERROR] + "..."


def _of_what_ran(begin: str, end: str) -> str | None:
    if _holds_settings(begin):
        return "it looks like the hyperparameters of a run; `--args` reads them"
    if begin.lstrip().startswith("{") and _SUMMARY.search(begin):
        return "it looks like the summary of a run, which holds no steps"
    bars = _BAR.findall(end)
    if bars:
        return f"it shows a progress bar, at {bars[-1][0]} of {bars[-1][1]} in the end, and no record"
    if _LAUNCH.search(begin) or _LAUNCH.search(end):
        return "it looks like the output of a launcher"
    return None


def _of_a_table(log: Log) -> str | None:
    if b"\n" not in log.head.strip():  # a single row is no table
        return None
    names = table.column_names(log.head)
    if len(names) < 2 or not all(_NAME.fullmatch(name) for name in names):
        return None
    shown = ", ".join(names[:NAMED]) + (" ..." if len(names) > NAMED else "")
    return f"it looks like a table of {shown}; `--map step=COLUMN,...` says what its columns are"


def _holds_settings(text: str) -> bool:
    """Whether a rate and something else are set, in a text that does little more than that."""
    names = {match[1] for match in _SETTING.finditer(text)}
    if len(names) < 2 or not any(name.endswith(("lr", "learning_rate")) for name in names):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return text.lstrip().startswith("{") or len(lines) < 3 * sum(bool(_ENTRY.match(line)) for line in lines)
