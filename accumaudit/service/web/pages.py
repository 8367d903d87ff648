"""The pages: all runs, one run, and what went wrong with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import jinja2
from starlette.responses import PlainTextResponse, Response

from accumaudit import __version__
from accumaudit.engine.findings import BROKEN, PASSED
from accumaudit.outputs.words import plural, printable
from accumaudit.service.web import views
from accumaudit.service.web.answers import answer, not_found, packed_answer
from accumaudit.service.web.events import mark_of_all, mark_of_run
from accumaudit.service.web.names import (
    POST_MORTEM,
    count_in_query,
    is_post_mortem,
    name_in_path,
    named,
    quoted,
)
from accumaudit.service.web.plots import HEIGHT, MOST_POINTS, WIDTH, plots

if TYPE_CHECKING:
    from starlette.requests import Request

    from accumaudit.service.board import Board
    from accumaudit.service.snapshot import OptimizerView, Point, RunView, Snapshot
    from accumaudit.service.web.reports import Reports

HTML: Final = "text/html"
ROWS: Final = 200
"""Runs on a page."""
RANKS: Final = 64
"""Ranks of a run on its page."""
ATTEMPTS: Final = 20
"""Attempts in the table of an optimizer."""
OPTIMIZERS: Final = 8
"""Optimizers of a run that are drawn."""
AGAIN: Final = 2
"""Seconds after which a browser asks again for what is being made."""


class Pages:
    """Makes the pages of what hangs on the board."""

    def __init__(self, board: Board, reports: Reports, addresses: Mapping[str, str]) -> None:
        self._board = board
        self._reports = reports
        self._templates = _templates(addresses)

    def overview(self, request: Request) -> Response:
        """All runs, those that wrote last first."""
        page = count_in_query(request, "page", 1)
        if page is None:
            return PlainTextResponse("page is the number of a page, from 1.\n", 400)
        return self._answer(request, "overview.html", _overview(self._board.snapshot, page))

    def run(self, request: Request) -> Response:
        """One run, or its post-mortem."""
        if is_post_mortem(request):
            return self._post_mortem(request)
        snapshot = self._board.snapshot
        run = named(snapshot, name_in_path(request, "/runs/"))
        if run is None:
            return not_found("run of this name")
        return self._answer(request, "run.html", _run(run, snapshot))

    def _post_mortem(self, request: Request) -> Response:
        """What was made, or that it is being made, or why it cannot be."""
        snapshot = self._board.snapshot
        run = named(snapshot, name_in_path(request, "/runs/", POST_MORTEM))
        if run is None:
            return not_found("run of this name")
        report = self._reports.report(run, snapshot)
        if report is None:
            again = {"Refresh": str(AGAIN), "Retry-After": str(AGAIN)}
            waits = self._reports.making not in (None, run.run_id)
            shown = {**_no_report(run, snapshot), "waits": waits, "trouble": None}
            return self._answer(request, "report.html", shown, again, 202)
        if report.trouble is not None:
            shown = {**_no_report(run, snapshot), "waits": False, "trouble": report.trouble}
            return self._answer(request, "report.html", shown, status=503)
        policy = report.policy and {"Content-Security-Policy": f"{report.policy}; frame-ancestors 'none'"}
        return packed_answer(request, report.page, HTML, policy or None)

    def _answer(
        self,
        request: Request,
        template: str,
        shown: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        return answer(request, self._templates.get_template(template).render(shown), HTML, headers, status)


def _templates(addresses: Mapping[str, str]) -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("accumaudit.service.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals.update(static=addresses, version=__version__, plot_width=WIDTH, plot_height=HEIGHT)
    templates.filters.update(printable=printable, short=views.short, value=views.value)
    return templates


def _overview(snapshot: Snapshot, page: int) -> dict[str, Any]:
    runs = views.order(snapshot.runs)
    first = (page - 1) * ROWS
    faulty = sum(bool(run.active) for run in runs)
    return {
        "mark": mark_of_all(snapshot),
        "stream": "/events",
        "api": "/api/runs",
        "rows": [views.row(run) for run in runs[first : first + ROWS]],
        "total": len(runs),
        "summary": f"{plural(len(runs), 'run')}, {faulty:,} with findings",
        "page": page,
        "pages": max(1, -(-len(runs) // ROWS)),
        "ready": snapshot.ready,
        "troubles": [printable(one) for one in snapshot.troubles],
        "intake": views.intake(snapshot.intake),
        "made": views.moment(snapshot.time),
    }


def _run(run: RunView, snapshot: Snapshot) -> dict[str, Any]:
    report = run.report
    late = set(run.late_ranks)
    ranks = sorted(run.ranks, key=lambda one: (one.rank not in late, one.rank, one.optimizer))
    cards = [views.card(one, run) for one in run.findings]
    return {
        "mark": mark_of_run(run),
        "stream": f"/events?run={quoted(run.run_id)}",
        "api": f"/api/runs/{quoted(run.run_id)}",
        "post_mortem": f"/runs/{quoted(run.run_id)}{POST_MORTEM}",
        "name": views.shown(run.run_id),
        "severity": next((one.verdict.severity for one in run.active), "none"),
        "found": views.found(run),
        "state": run.state,
        "facts": views.facts(run),
        "cards": [one for one in cards if not one.withdrawn],
        "withdrawn": [one for one in cards if one.withdrawn],
        "broken": report.with_status(BROKEN),
        "passed": report.with_status(PASSED),
        "unchecked": views.unchecked(report),
        "ignored": [(verdict, one) for verdict in report.verdicts for one in verdict.ignored],
        "remarks": report.remarks,
        "unreadable": report.unreadable[:ATTEMPTS],
        "unreadable_count": len(report.unreadable),
        "optimizers": [_optimizer(one, run) for one in run.optimizers[:OPTIMIZERS]],
        "attempt_heads": views.ATTEMPT_HEADS,
        "rank_heads": views.RANK_HEADS,
        "ranks": [views.rank_cells(one) for one in ranks[:RANKS]],
        "rank_count": len(ranks),
        "troubles": [printable(one) for one in snapshot.troubles],
        "made": views.moment(snapshot.time),
        "ready": snapshot.ready,
    }


def _no_report(run: RunView, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "address": f"/runs/{quoted(run.run_id)}",
        "api": f"/api/runs/{quoted(run.run_id)}",
        "name": views.shown(run.run_id),
        "command": f"accumaudit postmortem {shlex.quote(run.report.path)}",
        "troubles": [printable(one) for one in snapshot.troubles],
        "ready": snapshot.ready,
        "made": None,
    }


def _optimizer(optimizer: OptimizerView, run: RunView) -> dict[str, Any]:
    own = [
        one.verdict
        for one in run.active
        if one.verdict.finding is not None
        and any(example.optimizer in (optimizer.index, None) for example in one.verdict.finding.examples)
    ]
    drawn = optimizer.history[-MOST_POINTS:]
    skipped = sum(optimizer.skipped.values())
    counts = [plural(optimizer.updates, "update")]
    if skipped:
        counts.append(f"{plural(skipped, 'attempt')} skipped")
    return {
        "title": views.title(optimizer),
        "counts": ", ".join(counts),
        "plots": plots(drawn, own),
        "marked": bool(own),
        "first": _attempt(drawn[0], run) if drawn else "",
        "last": _attempt(drawn[-1], run) if drawn else "",
        "attempts": [views.attempt_cells(one) for one in reversed(optimizer.history[-ATTEMPTS:])],
    }


def _attempt(point: Point, run: RunView) -> str:
    launch = f"launch {point.launch}, " if run.launches > 1 else ""
    return f"{launch}attempt {point.attempt_id:,}"
