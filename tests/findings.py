"""A finding made by hand, for what tells others of findings."""

from __future__ import annotations

from typing import Any

from accumaudit.engine.findings import FAILED, Example, Finding, RunReport, Verdict
from accumaudit.service.snapshot import RUNNING, FindingView, RunView, findings_of


def run_with(
    name: str = "first", message: str = "a tail of 2 of 4 weighs 0.5"
) -> tuple[RunView, FindingView]:
    """A run with one finding."""
    example: dict[str, Any] = dict.fromkeys(Example.__dataclass_fields__)
    finding = Finding(
        count=1,
        first_update=4,
        last_update=4,
        ranks=(0,),
        message=message,
        observed=0.5,
        expected=float("nan"),
        examples=(Example(**example | {"message": message, "attempt_id": 4}),),
    )
    verdict = Verdict(
        code="ACC101",
        name="fixed-divisor-tail",
        severity="error",
        status=FAILED,
        judged=4,
        reason=None,
        finding=finding,
        summary="a short last window was divided by the full accumulation count",
        fix="Divide by the micro-steps\nthat there are.\n\nDDP: the same",
    )
    report = report_with(name, verdict)
    view = RunView(report=report, state=RUNNING, launches=1, started_at=None, last_record_time=None)
    return view, findings_of(report, seen=1.0)[0]


def report_with(name: str, verdict: Verdict) -> RunReport:
    """The report of a ledger of one rank, with one verdict."""
    return RunReport(
        run_id=name,
        path=f"/logs/{name}",
        format="ledger",
        title="ledger",
        runtime="torch",
        ranks=(0,),
        world_size=1,
        updates=10,
        attempts=10,
        recorded=10,
        recorded_ranks=None,
        skipped=0,
        verdicts=(verdict,),
        unreadable=(),
        remarks=(),
        holes=(),
    )
