"""`accumaudit demo`: train for real, then check."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from accumaudit.cli import StopError

if TYPE_CHECKING:
    from accumaudit.demo.scenario import Scenario

RIGHT: Final = "plain"
DEFAULT_FAULT: Final = "fixed-divisor-tail"
WIDEST: Final = 110


@click.command("demo")
@click.option("--fault", metavar="NAME|CODE", help="Train this alone: fixed-divisor-tail, ACC101, plain.")
@click.option(
    "--list", "list_", is_flag=True, help="List the faults, and the right loops that look like some."
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the ledgers here, a folder for each training.",
)
@click.option("--ranks", type=click.IntRange(1, 2), help="Number of processes.  [what the training needs]")
def command(fault: str | None, list_: bool, log_dir: Path | None, ranks: int | None) -> None:
    """Train a tiny transformer for real, in seconds on a CPU, then check what was recorded.

    Without --fault there are two trainings: a right one, and one whose short last windows are
    divided by the full accumulation count.
    """
    try:
        from accumaudit.demo import launching
    except ModuleNotFoundError as error:
        raise StopError(
            f"the demo trains for real and needs {error.name}: pip install {error.name}"
        ) from None
    if list_:
        _list()
        return
    try:
        trainings = [launching.scenario(name) for name in ((fault,) if fault else (RIGHT, DEFAULT_FAULT))]
        with _folder(log_dir) as folder:
            for training in trainings:
                _train(training, Path(folder, training.name), ranks)
            _check([Path(folder, training.name) for training in trainings])
    except launching.LaunchError as error:
        raise StopError(str(error)) from None
    kept = f"The ledgers are in {log_dir}." if log_dir else "--log-dir DIR would have kept the ledgers."
    click.echo(kept, err=True)


def _folder(log_dir: Path | None) -> AbstractContextManager[str]:
    if log_dir is None:
        return tempfile.TemporaryDirectory(prefix="accumaudit-demo-")
    return nullcontext(str(log_dir))


def _train(training: Scenario, folder: Path, ranks: int | None) -> None:
    from accumaudit.demo.launching import able_ranks, launch

    ranks = able_ranks(training, ranks)
    if folder.exists():
        raise StopError(f"{folder} is there already: name another --log-dir, or remove it")
    click.echo(f"Training {training.name} on {ranks} rank{'s' * (ranks > 1)}: {training.summary}", err=True)
    launch(training, folder, ranks)


def _check(folders: list[Path]) -> None:
    from rich.console import Console

    from accumaudit.engine import check_paths
    from accumaudit.outputs import text

    text.render(check_paths(folders), Console())


def _list() -> None:
    from accumaudit.demo.faults import FAULTS
    from accumaudit.demo.variants import VARIANTS

    formatter = click.HelpFormatter(width=min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    with formatter.section("Faults"):
        in_order = sorted((f"{fault.code} {name}", fault.summary) for name, fault in FAULTS.items())
        formatter.write_dl(in_order, 40)
    with formatter.section("Right loops"):
        formatter.write_dl([(name, right.summary) for name, right in VARIANTS.items()], 40)
    click.echo(formatter.getvalue().rstrip())
