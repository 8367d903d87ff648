"""A fine-tuning loop as an article would print it: two lines of it are accumaudit's."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import accumaudit
from tests.loops import VOCABULARY, TinyModel


def rows(rank: int, world_size: int) -> list[torch.Tensor]:
    """Rows of token ids and labels with prompts masked, of unequal lengths, one rank's share."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(44):
        ids = torch.randint(0, VOCABULARY, (12,), generator=generator)
        prompt, length = torch.randint(1, 5, (1,), generator=generator), torch.randint(7, 13, (1,), generator=generator)
        labels = ids.clone()
        labels[:prompt] = -100
        labels[length:] = -100
        found.append(torch.stack([ids, labels]))
    return found[rank::world_size]


def train(log_dir: str) -> None:
    rank, world_size, accumulation_steps = dist.get_rank(), dist.get_world_size(), 4
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6))
    loader: DataLoader[torch.Tensor] = DataLoader(rows(rank, world_size), batch_size=2)  # type: ignore[arg-type]  # a list will do
    audit = accumaudit.attach(model, optimizer, scheduler, log_dir=log_dir, accumulation_steps=4, dataloader=loader, max_grad_norm=1.0, summary=False)
    for _epoch in range(2):
        iterator = iter(loader)
        while window := [batch for _, batch in zip(range(accumulation_steps), iterator)]:
            tokens = torch.stack([(batch[:, 1, 1:] != -100).sum() for batch in window]).sum()
            dist.all_reduce(tokens)
            for i, batch in enumerate(window):
                last = i == len(window) - 1
                with nullcontext() if last else model.no_sync():
                    logits = model(batch[:, 0])[:, :-1].reshape(-1, VOCABULARY)
                    loss = F.cross_entropy(logits, batch[:, 1, 1:].reshape(-1), reduction="sum")
                    (loss * world_size / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    audit.close()
