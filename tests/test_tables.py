"""The tables that the rules speak of, from hand-made ledgers: complete, three-valued, locked."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.ledger import loading
from accumaudit.ledger.columns import TYPES
from accumaudit.ledger.reader import read_ledger
from accumaudit.ledger.schema import FIELDS
from tests.records import Record, build_run, to_line, write_records, write_run
from tests.tables import Rows, by_rank, column, query, windows, windows_by_run

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


class TestSchema:
    @pytest.mark.parametrize(("table", "fields"), [(f"{kind}s", fields) for kind, fields in FIELDS.items()])
    def test_every_field_is_a_column_of_its_type(
        self, tmp_path: Path, table: str, fields: Iterable[Any]
    ) -> None:
        """`launch` is the number, and the token stands beside it; the probe is as precise as gradients."""
        described = query(write_run(tmp_path / "run", 1), f"DESCRIBE {table}")
        types = {row[0]: row[1] for row in described}
        plain = {name: kind.replace('"', "").upper() for name, kind in types.items()}
        for field in fields:
            if field.name == "probe_gradient":
                assert plain[field.name] == "FLOAT[]"
            elif field.name != "launch":
                assert plain[field.name] == field.type.replace('"', "").upper()
            if field.type in ("DOUBLE", "DOUBLE[]") or field.name == "window_sums":
                assert types[f"{field.name}_nonfinite"] == "BOOLEAN"
        assert types["launch"] == "BIGINT"
        assert types["launch_token"] == "VARCHAR"

    def test_an_empty_run_has_all_tables(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 0)
        for table in ("updates", "microbatches", "windows", "duplicates", "superseded"):
            assert query(run, f"SELECT count(*) FROM {table}") == [(0,)]
        assert query(run, "SELECT count(*) FROM runs") == [(2,)]
        assert query(run, "SELECT kind, finished FROM marks") == [("close", True)] * 2

    @pytest.mark.parametrize("small", [True, False])
    def test_nothing_else_is_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
        """The updates of a large ledger stay where they were read, behind views."""
        monkeypatch.setattr(loading, "PART", 2**40 if small else 0)
        sql = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'main'"
        kinds = {str(name): kind for name, kind in query(write_run(tmp_path / "run", 1), sql)}
        views = {"duplicates", "superseded", "updates"}
        assert kinds.keys() == {"marks", "microbatches", "positions", "runs", "schedules", "windows", *views}
        seen = {name for name, kind in kinds.items() if kind == "VIEW"}
        assert seen == {"microbatches"} | (set() if small else views)


class TestLock:
    """Rules and `sql` run on tables alone."""

    @pytest.mark.parametrize(
        "statement",
        [
            "COPY windows TO '{0}/out.csv'",
            "SELECT * FROM read_text('{0}/secret')",
            "SELECT * FROM '{0}/secret.csv'",
            "ATTACH '{0}/x.db'",
            "INSTALL httpfs",
            "LOAD httpfs",
            "SET enable_external_access = true",
            "SET threads = 1",
            "EXPORT DATABASE '{0}/dump'",
        ],
    )
    def test_nothing_outside_can_be_reached(self, tmp_path: Path, statement: str) -> None:
        (tmp_path / "secret").write_text("secret")
        run = write_run(tmp_path / "run", 1)
        before = sorted(tmp_path.rglob("*"))
        with read_ledger([run]) as ledger, pytest.raises(Exception, match=r"(?i)disabled|locked|permission"):
            ledger.connection.execute(statement.format(tmp_path)).fetchall()
        assert sorted(tmp_path.rglob("*")) == before

    def test_python_s_variables_are_no_tables(self, tmp_path: Path) -> None:
        secret = [1, 2, 3]
        with (
            read_ledger([write_run(tmp_path / "run", 1)]) as ledger,
            pytest.raises(Exception, match="secret"),
        ):
            ledger.connection.execute("SELECT * FROM secret").fetchall()
        assert secret


class TestRuns:
    def test_what_is_declared_later_is_folded_in(self, tmp_path: Path) -> None:
        declared = {"planned_updates": 500, "peak_learning_rate": 2e-3, "schedule_unit": "epochs"}
        marks: list[Record] = [
            {"kind": "declare", "name": json.dumps({"planned_updates": 400})},
            {"kind": "declare", "name": json.dumps(declared)},
            {"kind": "declare", "name": json.dumps({"warmup_updates": "many"})},
            {"kind": "declare", "name": "no JSON"},
            {"kind": "declare", "name": "2024-01-01"},
            {"kind": "declare", "name": None},
        ]
        run = write_run(tmp_path / "run", 1, marks=marks, warmup_updates=10, planned_updates=300)
        columns = "planned_updates, warmup_updates, peak_learning_rate, schedule_unit"
        assert query(run, f"SELECT DISTINCT {columns} FROM runs") == [(500, 10, 2e-3, "epochs")]

    def test_a_lost_run_line_takes_what_the_launch_shares(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2)
        path = run / "rank-00/00001.aaaa.jsonl"
        path.write_text("torn" + path.read_text()[40:])
        columns = "rank, world_size, gradient_divisor, data_parallel_rank, tokens_rank, started_at IS NULL"
        assert query(run, f"SELECT {columns} FROM runs ORDER BY rank") == [
            (0, 2, 2.0, 0, True, False),
            (1, 2, 2.0, 1, True, True),
        ]
        assert column(run, "weight_cause") == ["right", "right"]

    def test_without_any_run_line_nothing_is_known_but_the_records(self, tmp_path: Path) -> None:
        records = build_run(2)
        run = write_records(tmp_path / "run", {rank: lines[1:] for rank, lines in records.items()})
        assert query(run, "SELECT launch, rank, world_size, token_ranks FROM runs ORDER BY rank") == [
            (1, 0, None, None),
            (1, 1, None, None),
        ]
        columns = "ranks, complete, ranks_missing, total_weight, valid_tokens, applied"
        assert windows(run, columns) == [(2, None, None, None, None, True)] * 2


class TestLayouts:
    """Sums go over data, context and sequence coordinates, one of each tensor group, in the loss's stage."""

    AXES = ("pipeline", "data_parallel", "context", "sequence", "tensor")

    def write(self, folder: Path, sizes: Sequence[int], loss_stage: int = -1, **fields: Any) -> Path:
        """A run with these sizes of the axes; ranks count from the last axis up."""
        world = 1
        for size in sizes:
            world *= size
        on: dict[int, Record] = {}
        for rank, place in enumerate(itertools.product(*map(range, sizes))):
            on[rank] = {f"{axis}_rank": at for axis, at in zip(self.AXES, place, strict=True)}
        declared: Record = {f"{axis}_size": size for axis, size in zip(self.AXES, sizes, strict=True)}
        declared["gradient_divisor"] = float(sizes[1] * sizes[2] * sizes[3])
        declared |= fields
        run = write_run(folder, 2, ranks=world, on=on, **declared)
        stage = loss_stage % sizes[0]
        for rank, coordinates in on.items():
            if coordinates["pipeline_rank"] != stage:
                self.forget_loss(run / f"rank-00/{rank:05d}.aaaa.jsonl")
        return run

    def forget_loss(self, path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for name in ("valid_tokens", "loss_weight", "loss_weight_sq", "weight_uniform", "loss"):
                if name in line:
                    line[name] = None
        path.write_text("".join(map(to_line, lines)))

    def test_token_ranks(self, tmp_path: Path) -> None:
        cases = {
            (1, 4, 1, 1, 1): 4,
            (1, 2, 1, 1, 3): 2,
            (1, 2, 2, 1, 1): 4,
            (1, 1, 1, 3, 1): 3,
            (2, 2, 1, 1, 1): 2,
            (2, 2, 2, 1, 2): 4,
            (3, 1, 1, 1, 2): 1,
        }
        for sizes in cases:
            self.write(tmp_path / str(sizes), sizes)
        counted = "SELECT run_id, max(world_size), count_if(tokens_rank) FROM runs GROUP BY run_id"
        assert {run_id: tuple(counts) for run_id, *counts in query(tmp_path, counted)} == {
            str(sizes): (math.prod(sizes), ranks) for sizes, ranks in cases.items()
        }
        assert windows_by_run(tmp_path, "token_ranks, complete, weight_cause, ranks_missing") == {
            str(sizes): [(ranks, True, "right", [])] * 2 for sizes, ranks in cases.items()
        }

    def test_the_loss_may_be_in_another_stage(self, tmp_path: Path) -> None:
        """A pipeline in the shape of a V ends where it began."""
        run = self.write(tmp_path / "run", (2, 1, 1, 1, 1), loss_stage=0)
        assert query(run, "SELECT pipeline_rank FROM runs WHERE tokens_rank") == [(0,)]

    def test_a_tensor_group_is_heard_through_any_of_its_ranks(self, tmp_path: Path) -> None:
        run = self.write(tmp_path / "run", (1, 2, 1, 1, 2))
        (run / "rank-00/00000.aaaa.jsonl").unlink()
        assert query(run, "SELECT rank FROM runs WHERE tokens_rank ORDER BY rank") == [(1,), (2,)]
        assert windows(run, "complete, ranks_missing") == [(True, [0])] * 2

    def test_parts_of_a_sample_share_its_rows(self, tmp_path: Path) -> None:
        run = self.write(tmp_path / "run", (1, 2, 2, 1, 1))
        assert windows(run, "samples, input_positions") == [(2 * 4 * 4, 4 * 4 * 256)] * 2

    def test_a_size_that_is_not_known_follows_from_the_world(self, tmp_path: Path) -> None:
        run = self.write(tmp_path / "run", (1, 2, 1, 1, 2), data_parallel_size=None)
        assert query(run, "SELECT DISTINCT token_ranks FROM runs") == [(2,)]

    def test_sizes_that_do_not_divide_the_world_are_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, data_parallel_size=None, tensor_size=3)
        assert windows(run, "token_ranks, complete, total_weight") == [(None, None, None)]
        run = write_run(tmp_path / "zero", 1, data_parallel_size=None, tensor_size=0, world_size=0)
        assert windows(run, "complete") == [(None,)]


class TestWords:
    def test_repeated_groups_are_written_out(self, tmp_path: Path) -> None:
        words: dict[str | None, str | None] = {
            "ZfbFBO": "ZfbFBO",
            "Zfb{fb}61fbFBO": "Z" + "fb" * 63 + "FBO",
            "S{S}998SZFBO": "S" * 1000 + "ZFBO",
            "ZFB{FB}3FBO{S}2S": "ZFBFBFBFBFBOSSS",
            "{fb}0fb": "fb",
            "(ZFB)O": "(ZFB)O",
            "": "",
            None: None,
            "fb{fb}FB": None,
            "fb{fbFB": None,
            "fb}61FB": None,
            "fb{f{b}2}3FB": None,
            "fb{fb}99999999999999999999FB": None,
            "fb{fb}9999999FB": None,
            "{fb}1999999{fb}1999999": None,
            "{}3fb": "fb",
        }
        run = write_run(tmp_path / "run", [{"events": events} for events in words])
        assert dict(query(run, "SELECT DISTINCT events, word FROM updates")) == words
        assert column(run, "word") == [*words.values()]

    def test_a_closure_is_seen(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"events": "(ZFBZFB)O"}, {}, {"events": None}])
        assert query(run, "SELECT DISTINCT closure FROM updates ORDER BY attempt_id") == [
            (True,),
            (False,),
            (None,),
        ]
        assert column(run, "closure") == [True, False, None]

    def test_the_word_of_a_window_is_that_of_the_lowest_rank_that_has_one(self, tmp_path: Path) -> None:
        run = write_run(
            tmp_path / "run", [by_rank({"events": None}, {"events": "b"}, {"events": "a"})], ranks=3
        )
        assert column(run, "word") == ["b"]


class TestMicrobatches:
    def test_a_row_per_micro_step(self, tmp_path: Path) -> None:
        update = {
            "microbatches": 3, "valid_tokens": [4.0, 0.0, 2.0], "loss_weight": [1.0, 0.0, 1.0],
            "data_digest": ["x", "y", "z"],
        }  # fmt: skip
        run = write_run(tmp_path / "run", [update], ranks=1)
        columns = (
            "micro_step, microbatches, n, loss_weight, w, data_digest, weight_uniform, applied, tokens_rank"
        )
        assert query(run, f"SELECT {columns} FROM microbatches ORDER BY micro_step") == [
            (1, 3, 4.0, 1.0, 0.25, "x", True, True, True),
            (2, 3, 0.0, 0.0, None, "y", True, True, True),
            (3, 3, 2.0, 1.0, 0.5, "z", True, True, True),
        ]

    def test_lists_that_were_not_recorded_are_unknown(self, tmp_path: Path) -> None:
        lists = ("valid_tokens", "loss_weight", "loss", "samples", "input_positions", "data_digest")
        run = write_run(tmp_path / "run", [dict.fromkeys(lists, None) | {"microbatches": 4}], ranks=1)
        assert query(run, "SELECT micro_step, n, w, loss FROM microbatches ORDER BY ALL") == [
            (step, None, None, None) for step in (1, 2, 3, 4)
        ]

    def test_a_window_without_micro_steps_has_no_row_and_no_tokens(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"microbatches": 0}], ranks=1)
        assert query(run, "SELECT count(*) FROM microbatches") == [(0,)]
        assert windows(run, "microbatches, valid_tokens, total_weight, weight_cause") == [
            (0, None, None, None)
        ]

    def test_an_unknown_number_of_micro_steps_gives_none(self, tmp_path: Path) -> None:
        lists = dict.fromkeys(name for name, kind in TYPES.items() if kind.endswith("[]"))
        run = write_run(tmp_path / "run", [lists | {"microbatches": None, "loss_terms": None}], ranks=1)
        assert query(run, "SELECT count(*) FROM microbatches") == [(0,)]

    def test_an_absurd_count_makes_no_absurd_table(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, ranks=1, world_size=2**52)
        path = run / "rank-00/00000.aaaa.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[1] |= {name: None for name in lines[1] if isinstance(lines[1][name], list)} | {
            "microbatches": 2**52
        }
        path.write_text("".join(map(to_line, lines)))
        assert query(run, "SELECT count(*) FROM microbatches") == [(65536,)]
        assert windows(run, "ranks_missing, complete") == [(None, False)]


class TestProperties:
    """What holds for every ledger, tried on many at random."""

    def random_updates(self, dice: random.Random, ranks: int) -> list[dict[str, Any]]:
        updates = []
        for _ in range(6):
            count = dice.choice([1, 2, 4])
            on = {
                rank: {"valid_tokens": [float(dice.randrange(500)) for _ in range(count)]}
                for rank in range(ranks)
            }
            on[0]["valid_tokens"][0] += 1.0
            updates.append({"on": on, "microbatches": count, "skipped": dice.random() < 0.2})
        return updates

    @pytest.mark.parametrize("seed", range(5))
    def test_equal_weights_are_right_however_tokens_are_spread(self, tmp_path: Path, seed: int) -> None:
        dice = random.Random(seed)
        ranks = dice.choice([1, 2, 5])
        run = write_run(tmp_path / "run", self.random_updates(dice, ranks), ranks=ranks)
        for applied, *found in windows(
            run, "applied, total_weight, distortion_min, distortion_max, equivalent_batch / valid_tokens"
        ):
            assert found == ([pytest.approx(1.0)] * 4 if applied else [None] * 4)

    def rounded(self, rows: Rows) -> Rows:
        """Sums depend on their order in the last digits."""
        return [tuple(round(v, 9) if isinstance(v, float) else v for v in row) for row in rows]

    @pytest.mark.parametrize("seed", range(3))
    def test_the_order_of_files_and_lines_changes_nothing(self, tmp_path: Path, seed: int) -> None:
        dice = random.Random(seed)
        updates = self.random_updates(dice, 3)
        for update in updates:
            update["total_weight"] = dice.choice([1.0, 0.5, 4.0, 0.7])
        records = build_run(updates, 3)
        expected = self.rounded(windows(write_records(tmp_path / "run", records), "*"))
        mixed = [line for lines in records.values() for line in lines]
        dice.shuffle(mixed)
        path = tmp_path / "run.jsonl"
        path.write_text("".join(map(to_line, mixed)))
        assert self.rounded(windows(path, "*")) == expected

    @pytest.mark.parametrize("seed", range(3))
    def test_any_field_may_be_missing_anywhere(self, tmp_path: Path, seed: int) -> None:
        """Nothing raises, and no record that can be joined is lost."""
        dice = random.Random(seed)
        records = build_run(self.random_updates(dice, 3), 3, marks=[{"kind": "end_of_data"}])
        required = {"record"} | {f.name for fields in FIELDS.values() for f in fields if f.required}
        junk: list[Any] = [None, ..., "x", -1, 2**60, 1e308, float("nan"), [], {}, [None], [[]], True, ""]
        for line in itertools.chain.from_iterable(records.values()):
            for name in [name for name in line if name not in required and dice.random() < 0.3]:
                line[name] = dice.choice(junk)
                if line[name] is ...:
                    del line[name]
        run = write_records(tmp_path / "run", records)
        assert query(run, "SELECT count(*) FROM updates") == [(18,)]
        assert len(windows(run, "*")) == 6
