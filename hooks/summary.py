"""One line after three windows and the verdict at the end, by the auditor in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accumaudit.hooks.watching import say

if TYPE_CHECKING:
    from accumaudit.hooks.recorder import Recorder

WINDOWS: Final = 3
"""Windows after which the first line is said."""

TIMEOUT: Final = 60.0
"""Seconds that the verdict may take."""


class Summary:
    """Runs `python -m accumaudit.summary` over what has been written; says nothing where it cannot."""

    def __init__(self, run: Path, recorder: Recorder) -> None:
        self._run = run
        self._able = find_spec("duckdb") is not None
        self._process: subprocess.Popen[bytes] | None = None
        if self._able:
            recorder.settler.after(WINDOWS, self._start)

    def _start(self) -> None:
        """Called by the writer thread once, when the third window is being written."""
        threading.Thread(target=self._say, args=["--attempts", str(WINDOWS)], daemon=True).start()

    def _say(self, *options: str) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accumaudit.summary", str(self._run), *options],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            text, _ = self._process.communicate(timeout=TIMEOUT)
        except (OSError, subprocess.SubprocessError):
            if self._process is not None:
                self._process.kill()
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no stderr any more
            sys.stderr.write(text.decode("utf-8", "replace"))
            sys.stderr.flush()

    def close(self, verdict: str | None = None) -> None:
        """Print the verdict: the one that is given, where the findings were said before."""
        if self._able:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
            if verdict is None:
                self._say()
            else:
                say(verdict)
