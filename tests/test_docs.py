"""The pages tell what the code does: commands, options, fields, rules, examples; and name no stray place."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch

from accumaudit import Audit, attach
from accumaudit.cli import VERBS, main
from accumaudit.cli.config import IGNORE_KEYS, KEYS, find_settings
from accumaudit.engine import check_paths
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.ignoring import Ignore
from accumaudit.hooks import patches
from accumaudit.hooks.audit import DECLARABLE, MARKS
from accumaudit.ledger.schema import FIELDS
from accumaudit.outputs import rendered
from accumaudit.outputs.results import Options
from tests.records import write_run

pytestmark = pytest.mark.slow  # what the pages show is run

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ELSEWHERE = ("python.md", "runtimes.md", "testing.md")
"""Pages whose examples other tests run: test_ledger_api, runtimes.test_page and test_testing."""
README = (ROOT / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def verb(name: str) -> click.Command:
    command: click.Command = importlib.import_module(f"accumaudit.cli.{name}").command
    return command


def options(command: click.Command) -> set[str]:
    """The options of a command and of those below it as they are typed, the long forms."""
    words = {word for param in command.params for word in param.opts if word.startswith("--")}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return words.union(*map(options, below))


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", VERBS)
def test_the_readme_names_every_command_and_option(name: str) -> None:
    assert f"accumaudit {name}" in README
    missing = {word for word in options(verb(name)) if word not in README}
    assert not missing


def test_every_rule_has_a_line_in_the_readme_and_a_section() -> None:
    for rule in load_rules().values():
        assert f"| [{rule.code}](docs/rules.md#" in README
        assert f"### {rule.code} {rule.name}\n" in page("rules.md")


def test_the_changelog_tells_when_a_rule_came() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for rule in load_rules().values():
        (release,) = (text for text in releases if text.startswith(f"[{rule.since}]"))
        assert f"{rule.code} {rule.name}" in re.sub(r"\s+", " ", release.partition("### Rules")[2])


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_of_the_record_is_explained(kind: str) -> None:
    section = page("ledger.md").partition(f"## The `{kind}` record")[2].partition("\n## ")[0]
    missing = {field.name for field in FIELDS[kind] if f"`{field.name}`" not in section}
    assert not missing


def test_every_argument_of_attach_and_every_method_of_the_audit_is_explained() -> None:
    methods = {name for name, _ in inspect.getmembers(Audit, inspect.isfunction) if not name.startswith("_")}
    wanted = {f"| `{name}` |" for name in inspect.signature(attach).parameters}
    wanted |= {f"| `audit.{name}(" for name in methods}
    wanted |= {f"`{name}`" for name in (*DECLARABLE, *MARKS)}
    wanted |= {f"`{name}`" for name in inspect.signature(Audit.report).parameters if name != "self"}
    assert not {text for text in wanted if text not in page("hooks.md")}


def test_every_patch_is_named() -> None:
    named = page("hooks.md").partition("| replaced |")[2]
    for patch in patches.PATCHES:
        owner = getattr(patch.owner, "__name__", "")
        assert f"`{owner}.{patch.name}`" in named


def test_every_letter_of_a_word_is_explained() -> None:
    letters = page("ledger.md").partition("| letter | event |")[2].partition("\n\n")[0]
    explained = {letter for row in re.findall(r"^\| (.+?) \|", letters, re.MULTILINE) for letter in row}
    assert set("FfDBbZUCMAOXoGSER()|") <= explained


def examples() -> list[tuple[str, str]]:
    """The Python examples of the pages that attach to a training."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in PAGES if path.name not in ELSEWHERE}
    blocks = {name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in texts.items()}
    return [(name, code) for name, codes in blocks.items() for code in codes]


def small_training() -> dict[str, object]:
    """What the examples speak of, and a loop that they may call."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.arange(16) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=2)

    def train(*_: object) -> None:
        for step, (inputs, labels) in enumerate(loader, 1):
            (torch.nn.functional.cross_entropy(model(inputs), labels) / 4).backward()
            if step % 4 == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "train": train}


@pytest.mark.parametrize(("name", "code"), examples())
def test_examples_run_and_record_a_right_training(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(code, encoding="utf-8")
    after = runpy.run_path("example.py", small_training())
    if "audit" in after:  # otherwise the example has trained already
        after["train"]()
        after["audit"].close()
    (run,) = check_paths([tmp_path / "runs" / "first"]).runs
    assert run.updates == 2, name
    assert not [verdict for verdict in run.verdicts if verdict.status not in ("passed", "not_checked")]


def typed_commands() -> Iterator[tuple[str, str]]:
    """Each line of a page's code that begins with the command, without what is optional in it."""
    for path in PAGES:
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"(?: {4}| *\$ )(accumaudit \w+.*)", line):
                yield path.name, found[1]


@pytest.mark.parametrize(("name", "line"), list(typed_commands()))
def test_commands_on_the_pages_exist(name: str, line: str) -> None:
    called = line.split()[1]
    assert called in VERBS, name
    assert set(re.findall(r"--[a-z-]+", line)) <= options(verb(called)), name


def test_the_pages_tell_the_exit_statuses() -> None:
    section = README.partition("Exit status:")[2][:400]
    assert [f"**{status}**" in section for status in (0, 1, 2)] == [True] * 3
    assert main.name == "main"


@pytest.mark.parametrize("text", [README, page("configuration.md")], ids=["README", "configuration"])
def test_the_settings_on_the_pages_are_understood(text: str, tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(toml, encoding="utf-8")
    settings = find_settings(tmp_path)
    assert settings.fail_on == "warning"
    rules = load_rules().with_params(settings.params)
    assert rules.matching(settings.ignore)
    assert [*settings.ignores] == [one for one in settings.ignores if rules.matching([one.rule])]


def test_every_setting_is_explained() -> None:
    text = page("configuration.md")
    assert not {key for key in (*KEYS, *IGNORE_KEYS) if f"| `{key}` |" not in text}


def keys(value: object) -> set[str]:
    """The names of all fields in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set[str]().union(*map(keys, value)) if isinstance(value, list) else set()


def test_the_json_example_has_the_fields_of_a_report(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", page("report.md"), re.DOTALL)
    run = write_run(tmp_path / "first", [{"total_weight": 0.25}] * 2)
    with next(run.rglob("*.jsonl")).open("a", encoding="utf-8") as file:
        file.write("torn\n")
    known = Ignore(rule="ACC104", updates="1", reason="it is known")
    report = rendered(check_paths([run], ignore=[known]), "json", Options())
    assert keys(json.loads(example)) == keys(json.loads(report))


def anchors(path: Path) -> set[str]:
    """The names of a page's headings, as links write them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def text_files() -> Iterator[Path]:
    """What the repository holds in text, links and caches left out."""
    endings = {".py", ".sql", ".md", ".toml", ".txt", ".json", ".jsonl", ""}
    for folder in ("accumaudit", "hooks", "rules", "dashboards", "docs", "tests", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT)
            linked = inside.parts[1] in ("hooks", "rules", "dashboards") and folder == "accumaudit"
            if path.is_file() and path.suffix in endings and "__pycache__" not in inside.parts and not linked:
                yield path
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in endings)


def test_no_file_names_a_place_of_one_machine_or_a_registry() -> None:
    places = "|".join(("home", "root", "work", "opt", "mnt", "Users"))
    hosts = "|".join(
        ("pypi" + r"\.org", "python" + "hosted", "download" + r"\.pytorch", "conda" + r"\.anaconda")
    )
    stray = re.compile(rf"(?<![\w.$}}>*-])/(?:{places})/\w|{hosts}")
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in text_files()
        for match in stray.finditer(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert not found
