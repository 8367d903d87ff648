"""A training in a notebook: watched, looked at, plotted, told after the fact, and compared with its repair.

Cells begin at `# %%`: VS Code, Spyder, PyCharm and, with jupytext, Jupyter open this file as a notebook.
It runs as a script too.
"""

# %% [markdown]
# # Is the training that ran the training that was meant?
#
# A small language model is trained with gradient accumulation, first by a loop that many people have written.
# It runs, its loss falls, and one update of each epoch is not the one that was meant.
#
# `pip install 'accumaudit[report,torch]'`

# %%
from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import accumaudit
from accumaudit import Ledger
from accumaudit.outputs.postmortem import html

VOCABULARY = 32
ACCUMULATION_STEPS = 4
RUNS = Path("runs")

# %% [markdown]
# ## The training
#
# Ten batches of an epoch do not divide by four: the last window of each epoch has two. `repaired` says
# whether the loss is divided by the tokens of the window, or by the number of batches in a full one.


# %%
def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten batches of token ids and labels; positions that carry no loss are -100."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(10):
        ids = torch.randint(VOCABULARY, (4, 16), generator=generator)
        labels = ids.roll(-1, dims=1)
        labels[:, -1] = -100
        found.append((ids, labels))
    return found


def train(run: str, *, repaired: bool) -> None:
    """Train for five epochs, with the run's ledger in its folder below `RUNS`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=15)
    data = batches()
    with accumaudit.attach(
        model,
        optimizer,
        scheduler=scheduler,
        log_dir=RUNS / run,
        accumulation_steps=ACCUMULATION_STEPS,
        max_grad_norm=1.0,
        summary=False,
    ) as audit:
        for _ in range(5):
            for start in range(0, len(data), ACCUMULATION_STEPS):
                window = data[start : start + ACCUMULATION_STEPS]
                tokens = sum(int((labels != -100).sum()) for _, labels in window)
                for ids, labels in window:
                    reduction = "sum" if repaired else "mean"
                    loss = cross_entropy(
                        model(ids).flatten(0, 1), labels.flatten(), reduction=reduction, ignore_index=-100
                    )
                    (loss / (tokens if repaired else ACCUMULATION_STEPS)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            audit.mark("epoch_end")


train("first", repaired=False)
train("repaired", repaired=True)

# %% [markdown]
# ## Look at it
#
# A ledger shows its runs and what the rules found. Its tables show their first rows.

# %%
ledger = Ledger.open(RUNS)
ledger

# %%
ledger.windows

# %%
ledger.sql("""
    SELECT run_id, microbatches, count(*) AS updates, avg(total_weight) AS total_weight
    FROM windows GROUP BY ALL ORDER BY ALL
""")

# %% [markdown]
# ## Plot it
#
# Without names of fields, all that are known are drawn. Findings are marked where they begin.

# %%
ledger.plot(run="first")

# %%
ledger.plot("loss", "total_weight", run="first", x="tokens")

# %%
ledger.sql("SELECT attempt_id, grad_norm_max FROM windows WHERE run_id = 'repaired'").plot(
    "attempt_id", "grad_norm_max"
)

# %% [markdown]
# ## Tell what went wrong
#
# The post-mortem names the first wrong update, what may be the cause, and what to do. As a page it has charts
# and the attempts beside the first fault.

# %%
told = ledger.post_mortem("first")
told

# %%
Path("first.html").write_text(html.rendered([told]), encoding="utf-8")

# %% [markdown]
# ## Compare it with its repair

# %%
comparison = ledger.compare("first", "repaired")
comparison

# %%
ledger.close()
