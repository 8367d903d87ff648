"""Event files of TensorBoard."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

import pytest

from accumaudit.importers import Log
from accumaudit.importers.formats import epoch_steps, event_file
from accumaudit.importers.records import Records
from accumaudit.ledger.reader import read_ledger
from tests.event_files import event, framed, simple, steps, text, version, write_events
from tests.imported import imported
from tests.real_logs import real_logs
from tests.tables import rows

NAME: Final = "events.out.tfevents.1700000000.host.1.0"
TRAINER: Final = [
    scalar
    for step in (10, 20, 30)
    for scalar in (
        (step, "train/loss", 3.0),
        (step, "train/grad_norm", 1.5),
        (step, "train/learning_rate", 0.5),
        (step, "train/epoch", step / 100),
    )
]


def mae(epochs: int, batches: int, accumulation: int) -> list[int]:
    """The steps that MAE logs: one an update, in thousandths of an epoch."""
    return [
        int((batch / batches + epoch) * 1000)
        for epoch in range(epochs)
        for batch in range(batches)
        if (batch + 1) % accumulation == 0
    ]


class TestScalars:
    @pytest.mark.parametrize("tensors", [False, True])
    def test_the_scalars_of_a_step_are_one_record(self, tmp_path: Path, tensors: bool) -> None:
        log = imported(write_events(tmp_path / NAME, TRAINER, tensors=tensors))
        assert (log.format, log.count, log.damaged) == ("tensorboard", 3, [])
        assert log.column("attempt_id", "reported_loss", "grad_norm_before_clip", "learning_rate", "seq") == [
            (10, 3.0, 1.5, 0.5, 2),
            (20, 3.0, 1.5, 0.5, 6),
            (30, 3.0, 1.5, 0.5, 10),
        ]
        assert log.column("time") == [1000.0, 1004.0, 1008.0]
        assert log.column("reported_epoch")[0] == pytest.approx(0.1)

    def test_the_arguments_of_a_trainer_are_facts_of_the_run(self, tmp_path: Path) -> None:
        arguments = {
            "gradient_accumulation_steps": 4,
            "max_steps": 30,
            "learning_rate": 0.5,
            "max_grad_norm": 1.0,
        }
        events = [event(5.0, 0, text("args/text_summary", json.dumps(arguments)))]
        events += [event(6.0 + step, step, simple(tag, value)) for step, tag, value in TRAINER]
        (tmp_path / NAME).write_bytes(b"".join(map(framed, [version(5.0), *events])))
        (run,) = imported(tmp_path / NAME).runs
        assert run == {
            "runtime": "transformers",
            "accumulation_steps": 4,
            "planned_updates": 30,
            "peak_learning_rate": 0.5,
            "max_grad_norm": 1.0,
            "recorded_every": 10,
            "started_at": 5.0,
        }

    def test_evaluations_and_the_summary_are_marks(self, tmp_path: Path) -> None:
        more = [(20, "eval/loss", 2.0), (20, "eval/runtime", 1.0), (30, "train/train_runtime", 9.0)]
        log = imported(write_events(tmp_path / NAME, [*TRAINER, *more, (30, "train/epoch", 0.3)]))
        assert log.count == 5
        assert log.marks("attempt_id", "finished") == [("eval", 20, None), ("close", 30, True)]

    def test_lightning_counts_from_0(self, tmp_path: Path) -> None:
        scalars = [
            scalar
            for step in (9, 19)
            for scalar in ((step, "lr-AdamW", 0.5), (step, "train_loss_step", 2.0), (step, "epoch", 0.0))
        ]
        log = imported(
            write_events(tmp_path / NAME, [*scalars, (19, "val_loss", 3.0), (19, "train_loss_epoch", 2.0)])
        )
        assert log.column("attempt_id", "reported_global_step", "epoch", "learning_rate") == [
            (10, 9, 1, 0.5),
            (20, 19, 1, 0.5),
        ]
        assert log.marks("attempt_id") == [("eval", 20), ("epoch_end", 20)]
        assert log.runs[0]["runtime"] == "lightning"

    def test_a_rate_that_is_logged_by_epoch_belongs_to_no_step(self, tmp_path: Path) -> None:
        scalars = [
            scalar
            for epoch in range(3)
            for scalar in (*steps("loss", range(10 * epoch, 10 * epoch + 10)), (epoch, "lr", 0.1 * epoch))
        ]
        log = imported(write_events(tmp_path / NAME, scalars))
        assert log.column("attempt_id") == list(range(1, 31))
        assert set(log.column("learning_rate")) == {None}

    def test_a_file_without_a_metric_of_a_training_names_its_tags(self, tmp_path: Path) -> None:
        log = imported(write_events(tmp_path / NAME, [(1, "reward", 1.0), (1, "fps", 30.0)]))
        assert log.damaged == [
            (None, "no tag is that of a loss, a rate or a norm of a training; tags are reward, fps")
        ]


class TestEpochSteps:
    @pytest.mark.parametrize(("batches", "accumulation"), [(250, 16), (31, 4), (84, 1), (83, 8)])
    def test_thousandths_of_an_epoch_are_no_updates(
        self, tmp_path: Path, batches: int, accumulation: int
    ) -> None:
        logged = mae(4, batches, accumulation)
        log = imported(write_events(tmp_path / NAME, steps("train_loss", logged)))
        assert log.column("attempt_id") == list(range(1, len(logged) + 1))
        assert log.column("reported_epoch") == [step / 1000 for step in logged]
        assert set(log.column("reported_global_step")) == {None}

    @pytest.mark.parametrize(
        "logged",
        [
            range(50, 5050, 50),
            [1, *range(10, 5000, 10)],
            [*range(0, 1000, 50), 999, *range(1000, 2000, 50), 1999],
            mae(1, 250, 16),
            mae(4, 40, 1),  # 25 apart, all of them: a number of updates looks the same
        ],
    )
    def test_other_steps_stay_steps(self, logged: list[int]) -> None:
        assert epoch_steps.find(list(logged)) is None

    def test_a_run_that_goes_on_keeps_its_numbers(self) -> None:
        logged = mae(4, 250, 16)
        found = epoch_steps.find(logged[30:])
        assert found is not None
        assert [found.attempt(step) for step in logged[30:]] == list(range(31, 61))


class TestRestarts:
    def test_the_files_of_a_folder_are_one_run_unless_it_starts_over(self, tmp_path: Path) -> None:
        later = NAME.replace("1700000000", "1700000900")
        for folder in ("resumed", "anew", "several"):
            (tmp_path / folder).mkdir()
        done = steps("train/loss", range(10, 60, 10))
        write_events(tmp_path / "resumed" / NAME, done, start=1000.0)
        write_events(tmp_path / "resumed" / later, steps("train/loss", range(40, 90, 10)), start=1900.0)
        write_events(tmp_path / "anew" / NAME, done, start=1000.0)
        write_events(tmp_path / "anew" / later, done, start=1900.0)
        # What stands before the usual name tells runs apart.
        for run in ("a", "b"):
            write_events(tmp_path / "several" / f"{run}.{NAME}", done)
        with read_ledger([tmp_path]) as ledger:
            assert {run_id for run_id, _ in ledger.runs} == {"resumed", "anew", "anew#2", "a", "b"}
            found = rows(
                ledger, "SELECT launch, resumed_from_update, started_at FROM runs WHERE run_id = 'resumed'"
            )
            assert sorted(found) == [(1, None, 1000.0), (2, 30, 1900.0)]

    def test_steps_that_go_back_in_one_file_are_a_restart(self, tmp_path: Path) -> None:
        log = imported(write_events(tmp_path / NAME, [*TRAINER, *TRAINER[4:]]))
        assert [run.get("resumed_from_update") for run in log.runs] == [None, 10]

    def test_a_start_without_any_value_is_a_launch(self, tmp_path: Path) -> None:
        log = imported(write_events(tmp_path / NAME, []))
        assert (log.count, log.damaged, len(log.runs)) == (0, [], 1)


class TestDamage:
    def test_a_file_that_ends_inside_a_record_is_read_up_to_there(self, tmp_path: Path) -> None:
        path = write_events(tmp_path / NAME, TRAINER)
        path.write_bytes(path.read_bytes()[:-3])
        log = imported(path)
        assert log.count == 3
        assert log.damaged == [(None, "the file ends inside record 13; the 12 records before it were read")]

    def test_a_wrong_checksum_costs_its_record(self, tmp_path: Path) -> None:
        path = write_events(tmp_path / NAME, TRAINER)
        data = bytearray(path.read_bytes())
        data[-6] ^= 1
        path.write_bytes(data)
        log = imported(path)
        assert log.damaged == [(13, "the checksum of the record is wrong")]
        assert log.column("reported_loss", "reported_epoch")[-1] == (3.0, None)

    def test_after_a_damaged_length_nothing_is_sure(self, tmp_path: Path) -> None:
        path = write_events(tmp_path / NAME, TRAINER)
        data = bytearray(path.read_bytes())
        second = len(framed(version(0.0)))
        data[second] ^= 8
        path.write_bytes(data)
        log = imported(path)
        assert log.count == 0
        assert log.damaged == [
            (None, f"the length of record 2 (byte {second}) is damaged; the records before it were read")
        ]

    def test_a_record_that_is_no_event_costs_itself(self, tmp_path: Path) -> None:
        path = write_events(tmp_path / NAME, TRAINER)
        path.write_bytes(
            path.read_bytes() + framed(b"\xff\xff\xff") + framed(event(1.0, 40, simple("train/loss", 1.0)))
        )
        log = imported(path)
        assert log.damaged == [(14, "the record is no event")]
        assert log.column("attempt_id")[-1] == 40

    @pytest.mark.parametrize("step", [-5, 2**53 + 1, 2**63 - 1])
    def test_a_step_that_is_no_count_costs_its_record(self, tmp_path: Path, step: int) -> None:
        scalars = [*TRAINER, (step, "train/loss", 1.0), (step, "eval/loss", float("nan"))]
        log = imported(write_events(tmp_path / NAME, scalars))
        assert 30 in log.column("attempt_id")
        assert [why for _, why in log.damaged] == [f"the step {step} is no count of updates"]

    def test_compressed_files_are_read(self, tmp_path: Path) -> None:
        path = write_events(tmp_path / NAME, TRAINER)
        path.write_bytes(gzip.compress(path.read_bytes()))
        assert imported(path).count == 3


@pytest.mark.parametrize(
    ("name", "scalars", "count", "last"),
    [
        ("swift-ga1-gbs4", 158, 31, 30),
        ("swift-ga4-gbs16", 158, 31, 30),
        ("swift-ga8-gbs32", 7, 1, 1),
        ("swift-ga16-gbs64", 158, 31, 30),
        ("swift-ds-first", 108, 21, 20),
        ("chatglm-qlora", 8, 1, None),
        ("mae-output_anime", 186, 93, 93),
        ("mae-output_animediffusion", 100, 50, 50),
        ("mae-output_animediffusion_mask25", 140, 70, 70),
        ("mae-output_dir.events.out.tfevents.1760915331", 0, 0, None),
        ("mae-output_dir.events.out.tfevents.1760915448", 0, 0, None),
        ("mae-output_dir.events.out.tfevents.1760915525", 0, 0, None),
        ("mae-output_image_repair_v1", 600, 300, 300),
        ("mae-output_m4.events.out.tfevents.1761525572", 0, 0, None),
        ("mae-output_m4.events.out.tfevents.1761525674", 28, 14, 14),
        ("mae-output_no_norm_pix", 200, 100, 100),
    ],
)
def test_real_files_have_all_their_scalars(name: str, scalars: int, count: int, last: int | None) -> None:
    (path,) = (real_logs() / "tfevents").glob(f"{name}.*")
    values = list(event_file.values(Log(path), Records(lambda _: None)))
    assert len(values) == scalars  # texts among them
    log = imported(path)
    assert (log.format, log.count, log.damaged) == ("tensorboard", count, [])
    assert (log.column("attempt_id") or [None])[-1] == last
