"""What takes long is shown on a terminal, and nowhere else."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from accumaudit.cli import main, progress
from accumaudit.ledger.reader import Options, read_ledger
from tests.records import write_run


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of stderr, for the rest of the test."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def test_a_bar_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    screen = terminal(monkeypatch)
    with progress.progress("looking [for] logs") as shown:
        assert isinstance(shown, progress.Progress)
        shown._timer.join()  # it is on the screen now
        shown.start("reading the records", 2_000_000)
        shown.read(1_500_000)
        shown._bar.refresh()
    text = screen.getvalue()
    assert "looking [for] logs" in text
    assert "reading the records" in text
    assert "1.5/2.0 MB" in text
    assert text.endswith("\x1b[2K")  # nothing of it stays


def test_what_is_quick_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with progress.progress("reading") as shown:
        shown.start("reading the records", 10)
        shown.read(10)
    assert screen.getvalue() == ""


def test_it_ends_with_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    terminal(monkeypatch)
    with pytest.raises(ValueError, match="wrong"), progress.progress("reading") as shown:
        raise ValueError("wrong")
    assert isinstance(shown, progress.Progress)
    assert not shown._timer.is_alive()
    assert not shown._bar.live.is_started


def test_nothing_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    result = CliRunner().invoke(main, ["check", str(write_run(tmp_path / "run", 2))])
    assert (result.exit_code, result.stderr) == (0, "")


def test_all_bytes_are_told(tmp_path: Path) -> None:
    """Of ledgers by groups of files, of other logs as they are read."""
    write_run(tmp_path / "run", 3, ranks=2)
    line = " iteration {0}/ 9 | learning rate: 1.0E-04 | lm loss: 2.5E+00 |\n"
    (tmp_path / "x.log").write_text("".join(line.format(step) for step in range(1, 10)), encoding="utf-8")
    started: list[tuple[str, int]] = []
    read: list[int] = []
    options = Options(on_start=lambda what, length: started.append((what, length)), on_read=read.append)
    read_ledger([tmp_path], options).close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert started == [("reading the records", sum(path.stat().st_size for path in files))]
    assert sum(read) == started[0][1]
    assert len(read) > 1
