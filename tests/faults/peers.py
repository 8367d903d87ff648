"""The faults of the scoreboard that one process can train, under other tools that watch a training.

`make scoreboard-peers` runs it with the Python of an environment of its own, where those tools are. What is
known already is kept in the folder that is given, so that a long run can be taken up again. A tool finds a
fault where it says something of the faulty training that it does not say of the honest twin.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import accumaudit
from docs.generate import renewed, table
from tests.faults.registry import Training, faults, what
from tests.faults.scoreboard import PAGE

TIMEOUT: Final = 600.0
"""Seconds for each command of a tool."""
TOOLS: Final = {
    "traincheck": "invariants of the calls into torch, learned from the honest twin",
    "torch-audit": "the state of model, gradients and optimizer, at every step",
    "trainproof": "the log of losses, rates and norms",
}
FOUND, SILENT = "●", "✗"

TRACED: Final = """
import os
from pathlib import Path

import torch

import accumaudit
from tests.faults.registry import faults

torch.set_num_threads(1)
accumaudit.attach = lambda *_, **__: accumaudit.Audit(None)
training = faults()[os.environ["FAULT"]].trainings["torch"]
training.run(Path("ledger"), None, honest=os.environ["HONEST"] == "1")
"""
"""What traincheck is given; hooks would be part of what it traces."""


class ToolError(Exception):
    """A tool that did not come to an end."""


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What a command prints; raises ToolError with its last line where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", **variables}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{Path(command[0]).name} took longer than {TIMEOUT:.0f} s") from None
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
        without_places = re.sub(r"'?/[^\s']+'?", "a file", last)
        raise ToolError(f"{Path(command[0]).name}: {without_places[:200]}")
    return done.stdout


def tool(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).parent / name)


def by_traincheck(name: str, twin: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The invariants of the twin that the faulty training breaks, and those that the twin itself breaks."""
    learned = twin / "invariants.json"
    collect = [tool("traincheck-collect"), "--pyscript", "loop.py", "--output-dir"]
    if not learned.exists():
        traced(twin, [*collect, "reference"], name, honest=True)
        run([tool("traincheck-infer"), "-f", "reference", "-o", learned.name], twin)
    selective = ["--invariants", str(learned)]
    broken = twin / "broken.json"
    if not broken.exists():
        traced(twin, [*collect, "again", *selective], name, honest=True)
        broken.write_text(json.dumps(sorted(violated(twin, "again", learned))), encoding="utf-8")
    traced(folder, [*collect, "faulty", *selective], name, honest=False)
    return violated(folder, "faulty", learned), set(json.loads(broken.read_text(encoding="utf-8")))


def traced(folder: Path, command: list[str], name: str, *, honest: bool) -> None:
    """Train under traincheck."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loop.py").write_text(TRACED, encoding="utf-8")
    output = run(command, folder, FAULT=name, HONEST=str(int(honest)))
    failed = re.search(r"The program exited with error code.*", output)
    if failed:
        raise ToolError(f"traincheck-collect: {failed[0]}")


def violated(folder: Path, trace: str, invariants: Path) -> set[str]:
    """The invariants that a trace breaks, by what they say."""
    run([tool("traincheck-check"), "-f", trace, "-i", str(invariants), "-o", f"checked-{trace}"], folder)
    found = set()
    for file in (folder / f"checked-{trace}").rglob("failed*.log"):
        for text in re.split(r"\n(?=\{)", file.read_text(encoding="utf-8", errors="replace")):
            if text.strip():
                found.add(json.loads(text)["invariant"]["text_description"])
    return found


def by_torch_audit(name: str, twin: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The rules of torch-audit that speak."""
    return audited(folder, name, honest=False), audited(twin, name, honest=True)


def audited(folder: Path, name: str, *, honest: bool) -> set[str]:
    """Train under torch-audit, in a process of its own: it patches what it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __spec__.name, "torch-audit", name, str(int(honest)), str(folder)]
    run(command, Path.cwd())
    return set(json.loads((folder / "torch-audit.json").read_text(encoding="utf-8")))


def train_under_torch_audit(name: str, honest: bool, folder: Path) -> None:
    """Audit whatever the training attaches an audit to, by autopatch at every step."""
    torch_audit: Any = __import__("torch_audit")
    auditors = []

    def attach(model: Any, optimizer: Any, *_: Any, **__: Any) -> accumaudit.Audit:
        first = optimizer[0] if isinstance(optimizer, list | tuple) else optimizer
        auditors.append(torch_audit.autopatch(model, optimizer=first, every_n_steps=1, fail_level="FATAL"))
        return accumaudit.Audit(None)

    vars(accumaudit)["attach"] = attach
    faults()[name].trainings["torch"].run(folder / "ledger", None, honest=honest)
    found = {finding.rule_id for auditor in auditors for finding in auditor.finish(report=False).findings}
    (folder / "torch-audit.json").write_text(json.dumps(sorted(found)), encoding="utf-8")


def by_trainproof(name: str, twin: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The rules of trainproof that speak of the log of losses, rates and norms."""
    return proofed(folder, name, honest=False), proofed(twin, name, honest=True)


def proofed(folder: Path, name: str, *, honest: bool) -> set[str]:
    """Train, write the log that a loop would write, and ask trainproof."""
    ledger = folder / "recorded"
    faults()[name].trainings["torch"].run(ledger, None, honest=honest)
    with accumaudit.Ledger.open(ledger) as opened:
        rows = list(opened.sql("FROM windows WHERE applied ORDER BY launch, attempt_id"))
        rates = list(opened.sql("FROM updates WHERE applied AND rank = 0 ORDER BY launch, attempt_id"))
    log = folder / "log.jsonl"
    with log.open("w", encoding="utf-8") as file:
        for row, rate in zip(rows, rates, strict=False):
            norm = row["grad_norm_before_max"] or row["grad_norm_max"]
            line = {"step": row["optimizer_update_id"], "loss": row["loss"], "grad_norm": norm}
            file.write(json.dumps({**line, "learning_rate": rate["learning_rate"]}) + "\n")
    command = [tool("trainproof"), "epoch", str(log), "--format", "jsonl", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    spoken = re.findall(r"TP-[A-Z-]+", done.stdout)
    return set(spoken) - {"TP-PASS"}


WAYS: Final[Mapping[str, Callable[[str, Path, Path], tuple[set[str], set[str]]]]] = {
    "traincheck": by_traincheck,
    "torch-audit": by_torch_audit,
    "trainproof": by_trainproof,
}


def answer_of(name: str, training: Training, way: str, cache: Path) -> dict[str, Any]:
    """What a tool says of a fault: found, the number of what it says of the twin, or why it could not."""
    answer = cache / f"{name}.{way}.json"
    if not answer.exists():
        twin = re.sub(r"[^\w+=.-]", "_", training.twin)
        try:
            said, of_twin = WAYS[way](name, cache / way / f"twin-{twin}", cache / way / name)
            result: dict[str, Any] = {"found": sorted(said - of_twin)[:5], "twin": sorted(of_twin)[:5]}
        except ToolError as error:
            result = {"error": str(error)}
        answer.write_text(json.dumps(result), encoding="utf-8")
    return known(answer)


def known(answer: Path) -> dict[str, Any]:
    """What a tool said; nothing where it was not asked."""
    said: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    return said


def peer_table(answers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A row for each fault, a column for each tool, and what is said of the twins."""

    def cell(answer: Mapping[str, Any]) -> str:
        if "error" in answer:
            return "could not run"
        return "" if not answer else FOUND if answer["found"] else SILENT

    def alarms(way: str) -> str:
        ran = [by[way] for by in answers.values() if "twin" in by[way]]
        return f"{sum(bool(one['twin']) for one in ran)} of {len(ran)}"

    rows = [
        [faults()[name].kind, what(faults()[name], name), *(cell(by[way]) for way in TOOLS)]
        for name, by in answers.items()
    ]
    rows.append(["", "honest twins of which it says something", *map(alarms, TOOLS)])
    errors = {f"{way}: {by[way]['error']}" for by in answers.values() for way in TOOLS if "error" in by[way]}
    tools = ", ".join(f"{way} {version(way)} ({told})" for way, told in TOOLS.items())
    day = datetime.now(timezone.utc).date()
    head = f"Measured on {day}, with {tools}."
    could_not = "\n".join(f"- {error}" for error in sorted(errors))
    return "\n\n".join(filter(None, [head, table(("kind", "fault", *TOOLS), rows), could_not]))


def main(words: list[str]) -> int:
    """Ask every tool of every fault and write the table: `CACHE [TOOL | FAULT ...]`, to ask of some alone.

    `torch-audit ...` is a training that this module starts itself.
    """
    if words[0] == "torch-audit":
        train_under_torch_audit(words[1], words[2] == "1", Path(words[3]))
        return 0
    cache = Path(words[0]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    trained = {
        name: fault.trainings["torch"]
        for name, fault in faults().items()
        if "torch" in fault.trainings and fault.trainings["torch"].processes == 1
    }
    ways = [way for way in TOOLS if way in words] or [*TOOLS]
    names = [name for name in trained if name in words] or [*trained]
    for name in names:
        for way in ways:
            answer_of(name, trained[name], way, cache)
    answers = {name: {way: known(cache / f"{name}.{way}.json") for way in TOOLS} for name in trained}
    text = renewed(PAGE.read_text(encoding="utf-8"), {"peers": lambda: peer_table(answers)})
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
