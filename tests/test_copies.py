"""More than one of something: forked children, audits side by side, threads, iterators over the data."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import accumaudit
from accumaudit.hooks.session import session
from accumaudit.hooks.summary import Summary
from tests.loops import TOKENS, TinyModel, batches, read_records, token_loss


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from batches(4)


def parts() -> tuple[TinyModel, torch.optim.AdamW, DataLoader[Any]]:
    torch.manual_seed(0)
    model = TinyModel()
    return model, torch.optim.AdamW(model.parameters()), DataLoader(Stream(), batch_size=None)


def train(model: TinyModel, optimizer: torch.optim.Optimizer, data: Any) -> None:
    """Windows of two."""
    for place, ids in enumerate(data, 1):
        (token_loss(model(ids), ids) / (2 * TOKENS)).backward()
        if place % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def words(folder: Path) -> list[str]:
    return [entry["events"] for entry in read_records(folder) if entry["record"] == "update"]


def marks(folder: Path) -> list[tuple[str, int, int | None]]:
    return [
        (entry["kind"], entry["attempt_id"], entry["epoch"])
        for entry in read_records(folder)
        if entry["record"] == "mark"
    ]


class Talking(Summary):
    """Counts the verdicts that would be said."""

    said = 0

    def __init__(self) -> None:
        pass

    def close(self, verdict: str | None = None) -> None:
        assert verdict is None
        Talking.said += 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_free_of_hooks_and_says_nothing(tmp_path: Path) -> None:
    """It may train and end; the parent's record and verdict are the parent's."""
    model, optimizer, _ = parts()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        audit._summary = Talking()
        train(model, optimizer, batches(2))
        child = os.fork()
        if child == 0:
            bare = not (session.recorders or model._forward_hooks or optimizer._optimizer_step_pre_hooks)
            train(model, optimizer, batches(2))
            audit.close()
            os._exit(0 if bare and not Talking.said else 1)
        assert os.waitpid(child, 0)[1] == 0
        train(model, optimizer, batches(2))
    assert Talking.said == 1
    assert words(tmp_path) == ["ZFBFBO"] * 2


def test_audits_of_two_models_side_by_side(tmp_path: Path) -> None:
    """Each hears its own loader, and the last one to close takes the patch of their class away."""
    iterate = DataLoader.__iter__
    one, two = parts(), parts()
    first = accumaudit.attach(*one[:2], log_dir=tmp_path / "1", dataloader=one[2], summary=False)
    second = accumaudit.attach(*two[:2], log_dir=tmp_path / "2", dataloader=two[2], summary=False)
    train(*one)
    first.close()
    train(*two)
    train(*two)
    second.close()
    assert DataLoader.__iter__ is iterate
    assert [word.strip("o") for word in words(tmp_path / "1") + words(tmp_path / "2")] == ["ZFBFBO"] * 6
    assert sorted(marks(tmp_path / "1")) == [("close", 2, 1), ("end_of_data", 2, 1)]
    assert [epoch for kind, _, epoch in marks(tmp_path / "2") if kind == "end_of_data"] == [1, 2]


def test_evaluation_in_another_thread_changes_no_word(tmp_path: Path) -> None:
    """A forward there lies in none of here."""
    model, optimizer, _ = parts()
    done = threading.Event()

    def evaluate() -> None:
        with torch.no_grad():
            while not done.is_set():
                model(batches(1)[0])

    thread = threading.Thread(target=evaluate)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        thread.start()
        try:
            train(model, optimizer, batches(60))
        finally:
            done.set()
            thread.join()
    assert words(tmp_path) == ["ZFBFBO"] * 30


def test_iterators_over_the_data(tmp_path: Path) -> None:
    """Broken off, asked again at the end, copied, and an evaluation on the training data."""
    model, optimizer, loader = parts()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, dataloader=loader, summary=False):
        train(model, optimizer, islice(loader, 2))
        iterator = iter(loader)
        train(model, optimizer, iterator)
        assert next(iterator, None) is None
        assert next(copy.copy(iterator), None) is None
        with torch.no_grad():
            train_losses = [token_loss(model(ids), ids) for ids in loader]
    assert len(train_losses) == 4
    assert [(kind, epoch) for kind, _, epoch in marks(tmp_path)] == [
        ("epoch_end", 1),
        ("end_of_data", 2),
        ("close", 2),
    ]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"dataloader": islice([], 1)}, "dataloader is a islice"),
        ({"dataloader": object()}, "dataloader is a object"),
        ({"scheduler": print}, "has no method step"),
    ],
)
def test_what_cannot_be_watched_is_an_error_of_attach(
    option: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """And leaves no trace."""
    model, optimizer, _ = parts()
    with pytest.raises(TypeError, match=text):
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "run", summary=False, **option)
    assert not model._forward_hooks
    assert session.recorders == []
