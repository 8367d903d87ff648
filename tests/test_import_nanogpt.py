"""The texts of nanoGPT and its kin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.imported import DATA, imported
from tests.real_logs import real_logs

FOLDER = DATA / "nanogpt"


def write(folder: Path, text: str) -> Path:
    path = folder / "train.log"
    path.write_text(text)
    return path


class TestNanogpt:
    def test_iterations_are_numbered_from_0_and_evaluations_stand_before_theirs(self) -> None:
        log = imported(FOLDER / "chars.output.log")
        assert (log.format, log.count, log.damaged) == ("nanogpt", 8, [])
        assert log.column("attempt_id", "reported_global_step", "reported_loss", "seq")[:3] == [
            (1, 0, 4.18, 3),
            (11, 10, 3.21, 4),
            (21, 20, 2.65, 7),
        ]
        assert log.marks("attempt_id") == [("eval", 0), ("eval", 20), ("eval", 40)]

    def test_the_heading_tells_the_tokens_of_an_update(self) -> None:
        assert imported(FOLDER / "chars.output.log").column("reported_tokens") == [16384.0] * 5

    def test_the_configuration_that_wandb_keeps_beside_it_is_read(self) -> None:
        (run,) = imported(FOLDER / "chars.output.log").runs
        assert run == {
            "runtime": "nanogpt",
            "accumulation_steps": 4,
            "planned_updates": 40,
            "schedule_updates": 40,
            "warmup_updates": 5,
            "schedule": "cosine",
            "peak_learning_rate": 0.001,
            "min_learning_rate": 0.0001,
            "max_grad_norm": 1.0,
            "precision": "bfloat16",
            "recorded_every": 10,
            "started_at": 1.0,
        }

    def test_a_fork_names_the_rate_with_its_evaluations(self) -> None:
        log = imported(FOLDER / "fork.log")
        assert log.column("attempt_id", "learning_rate", "reported_tokens") == [
            (6, None, 8192.0),
            (11, 1e-4, 8192.0),
            (16, None, 8192.0),
        ]
        assert log.count == 5
        assert log.marks("attempt_id", "finished")[-1] == ("close", 16, True)

    def test_units_and_further_numbers_may_follow_the_loss(self) -> None:
        log = imported(FOLDER / "units.log")
        assert log.column("reported_loss", "learning_rate", "grad_norm_before_clip") == [
            (6.15, None, None),
            (4.68, 0.001, 2.31),
        ]
        assert log.marks("attempt_id", "finished") == [("eval", 0, None), ("close", 11, False)]

    def test_a_log_that_was_appended_to_goes_on_from_the_checkpoint(self, tmp_path: Path) -> None:
        lines = [
            f"iter {step}: loss 2.5, time 50.00ms, mfu 7.00%"
            for step in (*range(0, 70, 10), *range(40, 90, 10))
        ]
        lines.insert(7, "step 40: train loss 2.4, val loss 2.6")
        log = imported(write(tmp_path, "\n".join(lines)))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 40]
        assert [row["launch"] for row in log.rows if row["record"] == "mark"] == ["log-2"]

    def test_two_writers_are_no_restart(self, tmp_path: Path) -> None:
        lines = [f"iter {step}: loss 2.5, time 50.00ms" for step in range(0, 100, 10) for _ in range(2)]
        log = imported(write(tmp_path, "\n".join(lines)))
        assert len(log.runs) == 1
        assert log.count == 20

    def test_counters_of_any_length_cost_their_line_alone(self, tmp_path: Path) -> None:
        log = imported(
            write(tmp_path, f"iter 0: loss 2.5\niter {'9' * 400}: loss 2.4\niter 2: loss {'9' * 400}\n")
        )
        assert log.column("attempt_id", "reported_loss") == [(1, 2.5), (3, float("inf"))]
        assert [line for line, _ in log.damaged] == [2]


class TestOthers:
    def test_the_terse_log_of_llmc(self) -> None:
        log = imported(FOLDER / "llmc.log")
        assert (log.format, log.count) == ("llmc", 6)
        assert log.column("attempt_id", "reported_loss", "learning_rate", "grad_norm_before_clip")[-1] == (
            3,
            10.8,
            3e-6,
            14.84,
        )
        assert log.marks("attempt_id") == [("eval", 0), ("eval", 2), ("eval", 3)]

    def test_modded_nanogpt_prints_its_source_first_and_later_no_loss(self) -> None:
        log = imported(FOLDER / "modded.txt")
        assert (log.format, log.count, log.damaged) == ("modded_nanogpt", 7, [])
        assert log.column("attempt_id", "reported_loss") == [(1, 11.0), (2, 10.5), (3, None), (4, None)]
        assert log.marks("attempt_id") == [("eval", 0), ("eval", 2), ("eval", 4), ("close", 4)]
        assert log.runs[0]["planned_updates"] == 4

    @pytest.mark.parametrize(
        ("name", "attempts", "planned"), [("build.log", [1, 2, 3], None), ("columns.log", [1, 2], 40)]
    )
    def test_columns_between_bars(self, name: str, attempts: list[int], planned: int | None) -> None:
        log = imported(FOLDER / name)
        assert log.format == "build_nanogpt"
        assert log.column("attempt_id") == attempts
        assert all(rate and norm for rate, norm in log.column("learning_rate", "grad_norm_before_clip"))
        assert log.runs[0].get("planned_updates") == planned

    def test_a_table_of_evaluations(self) -> None:
        log = imported(FOLDER / "evaluations.csv")
        assert log.column("attempt_id", "learning_rate") == [(1, 7.5e-7), (501, 2.999e-4), (1001, 2.959e-4)]


@pytest.mark.parametrize(
    ("name", "format_", "count", "last"),
    [
        ("modded-2024-06-AdamW.log", "llmc", 9612, 9536),
        ("llmc-main.log", "llmc", 19640, 19560),
        ("modded-2024-10-SOAP.txt", "modded_nanogpt", 6049, 6000),
        ("modded-2024-11-FlexAttention.txt", "modded_nanogpt", 1891, 1875),
        ("modded-2025-02-RuleTweak.txt", "modded_nanogpt", 1786, 1770),
        ("nanogpt-wandb-bn1klkfl.output.log", "nanogpt", 140, 1331),
        ("nanogpt-wandb-mw8ngzqq.output.log", "nanogpt", 522, 5001),
        ("nanogpt-wandb-vgpqdf1r.output.log", "nanogpt", 522, 5001),
        ("seis-train_ctx4k.log", "nanogpt", 817, 8001),
        ("seis-log.csv", "nanogpt_csv", 17, 8001),
    ],
)
def test_real_logs_have_all_their_records(name: str, format_: str, count: int, last: int) -> None:
    log = imported(real_logs() / "nanogpt" / name)
    assert (log.format, log.count, log.damaged) == (format_, count, [])
    assert len(log.runs) == 1
    assert log.column("attempt_id")[-1] == last
