"""The texts of engines that other people's trainings wrote."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from accumaudit import importers
from accumaudit.engine.evidence import RunFacts, run_facts
from accumaudit.ledger.reader import read_ledger
from tests.imported import imported
from tests.real_logs import real_logs

COUNTS = {
    "deepspeed": {
        "bs-hf-ds-perf-n16-bs4.out": 3,
        "mds-launcher-static1005.log": 21,
        "dschat-step1-opt1.3b-gbs128.log": 736,
        "dschat-step2-dpo-opt350m-gbs32.log": 236,
    },
    "fairseq": {"mhmoe-train.log": 340, "mhmoe-test.log": 2},
    "megatron": {
        "bs-meg-n4.out": 20,
        "bs-meg-n8.out": 20,
        "bs-meg-n64.out": 6,
        "bs-meg-perf-n16.out": 3,
        "bs-megds-ds-off.out": 62,
        "bs-megds-zero-n16.out": 4,
        "mds-qwen7b-baseline-500.log": 500,
        "mds-4runs-concatenated.log": 80,
        "mds-watch-recollect-restart.log": 35,
        "mds-qwen25-7b-finetune-20.log": 20,
    },
    "torchtitan": {
        "titan-run113-gradacc2.log": 2,
        "titan-run116-gradacc4-rerun.log": 2,
        "titan-run217-nocolor-logfreq1.log": 10,
        "titan-run359-mxfp8-logfreq1.log": 10,
        "titan-run101-lbs161.log": 2,
        "titan-run105-lbs240.log": 1,
    },
    "logbook": {
        "bloom-tr8-104B.chronicles.md": 19,
        "bloom-tr11-176B.chronicles.md": 18,
        "bloom-tr11-176B.chronicles-prequel.md": 6,
        "bloom-tr1-13B.chronicles.md": 10,
    },
}
LOSSES = {"titan-llama3_cuda-0b39f2.losses.txt": 100, "titan-llama3_rocm-1a1d3c.losses.txt": 100}

FACTS = {
    # attempts and skips, and what sets the accumulation
    "deepspeed/dschat-step1-opt1.3b-gbs128.log": (7360, 139, 1),
    "deepspeed/dschat-step2-dpo-opt350m-gbs32.log": (2350, 21, 2),
    "fairseq/mhmoe-train.log": (17_097, 97, 8),
    "megatron/bs-meg-n4.out": (200, 19, 4),
    "megatron/bs-meg-n8.out": (200, 19, 4),
    "megatron/bs-meg-n64.out": (60, 19, 4),
    "megatron/bs-meg-perf-n16.out": (3, 3, 256),
    "megatron/mds-qwen25-7b-finetune-20.log": (20, 0, 2),
    "torchtitan/titan-run113-gradacc2.log": (10, 0, 2),
    "torchtitan/titan-run116-gradacc4-rerun.log": (10, 0, 4),
}


@cache
def facts(folder: Path) -> dict[str, tuple[RunFacts, int | None]]:
    """The attempts and skips of each run, and its accumulation; all files are read at once."""
    with read_ledger([folder / name for name in FACTS]) as ledger:
        found = run_facts(ledger.connection)
        steps = dict(ledger.connection.execute("SELECT run_id, accumulation_steps FROM runs").fetchall())
    return {run_id: (one, steps[run_id]) for run_id, one in found.items()}


class TestRealEngines:
    @pytest.mark.parametrize(
        ("folder", "name"), [(folder, name) for folder in COUNTS for name in COUNTS[folder]]
    )
    def test_every_record_is_found(self, folder: str, name: str) -> None:
        log = imported(real_logs() / folder / name)
        assert (log.format, log.count, log.damaged) == (folder, COUNTS[folder][name], [])

    @pytest.mark.parametrize("name", LOSSES)
    def test_lists_of_losses(self, name: str) -> None:
        log = imported(real_logs() / "torchtitan" / name)
        assert (log.format, log.count, log.damaged) == ("torchtitan_losses", LOSSES[name], [])

    @pytest.mark.parametrize("name", ["fairseq/mhmoe-test_bug.log", "torchtitan/titan-run75-crash.log"])
    def test_a_crash_before_the_first_step_is_no_log(self, name: str) -> None:
        recognised = importers.recognise(importers.Log(real_logs() / name))
        assert recognised.format is None
        assert recognised.looks_like.startswith("it looks like a crash before the first step")

    @pytest.mark.parametrize("name", FACTS)
    def test_attempts_skips_and_accumulation(self, name: str) -> None:
        found, steps = facts(real_logs())[Path(name).name]
        assert (found.attempts, found.skipped, steps) == FACTS[name]

    def test_overflows_are_told_apart_from_updates(self) -> None:
        log = imported(real_logs() / "fairseq" / "mhmoe-train.log")
        attempts, updates = log.column("attempt_id", "optimizer_update_id")[-1]
        assert attempts - updates == 97

    def test_a_skipped_window_has_no_loss(self) -> None:
        log = imported(real_logs() / "megatron" / "bs-meg-n4.out")
        first, second, third = log.column("optimizer_step_skipped", "optimizer_update_id", "reported_loss")[
            :3
        ]
        assert first == (True, 0, None)
        assert second[:2] == (None, 2)
        assert third[:2] == (None, 11)

    @pytest.mark.parametrize(
        ("name", "ends"), [("mds-4runs-concatenated.log", [20] * 4), ("bs-meg-n4.out", [200])]
    )
    def test_where_runs_end(self, name: str, ends: list[int]) -> None:
        log = imported(real_logs() / "megatron" / name)
        finished = len(ends) > 1  # the other was killed
        closes = [mark for mark in log.marks("attempt_id", "finished") if mark[0] == "close"]
        assert closes == [("close", end, finished) for end in ends]
