"""The callback of transformers.Trainer where an engine of DeepSpeed makes the updates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accumaudit.testing import assert_clean
from tests.loops import read_records
from tests.processes import CHECKOUT
from tests.recorded import faults, words
from tests.runtimes.ledgers import judged

pytestmark = pytest.mark.slow  # both frameworks take seconds to import


@pytest.mark.parametrize(("stage", "word"), [(0, "ZFbFbFBCOS"), (2, "ZFBFBFBCOS")])
def test_an_engine_under_a_trainer_is_recorded(stage: int, word: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtimes.hf_engine", str(tmp_path), str(stage)],
        cwd=CHECKOUT,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    recorded, plain = json.loads(done.stdout.splitlines()[-1])
    assert recorded == plain
    [head] = (record for record in read_records(tmp_path) if record["record"] == "run")
    assert (head["runtime"], head["wrapper"]) == ("transformers", f"deepspeed-zero{stage}")
    assert (head["accumulation_steps"], head["max_grad_norm"]) == (3, 1.0)
    assert head["versions"].keys() >= {"transformers", "accelerate", "deepspeed"}
    tail = word.replace(word[1:3], "", 1)
    assert words(tmp_path) == [word, word, tail] * 2
    assert judged(tmp_path).totals == pytest.approx([1.0] * 6, abs=1e-3)
    assert faults(tmp_path) == []
    assert_clean(tmp_path)
