"""Where the demo's trainings are entered under their names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from accumaudit.demo.loop import Loop, Settings
from accumaudit.demo.scenario import Scenario, kebab_case

FAULTS: Final[dict[str, Scenario]] = {}
"""By the name of the rule that each breaks."""

VARIANTS: Final[dict[str, Scenario]] = {}
"""Right loops by name; `plain` is the loop as it stands in loop.py."""


def fault(
    code: str, *, ranks: tuple[int, ...] = (1, 2), settings: Settings | None = None, launches: int = 1
) -> Callable[[type[Loop]], type[Loop]]:
    """Enter a loop among the faults, under its name."""
    return _enter(FAULTS, code=code, ranks=ranks, settings=settings, launches=launches)


def variant(
    *, ranks: tuple[int, ...] = (1, 2), settings: Settings | None = None, launches: int = 1
) -> Callable[[type[Loop]], type[Loop]]:
    """Enter a loop among the variants, under its name."""
    return _enter(VARIANTS, code=None, ranks=ranks, settings=settings, launches=launches)


def _enter(
    registry: dict[str, Scenario],
    *,
    code: str | None,
    ranks: tuple[int, ...],
    settings: Settings | None,
    launches: int,
) -> Callable[[type[Loop]], type[Loop]]:
    def enter(loop: type[Loop]) -> type[Loop]:
        name = kebab_case(loop.__name__)
        registry[name] = Scenario(
            name=name,
            loop=loop,
            settings=settings or Settings(),
            ranks=ranks,
            code=code,
            launches=launches,
        )
        return loop

    return enter


def combined(*traits: type[Loop]) -> type[Loop]:
    """One loop with all these traits, which override different methods."""
    return type("".join(trait.__name__ for trait in traits) or "Plain", (*traits, Loop), {})


@contextmanager
def against_advice() -> Iterator[None]:
    """Torch warns of some of these trainings, once, in a line that scrolls by."""
    with warnings.catch_warnings():
        for message in ("Detected call of", "`parameters` is an empty generator", "FSDP", "The `NO_SHARD`"):
            warnings.filterwarnings("ignore", message=message)
        yield
