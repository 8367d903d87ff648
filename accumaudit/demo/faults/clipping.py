"""Gradients clipped at the wrong time, or not at all."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import against_advice, fault
from accumaudit.demo.variants.reduction import ReducedByTheLoop
from accumaudit.demo.variants.scaling import SCALED
from accumaudit.demo.variants.sharding import FlatShards


@fault("ACC401", ranks=(1,))
class ClipPerMicroStep(Loop):
    """The gradients are clipped after every micro-step, so that later ones weigh more."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if not window.ends_with(number):
            self.clip()
        return loss


@fault("ACC402", settings=SCALED)
class ClipBeforeUnscale(Loop):
    """The gradients are clipped while they are still scaled, to a thousandth of what was meant."""

    def unscale(self) -> None:
        pass


@fault("ACC403", ranks=(2,))
class ClipBeforeSync(ReducedByTheLoop):
    """Each rank clips its own gradients; only then are they added up."""

    def unscale(self) -> None:
        pass

    def clip(self) -> None:
        super().clip()
        self.reduce()


@fault("ACC404")
class ClipWithoutEffect(Loop):
    """The parameters are a generator made once: the first clip uses it up, and the others clip nothing."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.parameters = self.model.parameters()

    def clip(self) -> None:
        with against_advice():
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm or 1.0)


@fault("ACC405", ranks=(2,), settings=Settings(max_grad_norm=0.5))
class ShardLocalClip(FlatShards):
    """torch's own clip sees this rank's shard of the gradient alone, and takes its norm for the whole."""

    def clip(self) -> None:
        Loop.clip(self)


@fault("ACC406", settings=Settings(max_grad_norm=0.01, accumulation_steps=2, batches=68))
class ClipAlwaysActive(Loop):
    """The limit lies so low that every update is clipped, and the rate means something else."""
