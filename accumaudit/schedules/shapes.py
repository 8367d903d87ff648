"""The shapes of learning-rate schedules: the rate at each position, and the position of each rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

SHAPES: Final = ("linear", "cosine", "polynomial", "inverse_sqrt", "wsd")
"""The shapes whose rates tell a position; a constant rate tells none."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A fall from 1 (at a progress of 0) to 0 (at 1, for those that end)."""

    share: Callable[[Numbers], Numbers]
    progress: Callable[[Numbers], Numbers]
    """The inverse: the progress at which this share is left."""
    ends: bool = True


def polynomial(power: float) -> Curve:
    """Falls as a power of what is left."""
    return Curve(lambda progress: (1 - progress) ** power, lambda share: 1 - share ** (1 / power))


CURVES: Final = {
    "linear": Curve(lambda progress: 1 - progress, lambda share: 1 - share),
    "cosine": Curve(
        lambda progress: (1 + np.cos(np.pi * progress)) / 2,
        lambda share: np.arccos(2 * share - 1) / np.pi,
    ),
    "inverse_sqrt": Curve(
        lambda progress: 1 / np.sqrt(1 + progress),
        lambda share: 1 / np.maximum(share, 1e-9) ** 2 - 1,
        ends=False,
    ),
    # The last decay of WSD, as Transformers and Megatron have it, beside linear and cosine.
    "minus_sqrt": Curve(lambda progress: 1 - np.sqrt(progress), lambda share: (1 - share) ** 2),
    "exponential": Curve(lambda progress: 2 * 0.5**progress - 1, lambda share: np.log2(2 / (share + 1))),
}
WSD_CURVES: Final = ("linear", "cosine", "minus_sqrt", "exponential")


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A rise to the peak, as shares of it by the position; `length` is the number of its steps."""

    share: Callable[[Numbers, int], Numbers]
    position: Callable[[Numbers, int], Numbers]


WARM_UPS: Final = {
    # Transformers, Megatron, older nanoGPT
    "from zero": WarmUp(lambda s, length: s / length, lambda share, length: share * length),
    # llm.c, MAE, many by hand
    "to the peak": WarmUp(lambda s, length: (s + 1) / length, lambda share, length: share * length - 1),
    # newer nanoGPT
    "between both": WarmUp(
        lambda s, length: (s + 1) / (length + 1), lambda share, length: share * (length + 1) - 1
    ),
    # DeepSpeed's WarmupLR by default
    "logarithmic": WarmUp(
        lambda s, length: np.log1p(s) / np.log(max(length, 2)),
        lambda share, length: np.expm1(share * np.log(max(length, 2))),
    ),
}
"""How trainers count the steps of a linear warm-up; the first that fits best is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A rise from 0 to the peak, perhaps a plateau, and a fall to the minimum."""

    shape: str
    curve: str
    """Of the fall; another name than the shape for wsd alone."""
    peak: float
    warmup: int = 0
    start: int = 0
    """Position at which the fall begins: the end of the warm-up, but for wsd."""
    length: int = 1
    """Steps of the fall; for inverse_sqrt those after which 1/sqrt(2) is left."""
    minimum: float = 0.0
    power: float = 1.0
    warm_up: str = "from zero"

    @property
    def updates(self) -> int | None:
        """Its whole length; None where it has no end."""
        return self.start + self.length if self._fall.ends else None

    @property
    def _fall(self) -> Curve:
        return polynomial(self.power) if self.curve == "polynomial" else CURVES[self.curve]

    def falling(self, positions: Numbers) -> Numbers:
        """The rates from the start of the fall on; after its end it stays at the minimum."""
        progress = (positions - self.start) / self.length
        bounded = np.clip(progress, 0, 1 if self._fall.ends else None)
        return self.minimum + (self.peak - self.minimum) * self._fall.share(bounded)

    def position_in_fall(self, rates: Numbers) -> Numbers:
        """Where in its fall it has these rates."""
        share = np.clip((rates - self.minimum) / (self.peak - self.minimum), 0, 1)
        return self.start + self.length * self._fall.progress(share)

    def rising(self, positions: Numbers) -> Numbers:
        """The rates of the warm-up."""
        return self.peak * WARM_UPS[self.warm_up].share(positions, self.warmup)

    def position_in_rise(self, rates: Numbers) -> Numbers:
        """Where in its warm-up it has these rates."""
        return WARM_UPS[self.warm_up].position(rates / self.peak, self.warmup)
