"""Whatever is done to a log, it is read as far as it goes, or a message says why not."""

from __future__ import annotations

import gzip
import math
import os
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from accumaudit import importers
from accumaudit.engine import check_paths
from accumaudit.importers import Log, arrow
from accumaudit.importers.records import MOST_LAUNCHES
from accumaudit.ledger.reader import LedgerError, read_ledger
from tests import fuzzing
from tests.fuzzing import MUTATIONS

pytestmark = pytest.mark.slow  # hundreds of files are damaged and read

OWN: Final = Path(__file__).parent / "data"
REAL: Final = os.environ.get("ACCUMAUDIT_REAL_LOGS")
needs_real_logs = pytest.mark.skipif(not REAL, reason="ACCUMAUDIT_REAL_LOGS is not set")

EACH: Final = 3
"""Kinds of damage that one file meets; the next file meets the next kinds."""

LONGEST_ENTRY: Final = 12
"""Lines that a record may take."""


@dataclass
class Outcome:
    """What reading a file gave."""

    format: str | None
    message: str
    count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[tuple[int | None, str]] = field(default_factory=list)

    def before(self, line: int, *fields: str) -> list[Any]:
        """Fields of the records that stand before a line, one after the other."""
        rows = [row for row in self.rows if row.get("seq") is not None and row["seq"] < line]
        return [row.get(name) for row in rows for name in fields]


def read(path: Path) -> Outcome:
    recognised = importers.recognise(Log(path))
    if recognised.format is None:
        return Outcome(None, recognised.looks_like or "a ledger")
    rows: list[dict[str, Any]] = []

    def keep(table: pa.Table) -> None:
        rows.extend(table.to_pylist())

    count, damaged = importers.read(Log(path), recognised.format, keep)
    return Outcome(recognised.format.name, "", count, rows, damaged)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def real_files() -> list[Path]:
    return files(Path(REAL)) if REAL else []


def seeded(*parts: object) -> random.Random:
    return random.Random(zlib.crc32(" ".join(map(str, parts)).encode()))


def damaged_copies(paths: list[Path], folder: Path, each: int) -> Iterator[tuple[str, Path, bytes]]:
    """Copies of the files, each damaged in some ways: what was done, the copy, and its bytes."""
    for place, path in enumerate(paths):
        data = path.read_bytes()
        for number in range(each):
            mutation = MUTATIONS[(place * each + number) % len(MUTATIONS)]
            damaged = mutation(data, seeded(path.name, mutation.__name__))
            copy = folder / path.name
            copy.write_bytes(damaged)
            yield f"{path.name}, {mutation.__name__}", copy, damaged
            copy.unlink()


def unpacked_length(data: bytes) -> int:
    """At least as many bytes as the importers were given."""
    return len(data) if not data.startswith(b"\x1f\x8b") else 200 * len(data) + 2**26


def check_all(paths: list[Path], folder: Path, each: int = EACH) -> None:
    for what, copy, damaged in damaged_copies(paths, folder, each):
        outcome = read(copy)
        if outcome.format is None:
            assert outcome.message, what
            continue
        kinds = [row["record"] for row in outcome.rows]
        assert 0 <= outcome.count <= len(kinds) - kinds.count("run"), what
        assert len(kinds) <= 20 + unpacked_length(damaged) // 6, what
        assert kinds.count("run") <= MOST_LAUNCHES, what
        assert len(outcome.damaged) <= 102, what
        assert all(why and len(why) < 1_000 for _, why in outcome.damaged), what


def test_small_files(tmp_path: Path) -> None:
    check_all(files(OWN), tmp_path)


@needs_real_logs
@pytest.mark.parametrize("folder", sorted({path.parent.name for path in real_files()}))
def test_real_files(folder: str, tmp_path: Path) -> None:
    check_all([path for path in real_files() if path.parent.name == folder], tmp_path)


def half_spoilt(data: bytes, rng: random.Random) -> tuple[bytes, int]:
    """The second half is spoilt; the first whole line of it is numbered from 1."""
    cut = data.find(b"\n", len(data) // 2) + 1
    mutation = rng.choice((fuzzing.flipped, fuzzing.shuffled, fuzzing.of_odd_spelling, fuzzing.of_400_digits))
    return data[:cut] + mutation(data[cut:], rng), data[:cut].count(b"\n") + 1


@pytest.mark.parametrize("of", ["own", pytest.param("real", marks=needs_real_logs)])
def test_what_stands_before_the_damage_stays(of: str, tmp_path: Path) -> None:
    """In texts; a document that is one value, or a file of binary records, has no lines."""
    for path in files(OWN) if of == "own" else real_files():
        whole = read(path)
        data, line = half_spoilt(path.read_bytes(), seeded(path.name))
        line -= LONGEST_ENTRY
        if whole.format == "tensorboard" or not whole.before(line, "seq"):
            continue
        copy = tmp_path / path.name
        copy.write_bytes(data)
        spoilt = read(copy)
        assert spoilt.format == whole.format, path.name
        names = ("seq", "attempt_id", "kind")
        assert spoilt.before(line, *names) == whole.before(line, *names), path.name
        # A copy with all digits, which stood at the end of some, is lost.
        now, then = (numbers(one.before(line, "reported_loss", "learning_rate")) for one in (spoilt, whole))
        assert now == pytest.approx(then, rel=1e-3, abs=1e-8, nan_ok=True), path.name


def numbers(values: list[Any]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def test_they_are_judged_all_the_same(tmp_path: Path) -> None:
    """The whole way, in one audit: no rule breaks on what an importer made of damage."""
    chosen = [*files(OWN), *real_files()[::7]]
    for number, (what, copy, _) in enumerate(damaged_copies(chosen, tmp_path, 1)):
        if "bomb" in what or "line" in what:
            continue  # long, and their records are no others
        folder = tmp_path / "all" / str(number)
        folder.mkdir(parents=True)
        (folder / copy.name).write_bytes(copy.read_bytes())
    report = check_paths([tmp_path / "all"])
    broken = [verdict for run in report.runs for verdict in run.verdicts if verdict.status == "broken"]
    assert not broken
    assert len(report.runs) > 10


PEAK: Final = """
import sys
from pathlib import Path
from accumaudit import importers
found = importers.recognise(importers.Log(Path(sys.argv[1])))
if found.format is not None:
    importers.read(importers.Log(Path(sys.argv[1])), found.format, lambda table: None)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is told by Linux alone")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "mutation", [fuzzing.a_gzip_bomb, fuzzing.with_a_long_line, fuzzing.with_records_in_one_line]
)
def test_memory_is_bounded(
    mutation: Callable[[bytes, random.Random], bytes], seed: int, tmp_path: Path
) -> None:
    """A gigabyte in a megabyte, and lines of 10 MB, in files that are logs."""
    line = b" iteration %8d/ 1000 | consumed samples: %d | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n"
    path = tmp_path / "train.log"
    path.write_bytes(
        mutation(b"".join(line % (step, 4 * step) for step in range(1, 101)), random.Random(seed))
    )
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * 1024


class TestFilesThatAreNone:
    """What a folder holds beside logs: nothing waits, and nothing falls over."""

    def test_all_kinds_at_once(self, tmp_path: Path) -> None:
        line = "iteration {0}/ 9 | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n"
        (tmp_path / "a.log").write_text("".join(map(line.format, range(1, 10))), encoding="utf-8")
        os.mkfifo(tmp_path / "pipe.log")
        (tmp_path / "broken.log").symlink_to(tmp_path / "nothing")
        (tmp_path / "circle.log").symlink_to(tmp_path / "circle.log")
        (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 4_000)
        with (tmp_path / "sparse.log").open("wb") as file:
            file.truncate(2**33)
        (tmp_path / "empty.log").touch()
        report = check_paths([tmp_path])
        assert [run.run_id for run in report.runs] == ["a.log"]
        assert {Path(one.file).name: one.why for one in report.no_logs} == {
            "empty.log": "it is empty so far",
            "sparse.log": "nothing in it looks like a record of training",
        }

    @pytest.mark.parametrize("name", ["pipe", "broken", "circle"])
    def test_given_by_name(self, name: str, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "broken").symlink_to(tmp_path / "nothing")
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        with pytest.raises(LedgerError, match=re.escape(str(tmp_path / name))):
            check_paths([tmp_path / name])

    def test_one_that_cannot_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Path, *_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(self))

        (tmp_path / "a.log").write_text("x")
        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(LedgerError) as error:
            read_ledger([tmp_path / "a.log"])
        assert str(error.value) == (
            f"{tmp_path / 'a.log'}: cannot be read to its end (Permission denied); check its permissions"
        )


def test_utf_16_and_its_kin_are_read(tmp_path: Path) -> None:
    """As consoles of Windows write it."""
    line = "iteration {0}/ 9 | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n"
    text = "\u2713 ready\n" + "".join(map(line.format, range(1, 10)))
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path = tmp_path / f"{encoding}.log"
        path.write_bytes(text.encode(encoding))
        assert [row["attempt_id"] for row in read(path).rows if row["record"] == "update"] == [*range(1, 10)]
    packed = tmp_path / "x.log.gz"
    packed.write_bytes(gzip.compress(text.encode("utf-16")))
    assert read(packed).count == 9


class TestFilesInDisorder:
    """Where a message is worth more than what would be read."""

    def test_far_too_many_runs(self, tmp_path: Path) -> None:
        line = "iteration {0}/ 9 | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n"
        path = tmp_path / "x.log"
        path.write_text(
            "".join(line.format(step) for _ in range(300) for step in (1, 2, 3)), encoding="utf-8"
        )
        outcome = read(path)
        assert [row["record"] for row in outcome.rows].count("run") == MOST_LAUNCHES
        ((place, why),) = outcome.damaged
        assert (place, why.partition(",")[0]) == (None, f"more than {MOST_LAUNCHES} runs and restarts")

    def test_hardly_any_record(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.csv"
        path.write_text("epoch,step,train_loss\n0,1,2.5\n0,2,2.4\n" + "x\n" * 200_000, encoding="utf-8")
        outcome = read(path)
        assert outcome.count == 2
        assert outcome.damaged[-2:] == [
            (None, "hardly any of its lines is a record; what follows was not read"),
            (None, "50,001 more lines are no records"),
        ]


def test_a_value_that_no_field_can_hold_is_unknown() -> None:
    rows = [{"record": "run", "planned_updates": 10**400}, {"record": "run", "planned_updates": 7}]
    assert arrow.from_rows(rows)["planned_updates"].to_pylist() == [None, 7]
