"""What the Trainer of Hugging Face prints: dictionaries between progress bars, of all its versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from accumaudit.importers.format import Format
from accumaudit.importers.formats import trainer_entries
from accumaudit.importers.formats.hf_headings import Heading, Headings
from accumaudit.importers.formats.ms_swift import step_and_plan
from accumaudit.importers.hyperparameters import Companions, facts
from accumaudit.importers.reading.log import Log, LogError
from accumaudit.importers.reading.values import number, whole
from accumaudit.importers.records import Records
from accumaudit.importers.restarts import until_failure, with_restarts

LONGEST_ENTRY: Final = 2**14
"""Characters of a dictionary; longer ones are no records."""

NEAR: Final = 600
"""Characters between a dictionary and the progress bar that belongs to it."""

LONGEST_COUNT: Final = 40
"""Characters of the numbers in a bar."""

_OPENING: Final = re.compile(r"\{'[\w/ ()@.:%-]{1,80}'\s*:")
_PAIR: Final = re.compile(r"""'([^'\n]{1,80})'\s*:\s*('[^'\n]*'|"[^"\n]*"|[^\s,{}\[\]'"]+)""")
_CALL: Final = re.compile(r"[\w.]+\(([^(),]+)\)?")
_BAR: Final = re.compile(r"(?<!\d)(\d{1,15})/(\d{1,15}) \[\d")


@dataclass(slots=True)
class _Row:
    """An entry, with what was said of the run that it begins."""

    line: int
    step: int
    entry: dict[str, str]
    kind: str
    planned: int | None
    heading: Heading | None
    counted: bool
    """No bar tells the step, and nothing how many updates make a record."""


def read(log: Log, records: Records) -> None:
    """Give each dictionary that holds a loss, an evaluation or the summary of a training.

    Raises:
        LogError: the log cannot be read any further.
    """
    companions = Companions(log)
    epochs, entries = trainer_entries.Epochs(None), trainer_entries.Entries(records)
    announced = False
    said: dict[str, str] = {}
    rows = _Reader(log, records, companions.count("logging_steps")).rows()
    try:
        for row, resumed in with_restarts(rows, lambda row: row.step if row.kind == "update" else None):
            heading = row.heading
            announced |= heading is not None and heading.announced
            if heading is None and resumed is not None and not announced:
                heading = Heading(arguments=said, resumed=resumed)  # else a run that starts says so
            if heading is not None:
                said = heading.arguments
                known = _known(heading, companions, row)
                entries.end(None)
                records.begin(resumed_from_update=heading.resumed or resumed or None, **known)
                epochs = trainer_entries.Epochs(known.get("accumulation_steps"), heading.micro_batches)
            epoch = epochs.exact(row.step, number(row.entry.get("epoch"))) if row.kind == "update" else None
            entries.add(row.line, row.step, row.entry, epoch)
    finally:
        entries.end(None)


def _known(heading: Heading, companions: Companions, row: _Row) -> dict[str, Any]:
    planned = heading.planned_updates or row.planned
    said = {"runtime": "transformers", "planned_updates": planned, **heading.facts()}
    known = companions.facts(planned) | (facts(heading.arguments, planned) if heading.arguments else {})
    known |= {name: value for name, value in said.items() if value is not None}
    if row.counted:
        known.pop("planned_updates", None)  # in another unit than the records
    return known


class _Reader:
    """Finds the entries in the text, and their steps by the bars around them."""

    def __init__(self, log: Log, records: Records, interval: int | None) -> None:
        self._log = log
        self._records = records
        self._headings = Headings()
        self._begins = True
        self._begun = False
        self._step = 0
        self._last: dict[str, str] = {}
        """The last entry of an update."""
        self._interval = interval
        self._planned: int | None = None
        self._counted = False
        self._tail = ""
        """What stood behind the last entry of the text before."""

    def rows(self) -> Iterator[_Row]:
        """Give each entry."""
        line, held = 1, ""
        failures: list[LogError] = []
        for first, text in until_failure(self._log.texts(), failures):
            if held and "\n" in text:
                yield from self._rows_of(line, held, _OPENING.split(text[:NEAR], maxsplit=1)[0])
                line, held = first, text
            else:
                held += text  # the last bar, which ends on no line, belongs to the last entry
        yield from self._rows_of(line, held)
        for failure in failures:
            raise failure

    def _rows_of(self, line: int, text: str, beyond: str = "") -> Iterator[_Row]:
        openings = [match.start() for match in _OPENING.finditer(text)]
        self._headings.look_into(text)
        done = counted = 0
        for begin, following in pairwise([*openings, len(text)]):
            if begin < done:
                continue  # inside the one before
            self._headings.pass_by(begin)
            entry, end = _entry(text, begin, following)
            if not _is_record(entry):
                continue
            line += text.count("\n", counted, begin)
            counted = begin
            if not end:
                self._records.damage(line, "a dictionary that does not end on its line")
                continue
            before = text[max(done, begin - NEAR) : begin]
            after = text[end : min(following, end + NEAR)]
            yield self._row(
                line,
                entry,
                before if done else self._tail + before,
                after + beyond if following == len(text) else after,
            )
            done = end
        self._tail = text[max(done, len(text) - NEAR) :]
        self._headings.pass_by(len(text))

    def _row(self, line: int, entry: dict[str, str], before: str, after: str) -> _Row:
        kind = trainer_entries.kind_of(entry)
        # An evaluation after the summary is the last of the old run, and no new one.
        begins = self._begins and (kind != "eval" or not self._begun)
        heading = self._begin() if begins or self._headings.announced else None
        self._step = self._step_of(entry, before, after, kind == "update")
        self._begins |= kind == "close"  # what follows a summary is another training
        return _Row(line, self._step, entry, kind, self._planned, heading, self._counted)

    def _begin(self) -> Heading:
        heading = self._headings.begin()
        self._begins, self._begun = False, True
        self._step = heading.resumed
        self._planned = heading.planned_updates
        self._interval = whole(heading.arguments.get("logging_steps")) or self._interval
        if heading.arguments.get("logging_first_step") == "True" and not self._step and self._interval:
            self._step = 1 - self._interval
        return heading

    def _step_of(self, entry: dict[str, str], before: str, after: str, is_update: bool) -> int:
        """The step of an entry: its own, that of the bar, or the next by count."""
        step, planned = step_and_plan(entry.get("global_step/max_steps"))
        if step is None:
            step = whole(entry.get("step", entry.get("global_step")))
        self._planned = self._planned or planned
        if step is None and (bar := self._bar(before, after, is_update)) is not None:
            step = int(bar[1])
            self._planned = self._planned or int(bar[2])
        if step is None:
            return self._next_step(entry) if is_update else max(self._step, 0)
        if is_update and step > self._step:
            self._interval = step - max(self._step, 0)
        return step

    def _next_step(self, entry: dict[str, str]) -> int:
        """The step after the last one; the same where several nodes print an entry, as they do by default."""
        again = entry == self._last and number(entry.get("loss")) != 0
        self._last = entry
        if again:
            return self._step
        self._counted = self._interval is None
        interval = self._interval or 1
        return self._step + interval if self._step < 0 else (self._step // interval + 1) * interval

    def _bar(self, before: str, after: str, is_update: bool) -> re.Match[str] | None:
        """The bar of the training that was drawn again after an entry, else the last one before it.

        Where entries follow each other without bars between, the text was held back: bars tell nothing.
        """
        earlier = self._last_bar(before)
        if is_update and earlier is None:
            return None
        later = next(filter(self._is_of_training, _BAR.finditer(after)), None)
        held_back = len(after) < NEAR and not after.strip()
        return earlier if later is None and not (is_update and held_back) else later

    def _last_bar(self, before: str) -> re.Match[str] | None:
        place = before.rfind(" [")
        while place >= 0:
            bar = _BAR.search(before, max(0, place - LONGEST_COUNT), place + 3)
            if bar is not None and self._is_of_training(bar):
                return bar
            place = before.rfind(" [", 0, place)
        return None

    def _is_of_training(self, bar: re.Match[str]) -> bool:
        return self._planned is None or int(bar[2]) == self._planned


def _entry(text: str, begin: int, following: int) -> tuple[dict[str, str], int]:
    """The pairs of a dictionary, and where it ends; 0 where it does not end on its line.

    One that does not end is looked into up to the next, which begins at `following`.
    """
    end = text.find("}", begin, begin + LONGEST_ENTRY)
    stop = end if end >= 0 else begin + LONGEST_ENTRY
    for separator in "\n\r":
        found = text.find(separator, begin, stop)
        if found >= 0:
            stop, end = found, -1
    if end < 0:
        stop = min(stop, following - 1)
    pairs = _PAIR.findall(text, begin, stop + 1)
    return {name: _bare(value) for name, value in pairs}, end + 1


def _bare(value: str) -> str:
    """A value without its quotes, or what `np.float64(0.5)` holds."""
    if value.startswith(("'", '"')):
        return value[1:-1]
    call = _CALL.match(value) if "(" in value else None
    return call[1] if call else value


def _is_record(entry: Mapping[str, str]) -> bool:
    """Dictionaries of settings stand in the same text, and loops of other kinds print some of their own."""
    if "loss" in entry and ("learning_rate" in entry or "grad_norm" in entry):
        return number(entry["loss"]) is not None
    if "train_runtime" in entry:
        return number(entry["train_runtime"]) is not None
    numbers = (value for name, value in entry.items() if name.startswith("eval_"))
    return "epoch" in entry and any(number(value) is not None for value in numbers)


FORMAT: Final = Format(
    name="hf_stdout",
    title="the Trainer's output",
    read=read,
    marker=b"{'",
    record=re.compile(
        rb"\{'(?:[^{}\n\r]{0,4000}?')?(?:train_runtime'|eval_runtime'|"
        rb"loss'\s?:\s?[^,{}\n\r]{1,60},\s?'(?:grad_norm|learning_rate)')"
    ),
)
