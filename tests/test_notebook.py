"""Ledgers in a notebook: what is shown of them, charts, post-mortems, and the example that does it all."""

from __future__ import annotations

import html
import json
import re
import runpy
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly.graph_objects import Figure

from accumaudit import Ledger, LedgerError
from accumaudit.testing import write_run

pytestmark = pytest.mark.slow  # ledgers are judged

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "notebook.py"
HOSTILE = "<img src=x onerror=alert(1)>"
SHORT: dict[str, Any] = {"microbatches": 2, "total_weight": 0.5}
ATTEMPTS: list[dict[str, Any]] = [
    {},
    {},
    {"skipped": True},
    SHORT,
    {},
    {"loss": [50.0] * 4},
    *[{}] * 7,
    SHORT,
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Two runs: one whose short windows weigh half, under a name that is HTML, and a right one."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / HOSTILE, ATTEMPTS)
    write_run(folder / "right", 3, ranks=1)
    with Ledger.open(folder) as opened:
        yield opened


class _Checked(HTMLParser):
    """Reads HTML, and keeps its text; tags that do not close, or that could act, fail."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "p", "strong", "span", "table", "thead", "tbody", "tr", "th", "td", "br")
        assert {name for name, _ in attrs} <= {"style", "scope"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def seen(shown: str) -> str:
    """The text of well-formed HTML, its pieces apart by bars."""
    parser = _Checked()
    parser.feed(shown)
    parser.close()
    assert not parser.open
    return " | ".join(parser.text)


class TestLedger:
    def test_a_row_for_each_run_with_its_findings_and_its_first_wrong_update(self, ledger: Ledger) -> None:
        text = seen(ledger._repr_html_())
        assert f"{HOSTILE} | ledger / torch | 0-1 | 13 | 1 | 1 error | update 3 (ACC101)" in text
        assert re.search(
            r"right \| ledger / torch \| 0 \| 3 \| 0 \| nothing \(\d+ rules passed, \d+ not", text
        )

    def test_each_finding_is_told(self, ledger: Ledger) -> None:
        message = "a short window of 2 of 4 micro-steps weighs 0.500 of an update"
        text = seen(ledger._repr_html_())
        assert f"error | ACC101 fixed-divisor-tail | updates 3 and 13 | both ranks | {message}" in text

    def test_a_closed_ledger_shows_what_it_knows(self, tmp_path: Path) -> None:
        ledger = Ledger.open(write_run(tmp_path / "run", 1, ranks=1))
        ledger.close()
        assert seen(ledger._repr_html_()) == "accumaudit ledger | : 1 run, closed | run"

    def test_holes_of_the_record_are_told(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, ranks=1)
        with next(run.rglob("*.jsonl")).open("a", encoding="utf-8") as file:
            file.write("torn\n")
        with Ledger.open(run) as ledger:
            assert "run: 1 line left out that cannot be read." in seen(ledger._repr_html_())


class TestTable:
    def test_the_first_rows_below_names_and_types(self, ledger: Ledger) -> None:
        text = seen(ledger.updates._repr_html_())
        assert text.startswith("run_id | VARCHAR | launch | BIGINT | ")
        assert " | valid_tokens | DOUBLE[] | " in text
        assert "[100, 110, 120, 130]" in text
        assert text.endswith(f"| 31 rows of {len(ledger.updates.columns)} columns, the first 10 shown")

    def test_values_are_short_and_escaped(self, ledger: Ledger) -> None:
        query = (
            "SELECT '<b>' || repeat('x', 500) AS text, range(9) AS many, 1e9 + 0.5 AS seconds, NULL AS none"
        )
        text = seen(ledger.sql(query)._repr_html_())
        cells = f"<b>{'x' * 94}... | [0, 1, 2, 3, ...] | 1000000000 | None | 1 row of 4 columns"
        assert text.endswith(cells)

    def test_an_empty_table(self, ledger: Ledger) -> None:
        text = seen(ledger.sql("SELECT 1 AS one WHERE false")._repr_html_())
        assert text == "one | INTEGER | 0 rows of 1 column"


def points(figure: Figure, name: str) -> dict[float, float | None]:
    """A trace's values by their x."""
    (trace,) = [one for one in figure.data if one.name == name]
    return dict(zip(trace.x, trace.y, strict=True))


def texts(figure: Figure) -> list[str]:
    """What stands above the charts, without tags."""
    return [re.sub("<[^>]*>", "", one.text) for one in figure.layout.annotations]


class TestPlotOfATable:
    def test_a_chart_for_each_column(self, ledger: Ledger) -> None:
        figure = ledger.sql("SELECT attempt_id, rank, microbatches FROM updates WHERE rank = 0").plot(
            "attempt_id", "microbatches", "rank"
        )
        assert list(points(figure, "microbatches")) == [*range(1, 15)]
        assert texts(figure) == ["microbatches", "rank"]
        assert figure.layout.xaxis.title.text == "attempt_id"

    def test_a_peak_among_very_many_rows_is_drawn(self, ledger: Ledger) -> None:
        rows = "SELECT range AS x, if(range = 123456, 9.0, sin(range)) AS y FROM range(1000000)"
        drawn = points(ledger.sql(rows).plot("x", "y"), "y")
        assert drawn[123456] == 9
        assert 1500 <= len(drawn) <= 3100

    def test_what_is_unknown_is_a_gap(self, ledger: Ledger) -> None:
        rows = "SELECT unnest([1, 2, 3, 4]) AS x, unnest([1.0, NULL, 'nan'::DOUBLE, 2.0]) AS y"
        assert points(ledger.sql(rows).plot("x", "y"), "y") == {1: 1.0, 2: None, 3: None, 4: 2.0}

    @pytest.mark.parametrize(
        ("columns", "error", "message"),
        [
            (("attempt_id", "los"), KeyError, "no column is called 'los', did you mean `loss`?"),
            (("word", "loss"), ValueError, "the column 'word' holds VARCHAR, which is no number"),
            (("attempt_id",), ValueError, "name at least one column to plot"),
        ],
    )
    def test_what_cannot_be_plotted(
        self, ledger: Ledger, columns: tuple[str, ...], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            ledger.windows.plot(*columns)
        assert raised.value.args == (message,)


class TestPlotOfARun:
    def test_every_known_field_is_drawn_and_findings_are_marked(self, ledger: Ledger) -> None:
        figure = ledger.plot(run=HOSTILE)
        assert points(figure, "loss")[5] == 50
        assert points(figure, "sum of all loss weights")[3] == pytest.approx(0.5)
        shown = texts(figure)
        assert shown[0] == "Loss"
        assert "Learning rate of the optimizer announced by the scheduler" in shown
        assert shown[-1] == "ACC101"
        assert 3 in [one.x0 for one in figure.layout.shapes]
        assert figure.layout.title.text == html.escape(HOSTILE, quote=False)

    def test_fields_by_name_over_tokens(self, ledger: Ledger) -> None:
        figure = ledger.plot("total_weight", run=HOSTILE, x="tokens")
        assert [one.name for one in figure.data] == ["sum of all loss weights"]
        assert figure.layout.xaxis.title.text == "valid tokens"
        window = 2 * (100 + 110 + 120 + 130) + 4 * 3
        short = 2 * (100 + 110) + 2 * 3
        assert points(figure, "sum of all loss weights")[2 * window + short] == pytest.approx(0.5)
        assert 2 * window + short in [one.x0 for one in figure.layout.shapes]

    def test_tokens_that_are_not_known(self, tmp_path: Path) -> None:
        write_run(tmp_path / "unknown", [{}, {"valid_tokens": [None] * 4}], ranks=1)
        write_run(tmp_path / "sampled", 6, ranks=1, every=3)
        with Ledger.open(tmp_path) as ledger:
            for run in ("unknown", "sampled"):
                with pytest.raises(ValueError, match="valid tokens of some updates are unknown: plot over"):
                    ledger.plot(run=run, x="tokens")

    @pytest.mark.parametrize(
        ("fields", "options", "message"),
        [
            ((), {}, f"this ledger holds 2 runs: name one of {HOSTILE}, right"),
            ((), {"run": "rihgt"}, "this ledger holds no run 'rihgt', did you mean `right`?"),
            ((), {"run": "right", "optimizer": 1}, "right has no attempt of optimizer 1, but of 0"),
            (("los",), {"run": "right"}, "nothing is known of a field 'los', did you mean `loss`?"),
            ((), {"run": "right", "x": "time"}, "x is 'update' or 'tokens', not 'time'"),
        ],
    )
    def test_what_is_not_there(
        self, ledger: Ledger, fields: tuple[str, ...], options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            ledger.plot(*fields, **options)

    def test_a_figure_is_the_same_each_time(self, ledger: Ledger) -> None:
        first, second = (json.dumps(ledger.plot(run="right").to_dict(), default=list) for _ in range(2))
        assert first == second


class TestPostMortem:
    def test_it_is_that_of_one_run_and_shows_the_first_cause(self, ledger: Ledger) -> None:
        told = ledger.post_mortem(HOSTILE)
        assert told.first_wrong is not None
        assert told.first_wrong.verdict.code == "ACC101"
        text = seen(told._repr_html_())
        assert text.startswith(f"Post-mortem of {HOSTILE}: Faulty updates | {told.verdict[0]} | ")
        assert "| error | ACC101 fixed-divisor-tail | updates 3 and 13 | both ranks | a short window" in text
        assert told.advice in text

    def test_it_is_told_by_all_rules_whatever_was_checked_before(self, ledger: Ledger) -> None:
        ledger.check(select=["ACC205"])
        told = ledger.post_mortem(HOSTILE)
        assert [one.verdict.code for one in told.suspects] == ["ACC101"]

    def test_a_right_run(self, ledger: Ledger) -> None:
        assert ledger.post_mortem("right").outcome == "clean"

    def test_a_closed_ledger(self, tmp_path: Path) -> None:
        ledger = Ledger.open(write_run(tmp_path / "run", 1, ranks=1))
        ledger.close()
        for ask in (ledger.post_mortem, ledger.plot):
            with pytest.raises(LedgerError, match=r"this ledger \(.*run\) is closed; open it again"):
                ask()


class TestComparison:
    def test_the_first_difference_with_both_values(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", 3, ranks=1)
        write_run(tmp_path / "b", [{}, {"learning_rate": 0.5}, {}], ranks=1)
        with Ledger.open(tmp_path / "a", tmp_path / "b") as ledger:
            compared = ledger.compare("a", "b")
            same = ledger.compare("a", "a")
        assert compared.first is not None
        assert (compared.first.field, compared.first.at) == ("learning_rate", 2)
        text = seen(compared._repr_html_())
        assert text.startswith(f"a against b | {compared.verdict[0]} | ")
        assert f"| update 2 | {compared.first.label} | 0.0009803921569 | 0.5 | " in text
        assert same.same
        assert same.verdict[0] in seen(same._repr_html_())

    def test_a_run_that_is_not_there(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="this ledger holds no run 'rihgt', did you mean `right`"):
            ledger.compare(HOSTILE, "rihgt")

    def test_what_runs_cannot_be_aligned_by(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="by is one of update, tokens, micro-step, not 'time'"):
            ledger.compare(HOSTILE, "right", by="time")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("call", ["Ledger.plot()", "Table.plot()"])
def test_without_plotly(ledger: Ledger, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ModuleNotFoundError) as error:
        ledger.plot(run="right") if call == "Ledger.plot()" else ledger.windows.plot("attempt_id", "loss")
    assert (
        str(error.value) == f"{call} needs plotly, which is not installed: pip install 'accumaudit[report]'"
    )
    assert "plotly" not in seen(ledger._repr_html_())


def test_the_example_runs_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    after = runpy.run_path(str(EXAMPLE))
    assert [one.verdict.code for one in after["told"].suspects] == ["ACC101"]
    assert "ACC101" in Path("first.html").read_text(encoding="utf-8")
    assert not after["comparison"].same


def test_the_example_is_a_notebook(tmp_path: Path) -> None:
    cells = re.split(r"^# %%", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for cell in cells:
        kind, _, text = cell.partition("\n")
        if kind == " [markdown]":
            assert all(line.startswith("#") for line in text.splitlines() if line)
        else:
            compile(text, "cell", "exec")
