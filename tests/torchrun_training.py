"""A training as torchrun starts it: two ranks, the summary on; it ends when the first line has been said."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import accumaudit
from tests.loops import TOKENS, TinyModel, batches, token_loss


def said(audit: accumaudit.Audit) -> bool:
    """Whether the auditor's process for the first line has come and gone."""
    process = None if audit._summary is None else audit._summary._process
    return process is not None and process.returncode is not None


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with accumaudit.attach(model, optimizer, log_dir=sys.argv[1], accumulation_steps=2) as audit:
        for place, ids in enumerate(batches(24)[dist.get_rank() :: 2], 1):
            with nullcontext() if place % 2 == 0 else model.no_sync():
                (token_loss(model(ids), ids) / (2 * TOKENS)).backward()
            if place % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        while dist.get_rank() == 0 and not said(audit):
            time.sleep(0.1)
        dist.barrier()
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # a thread of gloo may abort the interpreter's own exit
