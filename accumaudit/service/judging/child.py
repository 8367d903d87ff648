"""`python -m accumaudit.service.judging.child SPOOL`: judges what it is asked to, one request a line.

A request names folders and settings; the answer is a line too. An empty line ends the process; where its
input ends without one, the service has died, and the process takes the spool with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import duckdb

from accumaudit.engine.catalogue import Catalogue, load_rules
from accumaudit.engine.evidence import attempts_of_findings
from accumaudit.engine.findings import AuditReport
from accumaudit.engine.ignoring import Ignore
from accumaudit.engine.judge import audit
from accumaudit.engine.rule import RuleError
from accumaudit.ledger import loading
from accumaudit.ledger.reader import Ledger, LedgerError, read_ledger
from accumaudit.service.judging import thin, wire
from accumaudit.service.points import points

POINTS: Final = 20_000
"""The newest attempts of a run that are given."""

INSTALL: Final = "pip install 'accumaudit[report]'"

REMOVAL: Final = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"

LAUNCHES: Final = """
SELECT run_id, launch, launch_token, min(started_at)
FROM runs GROUP BY run_id, launch, launch_token ORDER BY ALL
"""


def main(arguments: list[str]) -> int:
    """Answer until the input ends."""
    (spool,) = map(Path, arguments)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, spool), daemon=True).start()
    desk = Desk()
    while True:
        answer = desk.answer(json.loads(requests.get()))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _read(requests: queue.SimpleQueue[bytes], spool: Path) -> None:
    """Hand requests on; when there are no more, end at once, whatever is being judged."""
    for line in sys.stdin.buffer:
        if not line.strip():
            os._exit(0)
        requests.put(line)
    _end_with(spool)


def _end_with(spool: Path) -> NoReturn:
    """Become a process that removes the spool: threads that still write into it end first."""
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", REMOVAL, str(spool)])
    os._exit(1)


class Desk:
    """Answers requests; rules are read once."""

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the rules say of the runs in a folder, or why they say nothing."""
        began = time.process_time()
        try:
            said = self._tell(request) if "post_mortem" in request else self._judge(request)
            return {**said, "seconds": time.process_time() - began}
        except (LedgerError, RuleError, duckdb.Error, OSError, MemoryError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            return {"error": text[:1000], "seconds": time.process_time() - began}

    def _judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        places, limit = [Path(place) for place in request["places"]], request["limit"]
        size = sum(map(thin.size_of, places)) if limit else 0
        if size <= limit:
            return {"runs": self._audit(places, request), "size": size, "is_thin": False}
        if request["thin"] is None:
            raise LedgerError(f"{size / 2**30:.1f} GiB of records; run `accumaudit check` on them")
        (place,) = places
        folder = Path(request["thin"])
        try:
            copy, files = thin.copy(place, folder, limit)
            runs = self._audit([copy], {**request, "names": {str(copy): request["names"][str(place)]}})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return {"runs": runs, "size": size, "is_thin": True, "files": files}

    def _tell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The post-mortem of one run, as a page."""
        name = request["post_mortem"]
        try:
            from accumaudit.outputs.postmortem.html import rendered
            from accumaudit.postmortem import post_mortems

            places = [Path(place) for place in request["places"]]
            size = sum(map(thin.size_of, places))
            if size > request["limit"]:
                raise LedgerError(f"{size / 2**30:.1f} GiB of records are more than is read for a page")
            with self._audited(places, request) as (ledger, report, names):
                ledgers = [one for one in report.runs if one.format == "ledger"]
                run = next((one for one in ledgers if names.get(one.run_id) == name), None)
                if run is None:
                    raise LedgerError(f"there is no record of {name} in its folder, or not yet")
                (told,) = post_mortems(ledger, replace(report, runs=(run,)))
            page = rendered([replace(told, run=replace(told.run, run_id=name))])
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("accumaudit"):
                raise
            return {"error": f"this needs {error.name}, which is not installed: {INSTALL}"}
        if len(page) > request["largest"]:
            return {"error": f"the page would have {len(page):,} characters, more than are served"}
        return {"page": page}

    def _audit(self, places: list[Path], request: Mapping[str, Any]) -> list[dict[str, Any]]:
        with self._audited(places, request) as (ledger, report, names):
            attempts = attempts_of_findings(ledger.connection)
            launches = ledger.connection.execute(LAUNCHES).fetchall()
            histories = points(ledger.connection)
        return [
            {
                "name": names[run.run_id],
                "report": wire.report_json(run),
                "found": {code: rows for (code, run_id), rows in attempts.items() if run_id == run.run_id},
                "launches": [rest for run_id, *rest in launches if run_id == run.run_id],
                "points": [wire.point_json(one) for one in histories.get(run.run_id, [])[-POINTS:]],
            }
            for run in report.runs
            if run.run_id in names
        ]

    @contextlib.contextmanager
    def _audited(
        self, places: list[Path], request: Mapping[str, Any]
    ) -> Iterator[tuple[Ledger, AuditReport, dict[str, str]]]:
        """The records of folders, what the rules say of them, and the service's names of the runs."""
        if self._catalogue is None:
            self._catalogue = load_rules(*map(Path, request["rules"]))
        loading.CONFIG.update(memory_limit=request["memory"], threads=1)
        with read_ledger(places) as ledger:
            names = _names(ledger.runs, request["names"])
            report = audit(
                ledger,
                self._catalogue,
                select=request["select"],
                ignore=[*request["ignore"], *_ignores(request["ignores"], names)],
                params=request["params"],
            )
            yield ledger, report, names


def _names(runs: Sequence[tuple[str, str]], known: Mapping[str, str]) -> dict[str, str]:
    """The names of the runs as the service has them: several of one folder have numbers behind its name."""
    first: dict[str, str] = {}
    for run_id, path in runs:
        first.setdefault(path, run_id)
    return {run_id: known[path] + run_id[len(first[path]) :] for run_id, path in runs if path in known}


def _ignores(ignores: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterator[Ignore]:
    """What is to be left out, with the names that the ledger has for the runs."""
    for fields in ignores:
        ignore = Ignore(**fields)
        yield from (replace(ignore, run=run_id) for run_id, name in names.items() if ignore.of([name]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
