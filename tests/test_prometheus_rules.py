"""The recording rules, the alerts and the mixin, by Prometheus' own tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import _jsonnet
import pytest
import yaml

from accumaudit.engine.catalogue import load_rules
from tests.servers import tool

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "dashboards" / "prometheus"
SEVERITIES: Final = {"critical", "warning", "info"}


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_promtool_finds_nothing_in_the_rules() -> None:
    tool(
        "promtool",
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        FOLDER / "rules.yml",
        FOLDER / "alerts.yml",
    )


def test_every_alert_fires_where_it_should_and_not_before() -> None:
    files = {file.stem: file for file in (FOLDER / "tests").glob("*.yml")}
    assert files.keys() == alerts().keys()
    for name, file in files.items():
        (test,) = yaml.safe_load(file.read_text())["tests"]
        quiet, fires = test["alert_rule_test"]
        assert quiet["alertname"] == fires["alertname"] == name
        assert not quiet["exp_alerts"]
        assert len(fires["exp_alerts"]) == 1
    said = tool("promtool", "test", "rules", *sorted(files.values()))
    assert said.count("SUCCESS") == len(files)


def test_every_alert_says_what_it_is_and_how_bad() -> None:
    """The summary holds no values, so that notifications of many runs have one title."""
    for name, alert in alerts().items():
        assert re.fullmatch(r"Accumaudit[A-Z][A-Za-z]+", name)
        assert alert["labels"]["severity"] in SEVERITIES, name
        assert alert.keys() >= {"for", "annotations"}, name
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert "{{" not in alert["annotations"]["summary"], name
        assert "{{" in alert["annotations"]["description"], name


def headings(page: str) -> set[str]:
    """The anchors that a page's headings have."""
    titles = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_runbook_is_a_section_of_the_manual() -> None:
    anchors = {page: headings(page) for page in ("rules.md", "monitoring.md")}
    template = "{{ $labels.rule | toLower }}-{{ $labels.name }}"
    for name, alert in alerts().items():
        page, _, anchor = alert["annotations"]["runbook_url"].rpartition("/")[2].partition("#")
        if anchor == template:
            assert page == "rules.md"
            assert {f"{rule.code.lower()}-{rule.name}" for rule in load_rules().values()} <= anchors[page]
        else:
            assert (page, anchor) == ("monitoring.md", name.lower())
            assert anchor in anchors[page], name


@pytest.mark.parametrize(
    ("selector", "runbooks"),
    [('job="accumaudit"', None), ('cluster="a", job=~"watch.*"', "https://runbooks.example/x/")],
)
def test_the_mixin_gives_all_with_the_selector_and_the_runbooks_of_its_user(
    selector: str, runbooks: str | None
) -> None:
    config = {"selector": selector} | ({"runbooks": runbooks} if runbooks else {})
    program = f"""
        local mixin = (import 'mixin.libsonnet') + {{ _config+:: {json.dumps(config)} }};
        {{
          dashboards: mixin.grafanaDashboards,
          rules: mixin.prometheusRules,
          alerts: mixin.prometheusAlerts,
        }}
    """
    made = json.loads(_jsonnet.evaluate_snippet(str(FOLDER / "user.jsonnet"), program))
    for name in ("rules", "alerts"):
        text = (FOLDER / f"{name}.yml").read_text()
        if runbooks:
            text = text.replace('job="accumaudit"', selector)
            text = re.sub(r"https://github.com/\S+/docs/", runbooks, text)
        assert made[name] == yaml.safe_load(text)
    files = sorted((ROOT / "dashboards" / "grafana").glob("*.json"))
    assert len(files) == len(made["dashboards"]) > 0
    for file in files:
        assert made["dashboards"][f"accumaudit-{file.name}"] == json.loads(file.read_text())
