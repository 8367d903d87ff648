"""What the Trainer of Hugging Face, or its script, prints of a run before the first record."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from accumaudit.importers.formats.trainer_entries import planned_epochs
from accumaudit.importers.reading.values import seconds, whole

LONGEST_DUMP: Final = 2**15
"""Characters of the arguments that some scripts print."""

LONGEST_HEADING: Final = 2**12
"""Characters of the lines with which a training begins."""

REPEATED: Final = 8
"""Times that a heading is read; each rank may print it."""

NEAR: Final = 100
"""Characters after `TrainingArguments(` in which the first stands, where it is more than a mention."""

STAMPED: Final = 100
"""Characters before a heading that may say when it was printed."""

_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_ANNOUNCED: Final = "***** Running training *****"
_SAID: Final = re.compile(
    r"(Num examples|Num Epochs|Instantaneous batch size per device|Total train batch size|"
    r"Gradient Accumulation steps|Total optimization steps)[^=\n]{0,60}=\s*([\d,]{1,20})"
    r"|Continuing training from global step (\d{1,15})"
)
_DUMPED: Final = "TrainingArguments("
_ARGUMENT: Final = re.compile(r"[\s(]([a-z_]\w*)=('[^'\n]*'|<[^<>\n]*>|[^\s,(){}\[\]]*)")


@dataclass(slots=True)
class Heading:
    """What a run says of itself."""

    arguments: dict[str, str] = field(default_factory=dict)
    """As the script prints them."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By the words of the Trainer."""
    resumed: int = 0
    """Updates that were done before."""
    started_at: float | None = None
    """As the line says, which does not tell the time zone."""
    announced: bool = False
    """The Trainer said that a training begins."""

    @property
    def planned_updates(self) -> int | None:
        """Updates of the whole run."""
        return self.sizes.get("Total optimization steps")

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of an epoch on each rank."""
        examples, each = self.sizes.get("Num examples"), self.sizes.get("Instantaneous batch size per device")
        ranks = self._ranks
        return math.ceil(examples / (each * ranks)) if examples and each and ranks else None

    def facts(self) -> dict[str, Any]:
        """The fields of the run record that the Trainer's words tell."""
        accumulated = self.sizes.get("Gradient Accumulation steps")
        per_epoch = self.micro_batches / accumulated if self.micro_batches and accumulated else None
        epochs = self.sizes.get("Num Epochs")
        found = {
            "planned_updates": self.planned_updates,
            "accumulation_steps": accumulated,
            "data_parallel_size": self._ranks,
            "planned_epochs": planned_epochs(epochs, self.planned_updates, per_epoch),
            "started_at": self.started_at,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def _ranks(self) -> int | None:
        total, each = (
            self.sizes.get("Total train batch size"),
            self.sizes.get("Instantaneous batch size per device"),
        )
        accumulated = self.sizes.get("Gradient Accumulation steps")
        if not total or not each or not accumulated or total % (each * accumulated):
            return None
        return total // (each * accumulated)


class Headings:
    """Follows the headings in a text, block by block."""

    def __init__(self) -> None:
        self._text = ""
        self._places: deque[int] = deque()
        self._arguments: dict[str, str] = {}
        self._dump = ""
        self._lines: deque[str] = deque(maxlen=REPEATED)

    @property
    def announced(self) -> bool:
        """Whether the Trainer said that a training begins, since the last one began."""
        return bool(self._lines)

    def look_into(self, text: str) -> None:
        """Take the next piece of the text."""
        self._text = text
        self._places = deque(sorted([*_places(text, _ANNOUNCED), *_places(text, _DUMPED)]))

    def pass_by(self, place: int) -> None:
        """Keep the headings before this place."""
        while self._places and self._places[0] < place:
            start = self._places.popleft()
            inside = start + len(_DUMPED) - 1
            if not self._text.startswith(_DUMPED, start):
                before = self._text[max(0, start - STAMPED) : start].rpartition("\n")[2]
                self._lines.append(f"{before}{self._text[start : start + LONGEST_HEADING]}")
            elif _ARGUMENT.search(self._text, inside, inside + NEAR):
                self._dump = self._text[inside : start + LONGEST_DUMP]

    def begin(self) -> Heading:
        """What was said of the run that begins here; what comes later is said of the next."""
        if self._dump:
            pairs = _ARGUMENT.findall(self._dump.partition("\n)")[0])
            self._arguments = dict(reversed(pairs))  # the first of equal names holds
        heading = Heading(arguments=self._arguments, announced=self.announced)
        for lines in self._lines:
            stamp = _STAMP.search(lines.partition(_ANNOUNCED)[0])
            if stamp and heading.started_at is None:
                heading.started_at = seconds(stamp[0])
            for name, size, resumed in _SAID.findall(lines.partition("{'")[0]):
                if name:
                    heading.sizes[name] = whole(size) or 0
                else:
                    heading.resumed = int(resumed)
        self._dump = ""
        self._lines.clear()
        return heading


def _places(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + len(part))
