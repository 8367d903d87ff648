"""Trainings in threads of their own, and threads that train something else."""

from __future__ import annotations

import _thread
import threading
from pathlib import Path

import pytest
import torch

import accumaudit
from accumaudit.hooks.session import session
from tests.loops import TOKENS, TinyModel, batches, token_loss, total_weight
from tests.recorded import updates, words

pytestmark = pytest.mark.usefixtures("no_hook_faults")


def test_threads_that_are_not_the_program_s_work_for_it(tmp_path: Path) -> None:
    """Autograd's own are such, also when something in them has asked for the current thread."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[bool] = []

    def look() -> None:
        threading.current_thread()  # as logging does: it enters a dummy among the threads
        seen.append(session.is_foreign)
        done.release()

    done = threading.Lock()
    done.acquire()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        _thread.start_new_thread(look, ())
        assert done.acquire(timeout=10)
        ours = threading.Thread(target=lambda: seen.append(session.is_foreign))
        ours.start()
        ours.join()
    assert seen == [False, True]


def test_what_another_thread_trains_is_none_of_this_run(tmp_path: Path) -> None:
    """Its backwards run while the attached model is trained, and leave no trace."""
    own, stranger = TinyModel(), TinyModel()
    optimizer, ids = torch.optim.AdamW(own.parameters()), batches(1)[0]
    stop = threading.Event()

    def train_stranger() -> None:
        while not stop.is_set():
            stranger.zero_grad()
            token_loss(stranger(ids), ids).backward()

    other = threading.Thread(target=train_stranger)
    with accumaudit.attach(own, optimizer, log_dir=tmp_path, summary=False):
        other.start()
        for _ in range(60):
            (token_loss(own(ids), ids) / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()
        stop.set()
        other.join()
    assert words(tmp_path) == ["ZFBO"] * 60
    assert [total_weight(entry) for entry in updates(tmp_path)] == pytest.approx([1.0] * 60)


@pytest.mark.parametrize("forward_seen", [True, False])
def test_a_training_in_a_thread_of_its_own_is_recorded(tmp_path: Path, forward_seen: bool) -> None:
    """Where attach was called in another; without a forward the first step tells which thread it is."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for ids in batches(3):
            loss = token_loss(model(ids), ids) if forward_seen else model.compute_loss(ids)
            (loss / TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()

    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        worker = threading.Thread(target=train)
        worker.start()
        worker.join()
    assert words(tmp_path) == ["ZFBO" if forward_seen else "ZBO"] * 3
    weights = [total_weight(entry) for entry in updates(tmp_path)]
    assert weights[1:] == pytest.approx([1.0, 1.0])
    assert weights[0] == (pytest.approx(1.0) if forward_seen else None)
