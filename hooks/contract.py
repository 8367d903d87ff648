"""What a runtime says of itself: the recorder and the run record read it, the rules read the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accumaudit.hooks.reducers import Reducer


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How a runtime makes an update of micro-steps."""

    runtime: str = "torch"
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what the runtime is made of, beside torch."""
    reducer: Reducer | None = None
    """Who reduces gradients, where the model's own wrapper does not tell."""
    scheduler_steps_per_update: float = 1.0
    tells_steps: bool = False
    """The adapter tells the tracks when a step begins and ends: the optimizer's own is something else."""
