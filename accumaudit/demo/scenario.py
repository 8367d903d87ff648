"""A training that the demo can run: a loop, what it is told, and what the audit must find in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accumaudit.demo.loop import Loop, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One training."""

    name: str
    loop: type[Loop]
    settings: Settings
    ranks: tuple[int, ...] = (1, 2)
    """Numbers of processes that it can run with; the first is the default."""
    code: str | None = None
    """The rule that its records break; None for a loop that is right."""
    launches: int = 1
    """How often it is started, each time in the folder of the time before."""

    @property
    def summary(self) -> str:
        """The first line of the loop's docstring."""
        return (self.loop.__doc__ or "").strip().partition("\n")[0]


def kebab_case(class_name: str) -> str:
    """FixedDivisorTail -> fixed-divisor-tail."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", class_name).lower()
