"""The post-mortem as one page that needs nothing beside it: no server, no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup, escape

from accumaudit import __version__
from accumaudit.outputs.comparison import tables
from accumaudit.outputs.json_report import finite
from accumaudit.outputs.postmortem import charts, views
from accumaudit.outputs.postmortem.figures import PALETTES
from accumaudit.outputs.postmortem.thinning import thinned
from accumaudit.outputs.text import size
from accumaudit.outputs.words import plural, printable

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison
    from accumaudit.postmortem.model import History, PostMortem

DRAWN: Final = 24
"""Optimizers of all runs of a page that are drawn."""

_PACKAGE: Final = "accumaudit.outputs.postmortem"


def rendered(tellings: Sequence[PostMortem]) -> str:
    """The page; ModuleNotFoundError where the package that draws the charts is not installed."""
    drawn = thinned([history for one in tellings for history in one.histories if history.curves][:DRAWN])
    runs = [_run(one, _taken(drawn, one)) for one in tellings]
    names = [views.shown(one.run.run_id) for one in tellings]
    return _page(
        "postmortem.html",
        any(_has_charts(one) or (one["comparison"] and _has_charts(one["comparison"])) for one in runs),
        title=f"Post-mortem of {names[0]}"
        if len(names) == 1
        else f"Post-mortem of {plural(len(names), 'run')}",
        runs=runs,
        contents=list(views.contents(tellings)),
    )


def comparison_page(comparison: Comparison) -> str:
    """The page of two runs side by side."""
    shown = _compared(comparison)
    names = [views.shown(side.name) for side in comparison.sides]
    return _page("comparison_page.html", _has_charts(shown), title=" against ".join(names), shown=shown)


def _compared(comparison: Comparison) -> dict[str, Any]:
    tone, outcome = ("good", "The same") if comparison.same else ("warning", "Different")
    if not comparison.same and comparison.first is None:
        outcome = "Not compared"
    return {
        "tone": tone,
        "outcome": outcome,
        "verdict": comparison.verdict,
        "data": comparison.data,
        "sides": [(views.shown(one.name), tables.side(one)) for one in comparison.sides],
        "remarks": [views.sentence(one) for one in (tables.aligned(comparison), *comparison.remarks)],
        "groups": charts.of_comparison(comparison),
        "tables": list(tables.tables(comparison)),
        "not_compared": tables.not_compared(comparison),
    }


def _has_charts(shown: dict[str, Any]) -> bool:
    return any(group.charts for group in shown["groups"])


def _taken(drawn: list[History], telling: PostMortem) -> list[History]:
    """The histories of one telling from the front of those that are drawn."""
    count = sum(bool(history.curves) for history in telling.histories)
    own, drawn[:count] = drawn[:count], []
    return own


def _run(telling: PostMortem, histories: Sequence[History]) -> dict[str, Any]:
    run = telling.run
    tone, outcome = views.OUTCOMES[telling.outcome]
    groups = charts.of_post_mortem(telling, histories)
    return {
        "name": views.shown(run.run_id),
        "size": size(run),
        "tone": tone,
        "outcome": outcome,
        "telling": telling,
        "first_wrong": views.first_wrong(telling),
        "no_first_wrong": views.no_first_wrong(telling),
        "onset": views.onset(telling),
        "loss": views.loss_facts(telling.loss, run) if telling.loss else [],
        "changes": views.changes(telling),
        "groups": groups,
        "undrawn": sum(bool(one.curves) for one in telling.histories) - len(groups),
        "grid": views.grid(telling.around, run),
        "findings": views.finding_groups(telling),
        "strips": views.strips(telling.strip) if telling.strip else [],
        "strip_mark": views.strip_mark(telling),
        "comparison": _compared(telling.comparison) if telling.comparison else None,
    }


def _page(template: str, has_charts: bool, **shown: Any) -> str:
    """A template with its scripts, and a policy that lets these run and nothing else."""
    style = _resource("style.css")
    scripts = [*([_plotly()] if has_charts else []), _script("page.js")]
    # The script that draws adds rules of style while it does, and a style for each thing that it draws.
    styles = "'unsafe-inline'" if has_charts else _hashes([f"\n{style}\n"])
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    templates = _templates()
    templates.globals.update(number_heads=charts.NUMBER_HEADS, version=__version__)
    return templates.get_template(template).render(
        shown,
        policy=policy,
        style=Markup(style),
        scripts=[Markup(one) for one in scripts],
        palettes=PALETTES,
    )


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(data=_data, coded=_coded, plural=plural)
    return templates


def _printable(value: object) -> object:
    """Texts of a record in one line, with an escape for what is no letter."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _coded(text: str) -> Markup:
    """A text in which what stands between backticks is code."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:
        return escape(printable(text))
    marked = (
        Markup("<code>{}</code>").format(one) if at % 2 else escape(one) for at, one in enumerate(parts)
    )
    return Markup("").join(marked)


def _data(value: object) -> Markup:
    """The value for a script, as JSON that no text in it can end."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _resource(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    return _inline(_resource(name))


def _plotly() -> str:
    return _inline((files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8"))


def _inline(script: str) -> str:
    """A script as it can stand in a page: its hash is of the text as a browser reads it."""
    script = script.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _hashes(texts: Sequence[str]) -> str:
    """What a policy calls these very texts."""
    digests = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in texts)
    return " ".join(f"'sha256-{one}'" for one in digests)
