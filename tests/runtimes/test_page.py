"""The page of runtimes: its examples train and are silent, and its tables are what healthy trainings give."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from tests.processes import Pair, Processes
from tests.runtimes.coverage import PAGE, columns_of, written
from tests.runtimes.rows import BATCH, EQUAL, loss_of, rows

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the frameworks warn of much

TEXT = PAGE.read_text(encoding="utf-8")


def example(runtime: str) -> str:
    """The Python example in the section of a runtime."""
    section = TEXT.partition(f"## {runtime}\n")[2].partition("\n## ")[0]
    code: str
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


def run_example(runtime: str, **names: Any) -> None:
    """Run it in the current folder, with what it speaks of."""
    Path("example.py").write_text(example(runtime), encoding="utf-8")
    runpy.run_path("example.py", names)


def loader() -> Any:
    """Micro-batches that are alike."""
    from torch.utils.data import DataLoader

    return DataLoader(rows(EQUAL), batch_size=BATCH)  # type: ignore[arg-type]  # its rows


def by_trainer() -> None:
    from tests.runtimes import hf

    with hf.quiet():
        own = hf.make_trainer(Path("unused"))
        own.args.output_dir = "out"
        run_example("Trainer and TRL", model=own.model, arguments=own.args, dataset=own.train_dataset)


def by_accelerate() -> None:
    import torch

    from tests.runtimes import accelerate
    from tests.runtimes.rows import tiny_model

    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with accelerate.fresh(gradient_accumulation_steps=3) as accelerator:
        run_example(
            "Accelerate",
            accelerator=accelerator,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader(),
            loss_of=loss_of,
        )


def by_lightning() -> None:
    from tests.runtimes import lightning

    lightning.library()
    with lightning.quiet():
        run_example("Lightning", module=lightning.make_module(), loader=loader())


def by_deepspeed() -> None:
    """The engine trains in a process of its own, which calls `engine_example` in it."""
    alone = Processes(1)
    try:
        alone.call("tests.runtimes.test_page:engine_example", folder=str(Path.cwd()), timeout=120.0)
    finally:
        alone.close()


def engine_example(folder: str) -> None:
    """Run DeepSpeed's example in a folder."""
    import os

    from tests.runtimes import deepspeed

    os.chdir(folder)
    with deepspeed.group():
        engine = deepspeed.initialize(2)
        engine.training_dataloader = loader()
        run_example("DeepSpeed", engine=engine, loss_of=loss_of)


@pytest.mark.parametrize("train", [by_trainer, by_accelerate, by_lightning, by_deepspeed])
def test_examples_train_and_are_silent(
    train: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train()
    (run,) = (one for one in check_paths([tmp_path]).runs if not one.is_foreign)  # frameworks log too
    assert run.updates >= 2
    assert not [v for v in run.verdicts if v.status == FAILED and v.severity != "note"]


@pytest.mark.timeout(600)
def test_the_tables_are_what_healthy_trainings_give(tmp_path: Path, pair: Pair) -> None:
    assert written(TEXT, columns_of(tmp_path, pair)) == TEXT
