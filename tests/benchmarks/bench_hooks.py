"""What the hooks cost a small training loop, in CPU time of the process, writer thread included.

Bare and recorded rounds take turns on the same model, so that a drift of the machine meets both.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import accumaudit
from accumaudit import Audit
from tests.benchmarks.tiny_gpt import TinyGpt, cpu_time, micro_batches, spread

ROUNDS = 9
UPDATES = 20
ACCUMULATION = 4
BATCHES = {"20 ms": 1, "60 ms": 8}
"""Rows of a micro-batch, by about what an update takes."""

LENGTHS = (1, 2, 4, 8)
"""Micro-steps of the windows that tell a micro-step's cost from an update's."""


class Bench:
    """One model, trained by turns with and without the hooks."""

    def __init__(self, batch: int, accumulation: int) -> None:
        torch.manual_seed(0)
        self.model = TinyGpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = micro_batches(accumulation, batch)
        self.tensors = sum(1 for _ in self.model.parameters())
        self.bare()

    def bare(self) -> float:
        """Seconds an update without the hooks."""
        return cpu_time(self.model, self.optimizer, self.data, UPDATES, Audit(None))

    def recorded(self) -> float:
        """Seconds an update with them."""
        with tempfile.TemporaryDirectory() as folder:
            audit = accumaudit.attach(
                self.model,
                self.optimizer,
                log_dir=Path(folder),
                accumulation_steps=len(self.data),
                summary=False,
            )
            with audit:
                return cpu_time(self.model, self.optimizer, self.data, UPDATES, audit)

    def rounds(self, *ways: Callable[[], float]) -> list[list[float]]:
        """Each way's times, in turns."""
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(ROUNDS):
            for way, times in zip(ways, found, strict=True):
                times.append(way())
        return found


def extra(bare: Sequence[float], other: Sequence[float]) -> list[float]:
    """Microseconds an update more than the bare loop, round by round."""
    return [1e6 * (more - less) for less, more in zip(bare, other, strict=True)]


def ratios(name: str, batch: int) -> None:
    """How much longer an update takes."""
    bench = Bench(batch, ACCUMULATION)
    bare, full = bench.rounds(bench.bare, bench.recorded)
    print(
        f"{name}: {1e3 * statistics.median(bare):.1f} ms an update, {bench.tensors} tensors, "
        f"{ACCUMULATION} micro-steps: ratio {spread([b / a for a, b in zip(bare, full, strict=True)])}, "
        f"{spread(extra(bare, full), 0)} microseconds an update"
    )


def regression() -> None:
    """Microseconds a micro-step and an update: a line through windows of several lengths."""
    benches = {length: Bench(BATCHES["20 ms"], length) for length in LENGTHS}
    costs = {
        length: statistics.median(extra(*bench.rounds(bench.bare, bench.recorded)))
        for length, bench in benches.items()
    }
    slope, rest = statistics.linear_regression(list(costs), list(costs.values()))
    tensors = benches[1].tensors
    print(
        f"{slope:.0f} microseconds a micro-step (aim: 120) and {rest:.0f} an update of {tensors} "
        f"tensors (aim: {400 + 2 * tensors}), from "
        + ", ".join(f"{cost:.0f} with {length}" for length, cost in costs.items())
    )


def main() -> None:
    """Ratios, and cost by micro-step and update."""
    torch.set_num_threads(1)
    for name, batch in BATCHES.items():
        ratios(name, batch)
    regression()


if __name__ == "__main__":
    main()
