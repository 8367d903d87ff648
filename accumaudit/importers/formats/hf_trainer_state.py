"""`trainer_state.json` of Hugging Face's Trainer, of all its versions, whole or torn."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import trainer_entries
from accumaudit.importers.hyperparameters import Companions
from accumaudit.importers.reading.log import Log, LogError
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records

MOST_DAMAGED: Final = 20
"""Entries that may be broken before the rest is given up."""

LONGEST_TORN: Final = 2**26
"""Bytes of a document that cannot be read to its end."""

AROUND: Final = 4096
"""Characters before and after the entries that hold what the state says of the run."""

_HISTORY: Final = re.compile(r'"log_history"\s*:\s*\[')
_NEXT: Final = re.compile(r"[\s,]*")
_RESUME: Final = re.compile(r'\}\s*,\s*(?=\{\s*")')
_FACT: Final = re.compile(
    r'"(global_step|max_steps|epoch|num_train_epochs|logging_steps)"\s*:\s*(-?[\d.]+(?:[eE][+-]?\d+)?)'
)
_DECODER: Final = json.JSONDecoder()

Entry = tuple[int, dict[str, Any]]


def read(log: Log, records: Records) -> None:
    """Give each entry of `log_history`, wherever in the document it stands.

    Raises:
        LogError: the file cannot be read.
    """
    data, failure = _whole_or_torn(log)
    text = data.decode("utf-8", "replace")
    companions = Companions(log)
    end = 0
    for history in _HISTORY.finditer(text):
        if history.start() < end:
            continue  # inside an entry
        records.begin(runtime="transformers")
        before = _facts(re.split(r"[{}]", text[max(0, history.start() - AROUND) : history.start()])[-1])
        entries = _Entries(text, history.end(), records)
        given = _add(records, entries, before, companions.count("logging_steps"))
        end = entries.end
        after = _facts(re.split(r"[{}]", text[end : end + AROUND])[0])
        given.end(_know(records, {**after, **before}, companions))
    if failure is not None:
        raise failure
    if not end:
        records.damage(None, "no list log_history in it")


def _whole_or_torn(log: Log) -> tuple[bytes, LogError | None]:
    """The document, or as much of it as can be read, and why it is no more."""
    try:
        return log.document(), None
    except LogError as error:
        parts: list[bytes] = []
        with suppress(LogError):
            parts.extend(block for _, block in log.blocks(LONGEST_TORN))
        return b"".join(parts), error


class _Entries:
    """The whole entries of a list, with their lines; there may be too many to hold them all."""

    def __init__(self, text: str, start: int, records: Records) -> None:
        self.end = len(text)
        """Where the list ends, once all were given."""
        self._text = text
        self._start = start
        self._records = records

    def __iter__(self) -> Iterator[Entry]:
        text, place, counted = self._text, self._start, self._start
        line, damaged = 1 + text.count("\n", 0, place), 0
        while True:
            match = _NEXT.match(text, place)
            place = match.end() if match else place
            line += text.count("\n", counted, place)
            counted = place
            if text.startswith("]", place):
                self.end = place + 1
                return
            try:
                entry, place = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                damaged += 1
                following = _RESUME.search(text, place + 1) if damaged < MOST_DAMAGED else None
                if following is None:
                    self._records.damage(
                        line, "torn here: the entries of log_history up to this one were read"
                    )
                    return
                self._records.damage(line, "no whole entry of log_history")
                place = following.end()
                continue
            if isinstance(entry, dict):
                yield line, entry
            else:
                self._records.damage(line, "no entry of log_history")


def _facts(text: str) -> dict[str, str]:
    """What stands beside the list in the same object."""
    return dict(_FACT.findall(text))


def _updates_per_epoch(facts: Mapping[str, str]) -> float | None:
    done, epoch = whole(facts.get("global_step")), number(facts.get("epoch"))
    per_epoch = done / epoch if done and epoch else 0.0
    return per_epoch if 0 < per_epoch < math.inf else None


def _add(
    records: Records, entries: _Entries, facts: Mapping[str, str], interval: int | None
) -> trainer_entries.Entries:
    per_epoch = _updates_per_epoch(facts)
    given = trainer_entries.Entries(records)
    for line, step, entry in _with_steps(entries, interval or whole(facts.get("logging_steps")), records):
        logged = number(entry.get("epoch"))
        given.add(line, step, entry, _exact(logged, step, per_epoch))
    return given


def _know(records: Records, facts: Mapping[str, str], companions: Companions) -> int | None:
    """Tell what is known of the run; return its planned updates."""
    planned = whole(facts.get("max_steps"))
    if planned is not None and planned < 1:
        planned = None  # -1 where nothing limits it
    records.know(planned_updates=planned)
    records.know(**companions.facts(planned))
    epochs = facts.get("num_train_epochs")
    per_epoch = _updates_per_epoch(facts)
    records.know(planned_epochs=trainer_entries.planned_epochs(epochs, planned, per_epoch))
    return planned


def _exact(logged: float | None, step: int, per_epoch: float | None) -> float | None:
    """Older versions round the epochs of entries to two digits, but not that of the state."""
    if logged is None or per_epoch is None or round(logged, 2) != logged:
        return logged
    exact = step / per_epoch
    return exact if abs(exact - logged) <= trainer_entries.ROUNDED else logged


def _with_steps(
    entries: Iterable[Entry], interval: int | None, records: Records
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Give each entry its step; the oldest versions wrote none, and logged at equal distances."""
    last = 0
    for line, entry in entries:
        step = whole(entry.get("step"))
        if step is None and "step" not in entry:
            is_update = trainer_entries.kind_of(entry) == "update"
            step = (last + interval if interval else None) if is_update else last
        if step is None or step < 0:
            records.damage(line, "an entry of log_history without a step")
            continue
        last = step
        yield line, step, entry


def is_part(log: Log, whole: Log) -> bool:
    """Whether the history of a state is the beginning of another's, byte by byte, as Trainer writes it."""
    try:
        part, history = _history(log), _history(whole)
    except LogError:
        return False
    return bool(part) and history.startswith(part)


def _history(log: Log) -> bytes:
    """The entries of `log_history`; nothing where the document is not laid out as Trainer does."""
    _, _, rest = log.document().partition(b'"log_history": [')
    entries, closed, _ = rest.partition(b"\n  ]")
    return entries if closed else b""


def _begins(head: bytes) -> bool:
    """ms-swift has such a list in the last line of its own log."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    of_ms_swift = b'"global_step/max_steps"' in head or b'"model_parameter_info"' in head
    return start[:1] in (b"{", b"[") and b'"log_history"' in head and not of_ms_swift


FORMAT: Final = Format(
    name="trainer_state",
    title="trainer_state.json",
    read=read,
    begins=_begins,
    names=("trainer_state.json",),
    is_part=is_part,
)
