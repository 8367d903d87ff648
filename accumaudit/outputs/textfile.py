"""What `check` found, as a file for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from accumaudit.service.board import Board
from accumaudit.service.metrics import RunCollector
from accumaudit.service.whole import snapshot_of

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.ledger.reader import Ledger


def write_textfile(ledger: Ledger, report: AuditReport, file: Path) -> None:
    """Put the metrics of all runs into the file in one step: who reads it sees the old or the new."""
    registry = CollectorRegistry(auto_describe=False)
    board = Board(snapshot_of(ledger, report, time.time()))
    registry.register(RunCollector(board, series_shown=sys.maxsize))
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(generate_latest(registry))
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
