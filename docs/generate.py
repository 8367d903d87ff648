"""Writes the generated parts of README.md and docs/ and the dashboards; --check says which are out of date.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. Its text comes from the schema of
the record, the headers of the rules and the demo itself, so that no page can drift from them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa

from accumaudit import importers
from accumaudit.cli.explain import RUNTIMES, manual, thresholds
from accumaudit.cli.glossary import WORDS
from accumaudit.dashboards import boards, exporting
from accumaudit.engine.catalogue import Catalogue, load_rules
from accumaudit.engine.rule import Rule
from accumaudit.ledger.columns import TYPES
from accumaudit.ledger.schema import FIELDS, RECORD_FIELD, Field
from accumaudit.rules import TABLES
from accumaudit.service import metric_list
from accumaudit.service.metric_list import Metric
from accumaudit.testing.records import START, write_run

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (
    *("README.md", "docs/ci.md", "docs/ledger.md", "docs/logs.md", "docs/monitoring.md"),
    *("docs/postmortem.md", "docs/rules.md"),
)
DATA: Final = ROOT / "tests" / "data"
"""Small logs in the grammar of each format."""
EVERYWHERE: Final = {
    *("record", "launch", "rank", "optimizer", "attempt_id", "seq", "schema", "started_at"),
    *("recorded_ranks", "recorded_every", "kind", "finished"),
}
"""Fields that say who wrote a record, not what is in it."""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def field_table(kind: str) -> str:
    """The fields of one kind of record."""

    def row(field: Field) -> tuple[str, ...]:
        name = f"`{field.name}`" + (" (required)" if field.required else "")
        return name, f"`{field.type}`", field.meaning, field.unit, field.writer

    return table(("field", "type", "meaning", "unit", "writer"), map(row, (RECORD_FIELD, *FIELDS[kind])))


def auditor_tables() -> str:
    """The tables that rules and `accumaudit sql` read, from the comments above them."""
    text = TABLES.read_text(encoding="utf-8")
    heads = re.finditer(r"^-- (\w+): (.+?) -+\n((?:-- .*\n)+)", text, re.MULTILINE)

    def section(found: re.Match[str]) -> str:
        columns = found[3].replace("-- ", "").rstrip()
        return f"`{found[1]}`: {found[2]}\n\n```text\n{columns}\n```"

    return "\n\n".join(map(section, heads))


def format_table() -> str:
    """The kinds of foreign logs, and the fields that the samples of each fill."""
    held: dict[str, set[str]] = defaultdict(set)
    for path in sorted(path for path in DATA.rglob("*") if path.is_file()):
        log, tables = importers.Log(path), list[pa.Table]()
        format_ = importers.recognise(log).format
        if format_ is not None:
            importers.read(log, format_, tables.append)
            held[format_.name].update(*map(_filled, tables))

    def row(format_: importers.Format) -> tuple[str, ...]:
        fields = [name for name in TYPES if name in held[format_.name]]
        return format_.title, f"`{format_.name}`", ", ".join(f"`{name}`" for name in fields)

    return table(("log", "`format`", "fields that it can fill"), map(row, importers.FORMATS))


def _filled(rows: pa.Table) -> set[str]:
    return {name for name in rows.column_names if rows[name].null_count < len(rows[name])} - EVERYWHERE


def rule_table(rules: Catalogue, page: str = "") -> str:
    """All rules, one line each; the code leads to the rule's section on the page."""

    def row(rule: Rule) -> tuple[str, ...]:
        return f"[{rule.code}]({page}#{anchor(rule)})", rule.name, rule.severity, rule.summary

    return table(("code", "name", "severity", "fault"), map(row, rules.values()))


def anchor(rule: Rule) -> str:
    """What a Markdown page calls the section of a rule."""
    return f"{rule.code.lower()}-{rule.name}"


def rule_sections(rules: Catalogue) -> str:
    """The manuals of all rules, by family."""
    families = dict.fromkeys(rule.family for rule in rules.values())
    return "\n\n".join(
        f"## {family.capitalize()}\n\n"
        + "\n\n".join(rule_section(rules, rule) for rule in rules.values() if rule.family == family)
        for family in families
    )


def rule_section(rules: Catalogue, rule: Rule) -> str:
    """The manual of one rule."""
    facts = [
        f"**{rule.severity}**, judged per {rule.scope}, since {rule.since}",
        f"Not checked where {rule.scope_is_empty}, or where a field it needs is null in the whole run.",
        f"Reads {', '.join(f'`{need}`' for need in rule.needs)}.".replace(" or ", "` or `"),
    ]
    facts += [f"Threshold `{name}`: {meaning}." for name, meaning in thresholds(rule).items()]
    if rule.explains:
        facts.append(f"Where it finds a fault, these say nothing more about it: {links(rules, rule)}.")
    parts = [
        f"### {rule.code} {rule.name}",
        f"{rule.summary[0].upper()}{rule.summary[1:]}.",
        "\n".join(f"- {fact}" for fact in facts),
        f"**Why it matters.** {rule.why}",
        f"**Example.** {rule.example}",
        f"**What to do.** {by_runtime(rule.fix)}",
        f"**No fault when.** {rule.not_a_fault_when}",
    ]
    if rule.references:
        parts.append("**References.** " + "; ".join(rule.references))
    return "\n\n".join(parts)


def by_runtime(fix: str) -> str:
    """The lines of a fix that begin with a runtime as a list."""
    return re.sub(rf"^({'|'.join(RUNTIMES)}):", r"- **\1**:", fix, flags=re.MULTILINE)


def metric_table(metrics: Iterable[Metric]) -> str:
    """Metrics that Prometheus gets, with their labels."""

    def row(metric: Metric) -> tuple[str, ...]:
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        return f"`{metric.name}`", metric.kind, labels, metric.meaning

    return table(("metric", "kind", "labels", "meaning"), map(row, metrics))


def word_table() -> str:
    """The words of the trade that the manuals use."""
    return table(("word", "what it means"), WORDS.items())


def links(rules: Catalogue, rule: Rule) -> str:
    """The rules that a rule explains; those that do not exist yet are not named."""
    return ", ".join(f"[{code}](#{anchor(rules[code])})" for code in rule.explains if code in rules)


def manuals(rules: Catalogue, *codes: str) -> str:
    """What `accumaudit explain` prints of some rules, without the place of the query."""

    def page(code: str) -> str:
        text = "\n".join(manual(rules[code], rules, 80)).partition("\n\nQuery\n")[0]
        return f"```console\n$ accumaudit explain {code}\n{text}\n```"

    return "\n\n".join(map(page, codes))


def demo() -> str:
    """What `make demo` prints, the long lists of rules cut short."""
    with tempfile.TemporaryDirectory() as folder:
        said = _said(Path(folder), "demo", "--log-dir", "runs/demo")
    report = re.sub(r"(/\d{5})\.\w+\.jsonl", r"\1.LAUNCH.jsonl", said)
    report = re.sub(r"(  (?:passed|not checked) .*\n)(?: {15}.*\n)+", rf"\1{' ' * 15}...\n", report)
    return f"```console\n$ make demo\n{report.strip()}\n```"


def log_example() -> str:
    """What is said of a foreign log, the long list of rules that could not judge cut short."""
    said = _said(DATA / "hf", "check", "fp16/trainer_state.json")
    report = re.sub(r"(  not checked .*\n(?: {15}.*\n){2})(?: {15}.*\n)+", rf"\1{' ' * 15}...\n", said)
    return f"```console\n$ accumaudit check fp16/trainer_state.json\n{report.strip()}\n```"


def format_example(format_: str, language: str) -> str:
    """The report on the fault of the demo, in a format of other programs."""
    with tempfile.TemporaryDirectory() as folder:
        _said(Path(folder), "demo", "--fault", "fixed-divisor-tail", "--log-dir", "runs")
        arguments = ("check", "runs", "--select", "ACC101,ACC103", "--format", format_)
        said = _said(Path(folder), *arguments, status=1)
    report = re.sub(r"(/\d{5})\.\w+\.jsonl", r"\1.LAUNCH.jsonl", said)
    return f"```{language}\n{report.strip()}\n```"


def post_mortem_example() -> str:
    """The story of a run whose rate jumped at its resume, without its tables."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        falling = [{"loss": [4.0 - 0.02 * update] * 4} for update in range(120)]
        saved = [
            {"kind": "checkpoint", "name": f"step-{number}", "attempt_id": number} for number in (60, 120)
        ]
        write_run(runs / "first", falling, marks=saved)
        losses = [1.6 - 0.01 * update for update in range(12)] + [3.7 + 0.02 * (n % 5) for n in range(50)]
        write_run(
            runs / "first",
            [_at_ten_times_the_rate(121 + place, loss) for place, loss in enumerate(losses)],
            launch="bbbb",
            first_update=121,
            resumed_from_update=120,
            optimizer_state_step_at_attach=120,
            scheduler_step_at_attach=120,
            started_at=START + 3600,
        )
        said = _said(Path(folder), "postmortem", "runs/first")
    story = said.partition("\n## The ranks")[0]
    for heading in ("What the run did", "The attempts around it"):
        story = re.sub(rf"(\n## {heading}\n\n).*?(?=\n## )", r"\1...\n", story, flags=re.DOTALL)
    return f"```console\n$ accumaudit postmortem runs/first\n{story.strip()}\n```"


def _at_ten_times_the_rate(update: int, loss: float) -> dict[str, object]:
    rates = [1e-2 / (1 + 0.01 * number) for number in (update, update + 1)]
    return {
        "loss": [loss] * 4,
        "learning_rate": rates[0],
        "learning_rates": rates[:1],
        "scheduler_rate": rates[1],
    }


def diff_example() -> str:
    """Two runs that are the same training until one of them loses half of a window."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        write_run(runs / "first", 40)
        write_run(runs / "second", [{"microbatches": 2} if update == 30 else {} for update in range(40)])
        said = _said(Path(folder), "diff", "runs/first", "runs/second", status=1)
    return f"```console\n$ accumaudit diff runs/first runs/second\n{said.strip()}\n```"


def _said(folder: Path, *arguments: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "accumaudit", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def renewed(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A page with these of its generated parts written again."""

    def renew(found: re.Match[str]) -> str:
        name = found[1]
        if name not in parts:
            return found[0]
        return f"<!-- begin {name} -->\n{parts[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin ([a-z-]+) -->\n.*?<!-- end \1 -->", renew, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page, as it should be."""
    rules = load_rules()
    parts: dict[str, Callable[[], str]] = {
        "run-fields": lambda: field_table("run"),
        "update-fields": lambda: field_table("update"),
        "mark-fields": lambda: field_table("mark"),
        "tables": auditor_tables,
        "rule-list": lambda: rule_table(rules, "docs/rules.md"),
        "rule-table": lambda: rule_table(rules),
        "words": word_table,
        "metrics-of-runs": lambda: metric_table(metric_list.OF_RUNS),
        "metrics-over-ranks": lambda: metric_table(metric_list.OF_RANKS),
        "metrics-of-each-rank": lambda: metric_table(metric_list.OF_EACH_RANK),
        "metrics-of-the-service": lambda: metric_table(metric_list.OF_THE_SERVICE),
        "rules": lambda: rule_sections(rules),
        "demo": demo,
        "formats": format_table,
        "log-example": log_example,
        "manuals": lambda: manuals(rules, "ACC102", "ACC502"),
        "github-example": lambda: format_example("github", "text"),
        "story": post_mortem_example,
        "diff": diff_example,
        "markdown-example": lambda: format_example("markdown", "markdown"),
        "junit-example": lambda: format_example("junit", "xml"),
    }
    return {ROOT / name: renewed((ROOT / name).read_text(encoding="utf-8"), parts) for name in PAGES}


def dashboards() -> dict[Path, str]:
    """Every dashboard, as it should be."""
    return {ROOT / "dashboards" / name: exporting.text(board) for name, board in boards.by_file().items()}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; 1 where one is out of date."""
    check = arguments == ["--check"]
    written = pages() | dashboards()
    stale = {
        path: text
        for path, text in written.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        name = path.relative_to(ROOT)
        if check:
            sys.stderr.write(f"{name} is out of date: run `make docs` and commit what it writes\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{name} written again\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
