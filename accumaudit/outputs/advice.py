"""What to do about a finding, by the framework of the run."""

from __future__ import annotations

from typing import Final

from accumaudit.engine.findings import RunReport, Verdict
from accumaudit.outputs.words import printable

LOOP: Final = "Hand-written loop"
_RUNTIMES: Final = {
    "transformers": "Trainer",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
}
_WRAPPERS: Final = {"ddp": "DDP", "fsdp": "FSDP", "deepspeed": "DeepSpeed"}
"""By what the wrapper's name begins with; a loop of one's own drives them."""


def fixes(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """What to do by framework: the lines behind the advice, each with the framework before a colon."""
    lines: list[str] = []
    for line in verdict.fix.partition("\n\n")[2].splitlines():
        if line.startswith(" ") and lines:
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
    parted = (line.partition(":") for line in lines)
    return tuple((printable(head), printable(rest.strip())) for head, _, rest in parted)


def framework(run: RunReport, wrapper: str | None) -> str:
    """What the manuals call the framework of a run."""
    by_wrapper = (name for start, name in _WRAPPERS.items() if (wrapper or "none").startswith(start))
    return _RUNTIMES.get(run.runtime or "", next(by_wrapper, LOOP))


def own_fix(verdict: Verdict, framework: str) -> tuple[str, str] | None:
    """What to do under one framework, behind its name; None where the manual says nothing of it."""
    return next(((head, text) for head, text in fixes(verdict) if head == framework), None)
