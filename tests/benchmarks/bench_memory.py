"""Memory over 20,000 recorded updates: flat, where nothing leaks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tests.growth import train

UPDATES = 20_000


def main() -> None:
    """What is held at the beginning, at every quarter and at the end."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        held = train(UPDATES, Path(folder))
    first, last = held[0], held[-1]
    for place, kept in enumerate(held):
        print(
            f"after {place * UPDATES // 4:6} updates: {kept.memory / 2**20:.1f} MiB resident, "
            f"{kept.objects} objects, {kept.tensors} tensors"
        )
    print(
        f"in {UPDATES} updates: {(last.memory - first.memory) / 2**10:+.0f} KiB, "
        f"{last.objects - first.objects:+} objects, {last.tensors - first.tensors:+} tensors"
    )


if __name__ == "__main__":
    main()
