"""What `accumaudit dashboards export` writes: dashboards, how Grafana is to load them, rules and alerts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from accumaudit.dashboards import boards
from accumaudit.dashboards.classic import Json

HERE: Final = Path(__file__).resolve().parent
PROMETHEUS: Final = ("prometheus/rules.yml", "prometheus/alerts.yml", "prometheus/mixin.libsonnet")

DATASOURCES: Final = """\
# A Prometheus for Grafana, where it has none yet: set the address, and how often it scrapes.
apiVersion: 1
datasources:
  - name: Prometheus
    type: prometheus
    access: proxy
    url: http://127.0.0.1:9090
    jsonData:
      httpMethod: POST
      timeInterval: 15s
"""
PROVIDERS: Final = """\
# Where Grafana finds the dashboards: a path on the machine, or in the container, that it runs in.
apiVersion: 1
providers:
  - name: accumaudit
    folder: accumaudit
    type: file
    updateIntervalSeconds: 60
    options:
      path: {path}
"""


def files(folder: Path, datasource_uid: str | None = None) -> dict[str, str]:
    """The text of each file by its path below the folder."""
    found = {name: text(_opening_with(board, datasource_uid)) for name, board in boards.by_file().items()}
    found |= {name: (HERE / name).read_text(encoding="utf-8") for name in PROMETHEUS}
    # Grafana puts variables of its environment in place of words that begin with a dollar.
    path = json.dumps(str(folder.resolve() / "grafana").replace("$", "$$"))
    found["provisioning/dashboards/accumaudit.yml"] = PROVIDERS.format(path=path)
    if datasource_uid is None:
        found["provisioning/datasources/accumaudit.yml"] = DATASOURCES
    return found


def text(board: Json) -> str:
    """A dashboard as it stands in a file."""
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def _opening_with(board: Json, datasource_uid: str | None) -> Json:
    """The dashboard with a data source chosen; another can be chosen at the top of the page all the same."""
    if datasource_uid is None:
        return board
    chosen = {"selected": True, "text": datasource_uid, "value": datasource_uid}
    first, *rest = board["templating"]["list"]
    return board | {"templating": {"list": [first | {"current": chosen}, *rest]}}
