"""Ways to reduce gradients over the ranks that are right."""

from __future__ import annotations

from tests.faults.registry import trap
from tests.trainings import train_here


@trap("T11", on="DDP", tempts=("ACC501", "ACC502"), notes=("ACC504",))
def sync_every_micro_step(folder: str) -> None:
    """Gradients are reduced in every micro-step: right, and as many times the communication."""
    train_here(["sync-every-micro-step"], folder, {}, hooks=True, launch=0)
