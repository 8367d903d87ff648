"""Feeds the lines of ledgers to a judge, in portions, as they would come from a follower."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from accumaudit.engine.findings import RunReport, Verdict
from accumaudit.service.judging.judge import Judge, Judgement, Limits
from accumaudit.service.lines import Chunk, Line

PATIENCE = 120.0
"""Seconds after which a judge that says nothing is taken for stuck; it needs few."""

AT_ONCE = Limits(beat=0.0, share=math.inf, slow_beat=0.0)
"""Whatever is due is done without a pause."""


def chunk_of(
    root: Path, file: Path, first: int = 0, last: int | None = None, *, again: bool = False
) -> Chunk:
    """Lines of a file that lies in a rank's folder, counted from 0."""
    lines = file.read_bytes().split(b"\n")[:-1]
    return Chunk(
        run=file.parent.parent.relative_to(root).as_posix(),
        file=file.relative_to(root).as_posix(),
        lines=tuple(Line(number, text) for number, text in enumerate(lines, 1) if text.strip())[first:last],
        again=again,
    )


def files_of(root: Path) -> list[Path]:
    """The files of all ledgers below a folder."""
    return sorted(root.rglob("rank-*/*.jsonl"))


def portions(root: Path, folder: Path, count: int) -> Iterator[list[Chunk]]:
    """The lines of all ledgers in a folder below the one that is watched, a part of every file at a time."""
    lengths = {file: file.read_bytes().count(b"\n") for file in files_of(folder)}
    for number in range(count):
        cut = [
            chunk_of(root, file, length * number // count, length * (number + 1) // count)
            for file, length in lengths.items()
        ]
        yield [one for one in cut if one.lines]


def judged(
    judge: Judge, chunks: Iterable[Chunk] = (), until: Callable[[list[Judgement]], bool] | None = None
) -> list[Judgement]:
    """What a judge says of these lines until it is idle, or until it has said what is waited for."""
    for chunk in chunks:
        judge.take(chunk)
    said: list[Judgement] = []
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        said += judge.turn(time.time())
        if until(said) if until else judge.idle:
            return said
        time.sleep(0.01)
    raise AssertionError(f"the judge says nothing more after {said}: {judge.troubles}")


def rounded(verdict: Verdict) -> str:
    """A verdict with as many digits as do not depend on the order in which a sum was added up."""
    return re.sub(r"\d+\.\d{9,}(e-?\d+)?", lambda found: f"{float(found[0]):.9g}", repr(verdict))


def same(one: RunReport, other: RunReport) -> list[str]:
    """The rules of which two reports of a run say different things, and what differs besides."""
    different = [
        f"{mine.code}: {rounded(mine)} / {rounded(its)}"
        for mine, its in zip(one.verdicts, other.verdicts, strict=True)
        if rounded(mine) != rounded(its)
    ]
    if replace(one, verdicts=()) != replace(other, verdicts=()):
        different.append(f"{replace(one, verdicts=())} / {replace(other, verdicts=())}")
    return different
