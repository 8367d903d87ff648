"""Moving averages of the parameters, beside the training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from accumaudit.demo.loop import Loop, Settings
from accumaudit.demo.registry import variant
from accumaudit.demo.variants.scaling import SCALED, Overflowing


class Averaging(Loop):
    """An exponential moving average takes the parameters in after every update."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.average = self.make_average()

    def make_average(self) -> nn.Module:
        return AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def apply(self) -> bool:
        applied = super().apply()
        if applied:
            self.update_average()
        return applied

    def update_average(self) -> None:
        assert isinstance(self.average, AveragedModel)
        self.average.update_parameters(self.model)


@variant()
class AverageOfUpdates(Averaging):
    """An exponential moving average takes the parameters in after every update."""


@variant(settings=SCALED)
class AverageHeldOnSkips(Averaging, Overflowing):
    """The moving average waits where the scaler skips an update."""


@variant()
class EqualWeights(Averaging):
    """Stochastic weight averaging: all updates weigh the same in the average."""

    def make_average(self) -> nn.Module:
        return AveragedModel(self.model)


@variant()
class AverageByHand(Averaging):
    """The loop keeps the average itself, at a decay that rises, and tells the audit."""

    def make_average(self) -> nn.Module:
        average = self.make_model()
        average.load_state_dict(self.model.state_dict())
        return average

    @torch.no_grad()
    def update_average(self) -> None:
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for mean, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(parameter, 1 - decay)
        self.audit.ema_updated(decay=decay)


@variant()
class AverageOfEverySecond(Averaging):
    """The moving average takes every second update in, to save time."""

    def apply(self) -> bool:
        applied = Loop.apply(self)
        if applied and self.updates % 2:
            self.update_average()
        return applied


@variant()
class TwoAverages(Averaging):
    """Two averages at two decays, of which the better is kept."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.slower = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def update_average(self) -> None:
        self.slower.update_parameters(self.model)
        super().update_average()


@variant()
class AverageFromTheThirdEpoch(Averaging):
    """Stochastic weight averaging begins late, and at a rate of its own."""

    def make_average(self) -> nn.Module:
        return AveragedModel(self.model)

    def update_average(self) -> None:
        if self.updates >= 8:
            super().update_average()
