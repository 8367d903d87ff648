"""The loop of an article: silent as it stands, and the right code for each of its lines, broken."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.processes import Pair

pytestmark = pytest.mark.slow  # the article is trained

SOURCE = Path(__file__).with_name("article_loop.py")

BROKEN = {
    # what was done to it: (a line, what stands there instead, the codes)
    "padding and prompts counted": (
        "(batch[:, 1, 1:] != -100).sum()", "torch.tensor(batch[:, 0].numel())", {"ACC110"}
    ),
    "the labels counted without the shift": ("batch[:, 1, 1:] != -100", "batch[:, 1, :] != -101", {"ACC110"}),
    "the count not reduced": ("            dist.all_reduce(tokens)\n", "", {"ACC103"}),
    "the average over ranks not undone": ("loss * world_size / tokens", "loss / tokens", {"ACC104"}),
    "means of micro-steps, fixed divisor": (
        'reduction="sum")\n                    (loss * world_size / tokens)',
        'reduction="mean")\n                    (loss / accumulation_steps)',
        {"ACC101", "ACC102"},
    ),
    "sums not divided": ("loss * world_size / tokens", "loss", {"ACC104"}),
    "no_sync on the last alone": (
        "nullcontext() if last else", "nullcontext() if not last else", {"ACC502"}
    ),
    "no_sync always": ("nullcontext() if last else", "nullcontext() if False else", {"ACC501"}),
    "no_sync never": ("nullcontext() if last else", "nullcontext() if True else", {"ACC504"}),
    "clipped in the inner loop": (
        "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        {"ACC401"},
    ),
    "cleared in the inner loop": (
        "            for i, batch in enumerate(window):\n",
        "            for i, batch in enumerate(window):\n                optimizer.zero_grad()\n",
        {"ACC202"},
    ),
    "never cleared": ("            optimizer.zero_grad()\n", "", {"ACC203"}),
    "schedule in the inner loop": (
        "            scheduler.step()\n", "            [scheduler.step() for _ in window]\n", {"ACC301"}
    ),
    "schedule before the step": (
        "            optimizer.step()\n            scheduler.step()\n",
        "            scheduler.step()\n            optimizer.step()\n",
        {"ACC304"},
    ),
    "schedule of another optimizer": (
        "LambdaLR(optimizer,", "LambdaLR(torch.optim.AdamW(model.parameters(), lr=1e-2),", {"ACC307"}
    ),
}  # fmt: skip


def train(line: str, instead: str, folder: str) -> None:
    """Run the article's loop with one line broken; runs on each rank."""
    source = SOURCE.read_text()
    assert source.count(line) >= 1 or not line
    namespace: dict[str, Any] = {"__name__": "article_loop", "__file__": str(SOURCE)}
    exec(compile(source.replace(line, instead) if line else source, str(SOURCE), "exec"), namespace)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of .lr_scheduler.step")
        namespace["train"](folder)


def codes(folder: Path) -> dict[str, dict[str, str]]:
    """The codes of each run's findings, with their severities."""
    runs = check_paths([folder]).runs
    assert not [verdict for run in runs for verdict in run.verdicts if verdict.status == "broken"]
    return {
        run.run_id: {verdict.code: verdict.severity for verdict in run.verdicts if verdict.status == "failed"}
        for run in runs
    }


def test_the_loop_as_it_stands_is_silent(pair: Pair, tmp_path: Path) -> None:
    """No finding at any severity."""
    pair.call("tests.test_article:train", line="", instead="", folder=str(tmp_path / "run"))
    assert codes(tmp_path) == {"run": {}}


def test_each_broken_line_gives_its_codes(pair: Pair, tmp_path: Path) -> None:
    """One line is broken; exactly its codes are found."""
    for name, (line, instead, _) in BROKEN.items():
        pair.call("tests.test_article:train", line=line, instead=instead, folder=str(tmp_path / name))
    assert {name: {*found} for name, found in codes(tmp_path).items()} == {
        name: expected for name, (_, _, expected) in BROKEN.items()
    }
