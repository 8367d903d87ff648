"""A post-mortem made by hand, with something in every part of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from accumaudit.engine.findings import FAILED, NOT_CHECKED, Example, Finding, RunReport, Verdict
from accumaudit.postmortem.model import (
    Checkpoint,
    Curve,
    Harm,
    HeatRow,
    HeatStrip,
    History,
    LossFacts,
    Moment,
    PostMortem,
    Role,
    Suspect,
    Unchecked,
)
from tests.findings import report_with

UPDATES: Final = 2_000
FIRST: Final = Moment(launch=2, attempt_id=310, number=1_310)
ONSET: Final = Moment(launch=2, attempt_id=420, number=1_420)


def verdict_of(code: str, name: str, severity: str, message: str, moment: Moment) -> Verdict:
    """A verdict with one record as evidence."""
    example = Example(
        launch=moment.launch,
        optimizer=0,
        attempt_id=moment.attempt_id,
        optimizer_update_id=moment.number,
        rank=3,
        file="rank-00/00003.bbbb.jsonl",
        line=311,
        message=message,
        observed=0.0006,
        expected=0.00021,
    )
    finding = Finding(
        count=UPDATES - (moment.number or 0),
        first_update=moment.number,
        last_update=UPDATES,
        ranks=(3,),
        message=message,
        observed=0.0006,
        expected=0.00021,
        examples=(example,),
    )
    return Verdict(
        code=code,
        name=name,
        severity=severity,
        status=FAILED,
        judged=UPDATES,
        reason=None,
        finding=finding,
        summary="the first update after a resume had another rate than the schedule goes on with",
        fix=(
            "Load the scheduler's state with the optimizer's, and set the rate before the first step.\n\n"
            "Hand-written loop: `scheduler.load_state_dict(state)` before the first `optimizer.step()`.\n"
            "Trainer: resume with `resume_from_checkpoint=...`."
        ),
    )


def suspect_of(verdict: Verdict, role: Role, first: Moment, **fields: Any) -> Suspect:
    """A finding as a post-mortem holds it."""
    harm = Harm(
        attempts=690,
        of_attempts=UPDATES,
        tokens=2.8e6,
        of_tokens=8.2e6,
        size="measured 0.0006, expected 0.00021",
    )
    given: dict[str, Any] = {"lead": None, "own_fix": None, "last": replace(first, number=UPDATES), **fields}
    return Suspect(verdict=verdict, role=role, first=first, harm=harm, **given)


def _loss(update: int) -> float:
    before = 2.0 + 4.0 * math.exp(-update / 300)
    return before if update < 1_420 else before * math.exp(min((update - 1_420) / 60, 15.0))


def _rate(update: int) -> float:
    return 3e-4 * min(1.0, update / 200) * (3.0 if update >= 1_310 else 1.0)


def history_of(updates: int = UPDATES) -> History:
    """The curves of a run whose rate jumps and whose loss leaves."""
    xs = tuple(float(update) for update in range(1, updates + 1))
    fields = {
        "loss": ("loss", [_loss(int(x)) for x in xs]),
        "learning_rate": ("rate that was used", [_rate(int(x)) for x in xs]),
        "scheduled_rate": ("rate that the scheduler announced", [min(_rate(int(x)), 3e-4) for x in xs]),
        "grad_norm_before": ("gradient norm before clipping", [1 + _loss(int(x)) ** 1.5 / 9 for x in xs]),
        "grad_norm_after": ("gradient norm at the step", [1.0 for _ in xs]),
        "total_weight": ("total weight", [0.5 if x % 400 == 0 else 1.0 for x in xs]),
        "valid_tokens": ("valid tokens", [4_096.0 for _ in xs]),
        "grad_scale": ("gradient scale", [65_536.0 / 2 ** (int(x) // 200) for x in xs]),
    }
    return History(
        optimizer=0,
        title="Optimizer 0: AdamW",
        axis="update",
        attempts=updates,
        curves=tuple(
            Curve(
                name=name,
                label=label,
                x=xs,
                y=tuple(ys),
                nonfinite=(1_996.0, 1_999.0) if name == "grad_norm_before" else (),
            )
            for name, (label, ys) in fields.items()
        ),
        places=((FIRST, 1_310.0), (ONSET, 1_420.0)),
        skipped=tuple(float(update) for update in range(199, updates, 200)),
        launches=((1_001.0, "launch 2, resumed from update 1,000"),),
        checkpoints=((500.0, "step-500.pt"), (1_000.0, "step-1000.pt"), (1_300.0, "step-1300.pt")),
    )


def telling_of(name: str = "bert-large", **fields: Any) -> PostMortem:
    """A run whose rate jumped at a resume, and which diverged a hundred updates later."""
    cause = verdict_of(
        "ACC306", "rate-jump-on-resume", "error", "the rate is 0.0006 where 0.00021 goes on", FIRST
    )
    symptom = verdict_of("ACC901", "loss-divergence", "warning", "the loss 3.1 is 9 deviations above", ONSET)
    note = verdict_of("ACC504", "late-synchronisation", "note", "gradients were reduced 4 times", FIRST)
    unjudged = replace(
        cause, code="ACC203", name="weights", status=NOT_CHECKED, finding=None, reason="no `w`"
    )
    run = report_with(name, cause)
    run = replace(
        run, ranks=tuple(range(8)), world_size=8, updates=UPDATES, attempts=UPDATES, recorded=UPDATES
    )
    first = suspect_of(
        cause,
        "cause",
        FIRST,
        lead=110,
        own_fix=("Hand-written loop", "`scheduler.load_state_dict(state)` before the first step."),
        follows=("ACC302", "ACC305"),
    )
    onset = suspect_of(symptom, "symptom", ONSET)
    given: dict[str, Any] = {
        "run": run,
        "outcome": "went wrong",
        "verdict": (
            "At update 1,420 the training went wrong: the loss 3.1 is 9 deviations above (ACC901).",
            "The strongest suspect lies 110 updates before, at update 1,310: the first update after a resume "
            "had another rate than the schedule goes on with; the record proves the fault, and not that this "
            "led to it.",
        ),
        "first_wrong": first,
        "onset": onset,
        "suspects": (first,),
        "symptoms": (onset,),
        "others": (suspect_of(note, "cost", FIRST),),
        "checkpoint": Checkpoint(name="step-1300.pt", moment=Moment(launch=2, attempt_id=300, number=1_300)),
        "advice": "Mend ACC306 rate-jump-on-resume, then resume from step-1300.pt, saved after update 1,300.",
        "loss": LossFacts(
            records=UPDATES,
            first=6.0,
            lowest=2.01,
            lowest_at=FIRST,
            last=9.9e5,
            last_at=Moment(launch=2, attempt_id=1_000, number=UPDATES),
            steepest=3.2e4,
            steepest_at=ONSET,
            not_finite=2,
        ),
        "facts": (("Record", "2,000 updates, 8 ranks"), ("Wrapper", "ddp"), ("Precision", "bf16")),
        "histories": (history_of(),),
        "strip": strip_of(),
        "unchecked": (
            Unchecked(
                reason="no `token_weights` in 2,000 records",
                verdicts=(unjudged,),
                remedy="`token_weights` is recorded where accumaudit is attached to the training",
            ),
        ),
        "quality": ("rank 7 ends 12 attempts before the others", "3 lines could not be read"),
        "marked": (FIRST, ONSET),
    }
    return PostMortem(**{**given, **fields})


def strip_of(columns: int = 100) -> HeatStrip:
    """One rank that stands out from two thirds on, and one that does once."""
    starts = tuple(1.0 + 20 * column for column in range(columns))
    late = tuple(1.0 if column >= 65 else 0.0 for column in range(columns))
    once = tuple(0.3 if column == 40 else 0.0 for column in range(columns))
    rows = (
        HeatRow(rank=3, shares=late, why=("another rate", "named by ACC306")),
        HeatRow(rank=7, shares=once, why=("no record",)),
    )
    return HeatStrip(starts=starts, axis="update", rows=rows, ranks=8, quiet=6)


def empty_of(run: RunReport) -> PostMortem:
    """A run of which nothing is known but that it is there."""
    return PostMortem(
        run=run,
        outcome="clean",
        verdict=("0 rules passed, 90 could not be checked.",),
        first_wrong=None,
        onset=None,
        suspects=(),
        symptoms=(),
        others=(),
        checkpoint=None,
        advice="Nothing that is reported asks for going back.",
        loss=None,
        facts=(),
    )
