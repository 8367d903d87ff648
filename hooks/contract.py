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
    loss_divisor: str | None = None
    """Argument of the model by which its own loss was divided, as a sum, where it was given."""
    shifts_labels: bool = False
    """The model's own loss leaves out the first label of each row."""
    log_probabilities: tuple[str, str] | None = None
    """Where the loss is made of the labels' log-probabilities: fields of the model's output that hold them,
    and which of them count."""
    tells_forwards: bool = False
    """The adapter tells the forwards: what the training calls is more than the model's own, or less."""
    closure_is_window: bool = False
    """The closure that a step is given is the runtime's: forward, backward and clip of the last micro-step.
    The attempt begins when it has returned."""
    precision: str | None = None
    """Of parameters and computation, where the parameters do not tell."""
    updates: int | None = None
    """Updates applied before, where the runtime counts them."""
    tells_steps: bool = False
    """The adapter tells the tracks when a step begins and ends: the optimizer's own is something else."""
