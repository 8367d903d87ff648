"""What a real TensorBoard shows of runs, over HTTP and in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from accumaudit.cli import main
from accumaudit.outputs.tensorboard.live import Live
from accumaudit.outputs.tensorboard.names import folder_name
from tests.pages import page
from tests.records import START, write_run
from tests.scalars import finding, points, run_view
from tests.servers import Server, tensorboard, until

pytestmark = pytest.mark.slow  # it starts a server and a browser
NAME: Final = "<img src=x onerror=alert(1)>"
FAULTY: Final = folder_name(NAME)
BAND: Final = "Learning rate in the band of 2% around what its scheduler announced"
CHARTS: Final = {
    BAND,
    "Learning rate, used and announced",
    "Gradient norm before and after the clip",
    "Total weight T, lightest and heaviest token (right: 1)",
    "Equivalent batch and valid tokens",
    "Skipped attempts so far",
    "Faulty attempts so far, by rule",
}
_TEXTS: Final = """(() => {
    const shown = [];
    const visit = node => {
        if (node.nodeType === 3) shown.push(node.data);
        if (node.shadowRoot) visit(node.shadowRoot);
        if (!['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.nodeName)) node.childNodes.forEach(visit);
    };
    visit(document.body);
    return shown.join(' ').replace(/\\s+/g, ' ');
})()"""
"""What a page of web components says."""


@dataclass
class Shown:
    """A TensorBoard over what was exported, and over what a service writes."""

    server: Server
    folder: Path
    live: Live

    def scalars(self, run: str, tag: str) -> list[tuple[int, float]]:
        """Steps and values."""
        found = self.server.json("/data/plugin/scalars/scalars", run=run, tag=tag)
        return [(step, value) for _, step, value in found]

    def has(self, run: str, tag: str, steps: int) -> bool:
        """Whether it has read so many steps of a tag."""
        tags = self.server.json("/data/plugin/scalars/tags")
        return tag in tags.get(run, {}) and len(self.scalars(run, tag)) == steps


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A run with a short window, skips and a resume that does an update again; and one that is written."""
    logs, folder = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("tensorboard")
    norms = {"grad_norm_before_clip": 2.0, "grad_norm_before_scope": "global", "grad_norm_after_clip": 1.0}
    faulty = {**norms, "microbatches": 2, "total_weight": 0.5}
    skipped = {**norms, "skipped": True}
    write_run(logs / NAME, [norms, norms, faulty, skipped, skipped, norms, norms], close=False)
    later: dict[str, Any] = {
        "launch": "bbbb",
        "first_update": 5,
        "resumed_from_update": 4,
        "started_at": START + 900,
    }
    write_run(logs / NAME, [norms, norms], **later)
    for _ in range(2):  # the second takes the place of the first
        command = ["export", str(logs), "--format", "tensorboard", "--output", str(folder)]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    live = Live(folder)
    live.moved(run_view(run_id="live"), points(1, 9))
    with tensorboard(folder) as server:
        shown = Shown(server, folder, live)
        until(lambda: shown.has(FAULTY, "loss", 6) and shown.has("live", "loss", 9), "updates")
        yield shown
    live.close()


def test_both_axes_are_runs(shown: Shown) -> None:
    """Whatever the name of the run is; each update once, though one was done twice."""
    assert set(shown.server.json("/data/runs")) == {FAULTY, f"{FAULTY}@tokens", "live", "live@tokens"}
    assert shown.scalars(FAULTY, "weights/total") == [
        (update, 0.5 if update == 3 else 1.0) for update in range(1, 7)
    ]
    assert shown.scalars(FAULTY, "attempts/launch") == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert shown.scalars(FAULTY, "attempts/skipped") == [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (6, 2)]
    tokens = [int(value) for _, value in shown.scalars(FAULTY, "tokens")]
    over_tokens = shown.scalars(f"{FAULTY}@tokens", "over_tokens/update")
    assert over_tokens == [(count, update) for update, count in enumerate(tokens, 1)]


def test_every_tag_says_what_it_is(shown: Shown) -> None:
    """Behind the button of its chart."""
    tags = shown.server.json("/data/plugin/scalars/tags")
    assert all(tag["description"] for run in tags.values() for tag in run.values())
    assert "Right is 1" in tags[FAULTY]["weights/total"]["description"]


def test_charts_are_laid_out(shown: Shown) -> None:
    """Once, however many runs bring the layout; each chart has its tags in the faulty run."""
    found = shown.server.json("/data/plugin/custom_scalars/layout")["category"]
    assert [one["title"] for one in found] == ["accumaudit", "accumaudit, over valid tokens"]
    charts = {chart["title"]: chart for chart in found[0]["chart"]}
    assert set(charts) == CHARTS
    assert len(found[0]["chart"]) == len(CHARTS)
    (band,) = charts.pop(BAND)["margin"]["series"]
    steps = {tuple(step for step, _ in shown.scalars(FAULTY, band[part])) for part in band}
    assert steps == {(2, 3, 4, 6)}  # nothing is announced for the first update of a launch
    for chart in charts.values():
        for tag in chart["multiline"]["tag"]:
            answer = shown.server.json("/data/plugin/custom_scalars/scalars", run=FAULTY, tag=tag)
            assert answer["regex_valid"]
            assert answer["tag_to_events"], tag


def test_a_finding_is_a_point_and_a_text(shown: Shown) -> None:
    """The text is safe HTML by the time it is shown."""
    assert shown.scalars(FAULTY, "findings/ACC101") == [(3, 1.0)]
    assert "reports/ACC101" in shown.server.json("/data/plugin/text/tags")[FAULTY]
    (text,) = shown.server.json("/data/plugin/text/text", run=FAULTY, tag="reports/ACC101")
    assert text["step"] == 3
    assert "<strong>ACC101 fixed-divisor-tail</strong> (error): update 3, both ranks" in text["text"]
    assert "What to do: Divide by" in text["text"]


def test_a_resume_while_tensorboard_looks_on_shows_each_update_once(shown: Shown) -> None:
    """What it had read of the updates that are done again is no more; the service starts anew besides."""
    shown.live.moved(run_view(run_id="live"), points(5, 7, launch=2, loss=1.0))
    until(lambda: shown.has("live", "loss", 7), "resume")
    expected = [(step, 2.0 if step < 5 else 1.0) for step in range(1, 8)]
    assert shown.scalars("live", "loss") == expected
    until(lambda: shown.has("live@tokens", "over_tokens/loss", 7), "resume over tokens")
    assert shown.scalars("live@tokens", "over_tokens/loss") == [(100 * step, loss) for step, loss in expected]
    again = Live(shown.folder)
    again.moved(run_view(finding(), run_id="live"), points(6, 9, launch=2, loss=1.0))
    again.close()
    until(lambda: shown.has("live", "loss", 9), "updates after the restart")
    assert shown.scalars("live", "loss") == [(step, 2.0 if step < 5 else 1.0) for step in range(1, 10)]
    assert shown.scalars("live", "findings/ACC101") == [(2, 1.0)]


def test_a_browser_shows_charts_and_findings(shown: Shown, tmp_path: Path) -> None:
    """No chart lacks its data, and no name is taken for HTML."""
    with page() as tab:
        tab.open(shown.server.url + "/#custom_scalars")
        for title in CHARTS:
            tab.until(f"{_TEXTS}.includes({json.dumps(title)})")
        tab.until(f"{_TEXTS}.includes('Matches')")
        said = tab.evaluate(_TEXTS)
        assert FAULTY in said
        assert "mismatch" not in said.lower()
        tab.shoot(tmp_path / "charts.png")
        tab.open(shown.server.url + "/#text")
        tab.until(f"{_TEXTS}.includes('What to do: Divide by')")
        tab.shoot(tmp_path / "text.png")
        assert [one for one in tab.complaints if "alert" in one or "Error" in one] == []
