"""Runs for TensorBoard made by hand, and what its own reader finds in event files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from accumaudit.engine.findings import FAILED, Example, Finding, RunReport, Verdict
from accumaudit.service.snapshot import RUNNING, FindingView, OptimizerView, Point, RunView

START: Final = 1_700_000_000.0
EVERYTHING: Final = {"scalars": 0, "tensors": 0}
"""No sampling."""

_EXAMPLE: Final = Example(
    launch=1,
    optimizer=0,
    attempt_id=2,
    optimizer_update_id=2,
    rank=0,
    file="run/rank-00/00000.a.jsonl",
    line=3,
    message="",
    observed=0.5,
    expected=1.0,
)

Series = dict[str, list[tuple[int, float]]]
"""Steps and values by tag."""


def point(update: int | None, attempt: int | None = None, **fields: Any) -> Point:
    """A right update of 100 valid tokens, the attempt of the same number unless told otherwise."""
    attempt_id = attempt or update or 0
    right: dict[str, Any] = {
        "launch": 1,
        "optimizer": 0,
        "attempt_id": attempt_id,
        "update_id": update,
        "time": START + attempt_id,
        "applied": True,
        "microbatches": 4,
        "accumulation_steps": 4,
        "valid_tokens": 100.0,
        "tokens_so_far": 100.0 * (update or attempt_id),
        "loss": 2.0,
        "learning_rate": 0.5,
        "scheduled_rate": 0.5,
        "grad_norm_before": 3.0,
        "grad_norm_after": 1.0,
        "grad_scale": None,
        "total_weight": 1.0,
        "distortion_min": 1.0,
        "distortion_max": 1.0,
        "equivalent_batch": 100.0,
    }
    return Point(**{**right, **fields})


def points(first: int, last: int, **fields: Any) -> list[Point]:
    """Right updates."""
    return [point(number, **fields) for number in range(first, last + 1)]


def finding(code: str = "ACC101", *, withdrawn: bool = False, **fields: Any) -> FindingView:
    """A finding of one attempt, update 2."""
    whole: dict[str, Any] = {
        "count": 1,
        "first_update": 2,
        "last_update": 2,
        "ranks": (0,),
        "message": "a tail of 2 of 4 micro-steps weighs 0.500",
        "observed": 0.5,
        "expected": 1.0,
        "examples": (_EXAMPLE,),
    }
    verdict = Verdict(
        code=code,
        name="fixed-divisor-tail",
        severity="error",
        status=FAILED,
        judged=4,
        reason=None,
        finding=Finding(**{**whole, **fields}),
        summary="a short last window was divided by the full accumulation count",
        fix="Divide by what the window holds.",
    )
    return FindingView(verdict=verdict, first_seen=START, last_seen=START, withdrawn=withdrawn)


def run_view(
    *findings: FindingView,
    run_id: str = "run",
    history: list[Point] | None = None,
    state: str = RUNNING,
    started_at: float | None = START,
) -> RunView:
    """A run of one rank, with what its optimizers did."""
    report = RunReport(
        run_id=run_id,
        path=run_id,
        format="ledger",
        title=run_id,
        runtime="torch",
        ranks=(0,),
        world_size=1,
        updates=0,
        attempts=0,
        recorded=0,
        recorded_ranks=None,
        skipped=0,
        verdicts=tuple(one.verdict for one in findings),
        unreadable=(),
        remarks=(),
        holes=(),
    )
    return RunView(
        report=report,
        state=state,
        launches=1,
        started_at=started_at,
        last_record_time=None,
        findings=findings,
        optimizers=tuple(
            _optimizer(index, [one for one in history or [] if one.optimizer == index])
            for index in sorted({one.optimizer for one in history or []} or {0})
        ),
    )


def _optimizer(index: int, history: list[Point]) -> OptimizerView:
    return OptimizerView(
        index=index,
        name=f"optimizer {index}",
        attempts=len(history),
        updates=len(history),
        skipped={},
        microbatches=0,
        valid_tokens=0.0,
        nonfinite_grad_norms=0,
        last=history[-1] if history else None,
        history=tuple(history),
    )


def read(folder: Path) -> Series:
    """What TensorBoard's reader in Python finds in a folder."""
    reader = EventAccumulator(str(folder), size_guidance=EVERYTHING)
    reader.Reload()
    return series_of(reader)


def series_of(reader: EventAccumulator) -> Series:
    """The scalars that a reader has; what is no number is None."""
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """The texts in a folder, and the layout."""
    reader = EventAccumulator(str(folder), size_guidance=EVERYTHING)
    reader.Reload()
    found = {}
    for tag in reader.Tags()["tensors"]:
        events = reader.Tensors(tag)
        contents = (tensor_util.make_ndarray(event.tensor_proto).item() for event in events)
        found[tag] = [
            (event.step, content.decode("utf-8", "replace"))
            for event, content in zip(events, contents, strict=True)
        ]
    return found


def steps(series: Series, tag: str) -> list[int]:
    """The steps of a tag."""
    return [step for step, _ in series.get(tag, [])]


def is_close(series: Series, tag: str, expected: dict[int, float]) -> bool:
    """Whether a tag has these values, in the precision of its files."""
    found = series[tag]
    return [step for step, _ in found] == list(expected) and all(
        math.isclose(value, expected[step], rel_tol=1e-6) for step, value in found
    )
