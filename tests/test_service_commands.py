"""A command for each finding: what it is told, and that nothing it does holds up the service."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from accumaudit.service import commands
from accumaudit.service.commands import Commands
from tests.findings import run_with
from tests.processes import has_ended

HOSTILE = "$(touch hacked)\n\x1b[31m"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "accumaudit")
    return caplog


def script(folder: Path, text: str) -> str:
    """A program of its own, with the folder as its first argument."""
    path = folder / "on finding.sh"
    path.write_text(f'#!/bin/sh\ncd "$1"\n{text}\n')
    path.chmod(0o700)
    return f"'{path}' {folder}"


def test_the_finding_comes_as_one_line_of_strict_json(tmp_path: Path) -> None:
    told = Commands(script(tmp_path, "cat > given"))
    told.found(*run_with())
    told.close()
    text = (tmp_path / "given").read_text()
    assert text.count("\n") == 1
    given = json.loads(text, parse_constant=pytest.fail)
    assert given["run"]["run_id"] == "first"
    assert (given["record"], given["schema"], given["code"]) == ("finding", 1, "ACC101")
    assert given["finding"]["first_update"] == 4
    assert given["finding"]["expected"] is None
    assert given["text"] == "error ACC101 fixed-divisor-tail, update 4: a tail of 2 of 4 weighs 0.5"
    assert given["advice"] == "Divide by the micro-steps that there are."


def test_no_shell_reads_the_command_or_the_finding(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    told = Commands("echo '$(touch hacked)' ; touch hacked")
    told.found(*run_with(HOSTILE, HOSTILE))
    told.close()
    (line,) = said.messages
    assert line == (
        r"the command ran for ACC101 in $(touch hacked)\n\x1b[31m: exit status 0: "
        "$(touch hacked) ; touch hacked"
    )
    assert not Path("hacked").exists()


def test_it_runs_for_one_finding_at_a_time_and_in_their_order(tmp_path: Path) -> None:
    told = Commands(script(tmp_path, 'read line; echo begin >> log; echo "$line" >> log; echo end >> log'))
    for name in ("first", "second", "third"):
        told.found(*run_with(name))
    told.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["begin", "end"] * 3
    assert [json.loads(line)["run"]["run_id"] for line in lines if line.startswith("{")] == [
        "first",
        "second",
        "third",
    ]


def test_findings_beyond_the_queue_are_left_out_and_those_at_the_end_counted(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "WAITING", 2)
    told = Commands(script(tmp_path, "echo $$ > started.$$; exec sleep 60"))
    told.found(*run_with("runs"))
    while not list(tmp_path.glob("started.*")):
        time.sleep(0.01)
    for name in ("waits", "waits too", "is left out"):
        told.found(*run_with(name))
    monkeypatch.setattr(told, "_seconds", 0.0)
    told.close()
    assert "the command is behind, and is not run for ACC101 in is left out" in said.messages
    assert "the end came before the command was run for 2 findings" in said.messages
    assert len(list(tmp_path.glob("started.*"))) == 1


def test_one_that_takes_too_long_is_killed_with_what_it_has_started(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    told = Commands(script(tmp_path, "sleep 60 & echo $! > child; echo waiting; wait"), seconds=0.5)
    told.found(*run_with())
    told.close()
    assert said.messages == ["the command ran for ACC101 in first: killed, it took too long: waiting"]
    assert has_ended(int((tmp_path / "child").read_text()))


def test_what_it_leaves_running_holds_nothing_up(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    told = Commands(script(tmp_path, "sleep 60 & echo $! > child; echo done"))
    told.found(*run_with())
    told.close()
    child = int((tmp_path / "child").read_text())
    os.kill(child, signal.SIGKILL)
    assert said.messages == ["the command ran for ACC101 in first: exit status 0: done"]
    assert has_ended(child)


def test_what_it_says_is_logged_in_one_line_of_bounded_length(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    told = Commands(script(tmp_path, r"printf 'a\nb\033[31m\377'; yes | head -c 1000000; exit 3"))
    told.found(*run_with())
    told.close()
    (record,) = said.records
    assert record.levelname == "WARNING"
    assert record.message.startswith(r"the command ran for ACC101 in first: exit status 3: a\nb\x1b[31m")
    assert len(record.message) < 4 * commands.KEPT


def test_one_that_reads_nothing_of_a_long_finding_ends_well(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    told = Commands("true")
    told.found(*run_with(message="x" * 1_000_000))
    told.close()
    assert said.messages == ["the command ran for ACC101 in first: exit status 0"]


def test_one_that_cannot_be_run_any_more_is_said(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    told = Commands(script(tmp_path, "true"))
    (tmp_path / "on finding.sh").unlink()
    told.found(*run_with())
    told.close()
    assert "the command could not be run for ACC101 in first: [Errno 2]" in said.messages[0]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "the command is empty"),
        ("echo 'a", 'the command "echo \'a" cannot be read: No closing quotation'),
        ("no-such-program x", "there is no program 'no-such-program'"),
        ("/etc/passwd", "there is no program '/etc/passwd'"),
    ],
)
def test_a_command_that_cannot_be_is_refused_at_the_start(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Commands(command)
