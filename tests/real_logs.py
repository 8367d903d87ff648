"""Logs that other people's trainings wrote; they lie outside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_logs() -> Path:
    """The folder of the logs; the test is skipped where there is none."""
    folder = os.environ.get("ACCUMAUDIT_REAL_LOGS")
    if not folder:
        pytest.skip("ACCUMAUDIT_REAL_LOGS is not set: the folder of real logs is unknown")
    return Path(folder)
