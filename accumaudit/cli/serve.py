"""`accumaudit serve`: follow runs while they are written, and show what is known of them."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accumaudit.cli import StopError
from accumaudit.cli.config import Settings, find_settings, read_settings

if TYPE_CHECKING:
    from accumaudit.service.board import Board, Listener, Told
    from accumaudit.service.judging.judge import Judge
    from accumaudit.service.judging.setup import Asked
    from accumaudit.service.snapshot import FindingView, Point, RunView
    from accumaudit.service.store import Store
    from accumaudit.service.watch import Limits, Watch
    from accumaudit.service.web.options import Options
    from accumaudit.service.web.reports import Reports
    from accumaudit.service.web.server import Server

_file = click.Path(path_type=Path, dir_okay=False)


@click.command("serve")
@click.argument("logs", type=click.Path(path_type=Path, file_okay=False), metavar="LOGS")
@click.option(
    "--listen", default="127.0.0.1:9464", show_default=True, metavar="HOST:PORT", help="Where it answers."
)
@click.option(
    "--tensorboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write event files for TensorBoard here.",
)
@click.option("--on-finding", metavar="COMMAND", help="Run this for each finding, with JSON on its input.")
@click.option("--config", type=_file, metavar="FILE", help="Settings: accumaudit.toml, or pyproject.toml.")
@click.option("--state", type=_file, metavar="FILE", help="What was read and told, kept over a restart.")
@click.option("--max-runs", type=click.IntRange(1), default=1_000, show_default=True, help="Follow so many.")
@click.option(
    "--retain",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Show a run for so long after its end.",
)
@click.option("--token-file", type=_file, metavar="FILE", help="Answer only who brings the token in it.")
@click.option("--certificate", type=_file, metavar="FILE", help="Answer with TLS: a certificate in PEM.")
@click.option("--key", type=_file, metavar="FILE", help="The certificate's key, where it is not in its file.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Another name that the service has.")
def command(
    logs: Path,
    listen: str,
    tensorboard: Path | None,
    on_finding: str | None,
    config: Path | None,
    state: Path | None,
    max_runs: int,
    retain: float,
    token_file: Path | None,
    certificate: Path | None,
    key: Path | None,
    allowed_host: tuple[str, ...],
) -> None:
    """Follow the runs below LOGS while they are written, judge them, and show what is known.

    A page at /, metrics for Prometheus at /metrics, JSON at /api/runs. It ends with SIGTERM or Ctrl-C,
    and goes on where it was when it is started again.
    """
    from accumaudit.service.board import Board
    from accumaudit.service.watch import Limits

    stop = _told_to_stop()
    logging.basicConfig(format="accumaudit: %(message)s", level=logging.INFO)
    options = _options(listen, token_file, certificate, key, allowed_host)
    settings = find_settings(Path.cwd()) if config is None else read_settings(config)
    board = Board()
    judge = _judge(logs, settings)
    limits = Limits(runs=max_runs, retain_ended=3600 * retain)
    reports = _reports(settings)
    with _closing(judge), _store(logs, state) as store, _server(board, options, reports) as server:
        listeners = _listeners(tensorboard, on_finding)
        watch = _watch(logs, board, judge, store, listeners, limits)
        missing = [] if logs.is_dir() else [f"there is no folder {logs}; it is watched once there is."]
        for warning in (*options.warnings, *missing):
            click.echo(f"accumaudit: warning: {warning}", err=True)
        click.echo(f"accumaudit: watching {logs}, answering at {server.url}", err=True)
        watch.turn()
        server.start()  # not before something is known: a total that is not read yet would seem to be 0
        watch.run(stop)


def _told_to_stop() -> threading.Event:
    """Is set by a signal that asks to stop."""
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    return stop


def _watch(
    logs: Path, board: Board, judge: Judge, store: Store, listeners: Sequence[Listener], limits: Limits
) -> Watch:
    from accumaudit.service.store import StoreError
    from accumaudit.service.watch import Watch

    try:
        return Watch(logs, board, judge, store, listeners, limits)
    except StoreError as error:
        raise StopError(str(error)) from None


def _options(
    listen: str,
    token_file: Path | None,
    certificate: Path | None,
    key: Path | None,
    allowed_hosts: tuple[str, ...],
) -> Options:
    from accumaudit.service.web.options import Options

    try:
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
        return Options(
            listen=listen, token=token, certificate=certificate, key=key, allowed_hosts=allowed_hosts
        )
    except OSError as error:
        raise StopError(f"{token_file}: the token cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _asked(settings: Settings) -> Asked:
    from accumaudit.service.judging.setup import Asked

    return Asked(
        rules=settings.rules,
        select=settings.select,
        ignore=settings.ignore,
        ignores=settings.ignores,
        params=settings.params,
    )


def _judge(logs: Path, settings: Settings) -> Judge:
    from accumaudit.engine.catalogue import SelectionError
    from accumaudit.engine.rule import RuleError
    from accumaudit.service.judging.judge import Judge

    try:
        return Judge(logs, _asked(settings))
    except (RuleError, SelectionError) as error:
        raise StopError(str(error)) from None


@contextmanager
def _closing(judge: Judge) -> Iterator[None]:
    try:
        yield
    finally:
        judge.close()


@contextmanager
def _store(logs: Path, state: Path | None) -> Iterator[Store]:
    from accumaudit.service.store import Store, StoreError, state_file

    try:
        store = Store(state or state_file(logs))
    except StoreError as error:
        raise StopError(str(error)) from None
    with store:
        yield store


def _reports(settings: Settings) -> Reports:
    from accumaudit.service.web.reports import Reports

    return Reports(_asked(settings))


@contextmanager
def _server(board: Board, options: Options, reports: Reports) -> Iterator[Server]:
    from accumaudit.service.web.app import create_app
    from accumaudit.service.web.server import ListenError, Server

    try:
        server = Server(create_app(board, options, reports), options)
    except ListenError as error:
        raise StopError(str(error)) from None
    try:
        yield server
    finally:
        server.stop()
        reports.close()


def _listeners(tensorboard: Path | None, on_finding: str | None) -> list[Listener]:
    listeners: list[Listener] = [_Console()]
    if on_finding is not None:
        from accumaudit.service.commands import Commands

        try:
            listeners.append(Commands(on_finding))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--on-finding") from None
    if tensorboard is not None:
        from accumaudit.outputs.tensorboard.live import Live

        listeners.append(Live(tensorboard))
    return listeners


class _Console:
    """Prints each finding, one line."""

    trouble: str | None = None
    waiting: tuple[Told, ...] = ()

    def found(self, run: RunView, finding: FindingView) -> None:
        """A rule found something."""
        from accumaudit.outputs.words import headline, printable

        click.echo(f"{printable(run.run_id)}: {headline(finding.verdict, run.report)}")

    def moved(self, run: RunView, points: Sequence[Point]) -> None:
        """Attempts were judged, which is nothing to tell."""

    def close(self) -> None:
        """There is nothing to let go of."""
