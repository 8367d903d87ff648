"""`accumaudit dashboards export`: what Grafana and Prometheus are to be given."""

from __future__ import annotations

from pathlib import Path

import click

from accumaudit.cli import NearGroup, StopError


@click.group("dashboards", cls=NearGroup)
def command() -> None:
    """Write dashboards for Grafana, and rules and alerts for Prometheus."""


@command.command("export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--datasource-uid",
    metavar="UID",
    help="The Prometheus that Grafana has already: the dashboards open with it, and none is provisioned.",
)
def export(folder: Path, datasource_uid: str | None) -> None:
    """Write dashboards, rules and alerts below DIR; files of the same names are replaced.

    DIR/grafana has the dashboards, DIR/provisioning what Grafana reads them with at its start, and
    DIR/prometheus the rules, the alerts and a mixin of everything.
    """
    from accumaudit.dashboards.exporting import files

    for name, text in files(folder, datasource_uid).items():
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StopError(f"{file} cannot be written: {error.strerror}") from None
        click.echo(f"wrote {file}")
