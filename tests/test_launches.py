"""Launches, resumes, new runs in the same folder, and records that are there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumaudit.ledger.reader import read_ledger
from tests.records import START, Record, build_run, to_line, write_records, write_run
from tests.tables import column, query, windows

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


class TestLaunches:
    def test_ranks_that_start_within_ten_minutes_are_one_launch(self, tmp_path: Path) -> None:
        late = {1: {"started_at": START + 599.0}}
        run = write_run(tmp_path / "run", 2, on=late)
        assert query(run, "SELECT launch, launch_token, rank FROM runs ORDER BY ALL") == [
            (1, "aaaa", 0),
            (1, "aaaa", 1),
        ]

    def test_a_resume_is_the_next_launch_and_its_updates_count(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 5, close=False, launch="b-later-in-the-alphabet")
        resumed: Record = {"optimizer_state_step_at_attach": 3, "scheduler_step_at_attach": 3}
        write_run(run, 4, launch="a", first_update=4, started_at=START + 100, **resumed)
        assert query(run, "SELECT DISTINCT launch, launch_token FROM runs ORDER BY ALL") == [
            (1, "b-later-in-the-alphabet"),
            (2, "a"),
        ]
        assert windows(run, "launch, attempt_id, optimizer_update_id") == [
            (1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 4), (2, 2, 5), (2, 3, 6), (2, 4, 7),
        ]  # fmt: skip
        superseded = "SELECT launch, rank, optimizer_update_id FROM superseded ORDER BY ALL"
        assert query(run, superseded) == [(1, 0, 4), (1, 0, 5), (1, 1, 4), (1, 1, 5)]

    def test_a_resume_that_begins_with_a_skip(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 5)
        write_run(run, [{"skipped": True}, {}], launch="b", first_update=4, started_at=START + 100,
                  optimizer_state_step_at_attach=3)  # fmt: skip
        assert windows(run, "launch, optimizer_update_id, applied") == [
            (1, 1, True), (1, 2, True), (1, 3, True), (2, 3, False), (2, 4, True),
        ]  # fmt: skip

    def test_a_resume_whose_ids_start_again_supersedes_by_what_was_declared(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 5)
        write_run(run, 2, launch="b", started_at=START + 100, resumed_from_update=4)
        assert windows(run, "launch, optimizer_update_id") == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]

    def test_a_resume_of_unknown_place_supersedes_nothing(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 5)
        write_run(run, 2, launch="b", started_at=START + 100, scheduler_step_at_attach=4)
        assert len(windows(run, "1")) == 7

    @pytest.mark.parametrize("declared", [False, True])
    def test_a_launch_that_starts_over_is_a_new_run_unless_it_says_otherwise(
        self, tmp_path: Path, declared: bool
    ) -> None:
        run = write_run(tmp_path / "run", 3)
        marks = [{"kind": "declare", "name": '{"resumed_from_update": 3}'}] if declared else []
        write_run(run, 2, launch="b", started_at=START + 100, marks=marks)
        write_run(
            run, 1, launch="c", started_at=START + 900, first_update=3, optimizer_state_step_at_attach=2
        )
        runs = "SELECT DISTINCT run_id, launch, launch_token, path FROM runs ORDER BY ALL"
        if declared:
            assert [row[:3] for row in query(run, runs)] == [
                ("run", 1, "aaaa"),
                ("run", 2, "b"),
                ("run", 3, "c"),
            ]
            return
        assert query(run, runs) == [
            ("run", 1, "aaaa", str(run)),
            ("run#2", 1, "b", str(run)),
            ("run#2", 2, "c", str(run)),
        ]
        with read_ledger([run]) as ledger:
            assert ledger.runs == [("run", str(run)), ("run#2", str(run))]

    def test_a_crash_before_the_first_update_is_no_run(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 0)
        write_run(run, 2, launch="b", started_at=START + 100)
        assert windows(run, "run_id, launch") == [("run", 2)] * 2

    def test_the_name_of_a_new_run_is_free(self, tmp_path: Path) -> None:
        write_run(tmp_path / "run", 1)
        write_run(tmp_path / "run", 1, launch="b", started_at=START + 100)
        write_run(tmp_path / "run#2", 1)
        with read_ledger([tmp_path]) as ledger:
            assert [run_id for run_id, _ in ledger.runs] == ["run", "run#3", "run#2"]

    def test_a_quick_restart_with_the_same_token_is_another_launch(self, tmp_path: Path) -> None:
        """Both wrote to the same files; the rank that starts again tells them apart."""
        run = write_run(tmp_path / "run", 3, close=False)
        write_run(run, 2, first_update=3, started_at=START + 60, optimizer_state_step_at_attach=2)
        assert windows(run, "launch, attempt_id, optimizer_update_id") == [
            (1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4),
        ]  # fmt: skip
        assert query(run, "SELECT count(*) FROM duplicates") == [(0,)]

    def test_a_late_restart_with_the_same_token_is_another_launch(self, tmp_path: Path) -> None:
        records = build_run(2)
        run = write_records(tmp_path / "run", {0: records[0]})
        later = build_run(2, started_at=START + 601, optimizer_state_step_at_attach=2, first_update=3)
        write_records(run, {1: later[1]})
        assert query(run, "SELECT launch, rank FROM runs ORDER BY ALL") == [(1, 0), (2, 1)]

    def test_all_ranks_in_one_file(self, tmp_path: Path) -> None:
        resumed: Record = {"started_at": START + 60, "optimizer_state_step_at_attach": 3}
        launches = [build_run(3, 3), build_run(2, 3, first_update=4, **resumed)]
        lines = [line for launch in launches for records in launch.values() for line in records]
        path = tmp_path / "all.jsonl"
        path.write_text("".join(map(to_line, lines)))
        assert windows(path, "launch, optimizer_update_id, ranks") == [
            (1, 1, 3),
            (1, 2, 3),
            (1, 3, 3),
            (2, 4, 3),
            (2, 5, 3),
        ]

    def test_records_whose_run_line_is_lost_join_the_launch_of_their_token(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2, close=False)
        write_run(
            run, 2, launch="b", first_update=3, started_at=START + 100, optimizer_state_step_at_attach=2
        )
        for launch in ("aaaa", "b"):
            path = run / f"rank-00/00001.{launch}.jsonl"
            path.write_text("\n".join(path.read_text().splitlines()[1:]))
        assert windows(run, "launch, ranks, weight_cause") == [(1, 2, "right")] * 2 + [(2, 2, "right")] * 2


class TestDuplicates:
    def test_records_beyond_the_first_stand_apart(self, tmp_path: Path) -> None:
        records = build_run(3)
        again = records[0][2] | {"learning_rate": 9.0}
        run = write_records(tmp_path / "run", {0: [*records[0], again, again], 1: records[1]})
        assert query(run, "SELECT attempt_id, rank, line, learning_rate FROM duplicates ORDER BY line") == [
            (2, 0, 6, 9.0),
            (2, 0, 7, 9.0),
        ]
        assert query(run, "SELECT count(*), max(learning_rate) < 1 FROM updates") == [(6, True)]

    def test_a_copied_file_is_no_launch(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3)
        path = run / "rank-00/00001.aaaa.jsonl"
        path.with_name("00001.aaaa (copy).jsonl").write_bytes(path.read_bytes())
        assert query(run, "SELECT count(*), max(launch) FROM runs") == [(2, 1)]
        assert query(run, "SELECT attempt_id, rank FROM duplicates ORDER BY ALL") == [(1, 1), (2, 1), (3, 1)]
        assert column(run, "weight_cause") == ["right"] * 3

    def test_ids_that_go_backward_lose_nothing(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"attempt_id": attempt} for attempt in (1, 2, 5, 3, 4, 3)])
        assert column(run, "attempt_id") == [1, 2, 3, 4, 5]
        assert query(run, "SELECT count(*) FROM duplicates") == [(2,)]
