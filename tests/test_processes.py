"""The living pair of processes: it answers, says what went wrong, and comes back after a crash."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.processes import Pair, PairError


def rank_and_sum(number: int) -> list[int]:
    total = torch.tensor(number * (dist.get_rank() + 1))
    dist.all_reduce(total)
    return [dist.get_rank(), int(total)]


def fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise ValueError("as the test asked")
    dist.barrier()


def die() -> None:
    os._exit(3)


def sleep() -> None:
    time.sleep(30)


def test_the_pair_is_one_group_and_runs_one_call_after_another(pair: Pair) -> None:
    assert pair.call("tests.test_processes:rank_and_sum", number=2) == [[0, 6], [1, 6]]
    assert pair.call("tests.test_processes:rank_and_sum", number=3) == [[0, 9], [1, 9]]


@pytest.mark.slow
def test_a_failure_is_told_and_the_pair_replaced(pair: Pair) -> None:
    for function, message in (
        ("fail_on_rank_1", "(?s)rank 1: .*as the test asked"),
        ("die", "the process died"),
        ("sleep", "no answer in time"),
    ):
        with pytest.raises(PairError, match=message):
            pair.call(f"tests.test_processes:{function}", timeout=1.0 if function == "sleep" else 20.0)
    assert pair.call("tests.test_processes:rank_and_sum", number=1) == [[0, 3], [1, 3]]
