"""What the hooks cost a small training loop, in CPU time of the process, writer thread included.

Bare and recorded rounds take turns on the same model, so that a drift of the machine meets both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import accumaudit
from accumaudit import Audit

ROUNDS = 9
UPDATES = 20
ACCUMULATION = 4
VOCABULARY = 128


class TinyGpt(nn.Module):
    """Four causal blocks of width 128: about 20 ms an update of four micro-steps on one core."""

    def __init__(self, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        states = self.embedding(ids)
        for block in self.blocks:
            states = block(states, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(states)
        return logits


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    """Some updates of the plain loop."""
    for _ in range(UPDATES):
        for ids in data:
            logits = model(ids)[:, :-1].reshape(-1, VOCABULARY)
            loss = nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1), reduction="sum")
            (loss / (sum(map(len, data)) * (ids.shape[1] - 1))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def measure(batch: int) -> None:
    """Print the ratio and what it is made of, for one batch size."""
    torch.manual_seed(0)
    model = TinyGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = [torch.randint(0, VOCABULARY, (batch, 33)) for _ in range(ACCUMULATION)]
    train(model, optimizer, data)
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for place in range(2 * ROUNDS):
            recorded = bool(place % 2)
            audit = (
                accumaudit.attach(
                    model, optimizer, log_dir=Path(folder), accumulation_steps=ACCUMULATION, summary=False
                )
                if recorded
                else Audit(None)
            )
            begin = time.process_time()
            train(model, optimizer, data)
            times[recorded].append(time.process_time() - begin)
            audit.close()
    ratios = sorted(hooked / bare for bare, hooked in zip(times[False], times[True], strict=True))
    bare, hooked = (statistics.median(times[kind]) / UPDATES * 1e3 for kind in (False, True))
    tensors = sum(1 for _ in model.parameters())
    print(
        f"update of {bare:5.1f} ms, {tensors} tensors, {ACCUMULATION} micro-steps: "
        f"ratio {statistics.median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f}), {1e3 * (hooked - bare):.0f} microseconds an update"
    )


def main() -> None:
    """Small and larger batches."""
    torch.set_num_threads(1)
    for batch in (1, 4):
        measure(batch)


if __name__ == "__main__":
    main()
