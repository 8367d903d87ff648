"""The skeleton of a rule, and of the training that shows its fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from accumaudit import __version__
from accumaudit.cli import StopError
from accumaudit.nearest import nearest

OWN: Final = "OWN"
"""Letters of the codes of somebody's own first rule."""

RULE: Final = """\
/*
code = "{code}"
name = "{name}"
severity = "warning"
since = "{since}"
scope = "transaction"
scope_is_empty = "say what was not there to judge: no window was short"
needs = ["microbatches"]
summary = "say the fault in a sentence, in small letters and without a full stop"
why = '''
Say what the training does in place of what was meant, and what it costs.
'''
example = '''
Say it with numbers that can be added up: windows, micro-steps, tokens, weights.
'''
fix = '''
Say in one line what to change.

Hand-written loop: say where.
DDP: say where.
FSDP: say where.
Trainer: say where, or "Not concerned: " and why.
Accelerate: say where.
Lightning: say where.
DeepSpeed: say where.
'''
not_a_fault_when = '''
Say which right loops look like it, and why the query is silent about them.
'''
references = []
*/
-- Every attempt in the rule's scope has a row: fault is true, false, or NULL where the record cannot decide.
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       NULL::BOOLEAN AS fault,
       NULL::DOUBLE AS observed,
       NULL::DOUBLE AS expected,
       format('say what was seen in a window of {{}} micro-steps', microbatches) AS message
FROM windows
"""

TRAINING: Final = '''\
"""Say the fault in a sentence, as somebody who had it would."""

from __future__ import annotations

from tests.faults.registry import Fault

FAULT = Fault(
    kind="K1",
    code="{code}",
    reports=(),
    elsewhere={{
        "DDP": "say why it cannot occur there, or train it there",
        "FSDP1": "say why it cannot occur there, or train it there",
        "FSDP2": "say why it cannot occur there, or train it there",
        "Trainer": "say why it cannot occur there, or train it there",
        "Accelerate": "say why it cannot occur there, or train it there",
        "Lightning": "say why it cannot occur there, or train it there",
        "DeepSpeed": "say why it cannot occur there, or train it there",
    }},
)


@FAULT.on("torch", first=1)
def plain_torch(folder: str, honest: bool) -> None:
    """Four windows of two micro-steps; the twin does the same, rightly."""
    import torch
    from torch.nn.functional import cross_entropy

    import accumaudit

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with accumaudit.attach(model, optimizer, log_dir=folder, accumulation_steps=2, summary=False):
        for _ in range(4):
            for _ in range(2):
                loss = cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
                (loss / 2).backward()
            if not honest:
                raise NotImplementedError("do here what is wrong")
            optimizer.step()
            optimizer.zero_grad()
'''


def write_skeleton(name: str, family: str | None, code: str | None, into: Path) -> list[Path]:
    """Write the files of a new rule; none that is there already is touched."""
    from accumaudit.engine.rule import RuleError, file_name, wrong_name

    wrong = wrong_name(name)
    if wrong is not None:
        raise click.UsageError(wrong)
    if family and not (into / family).resolve().is_relative_to(into.resolve()):
        raise click.UsageError(f"the family `{family}` lies outside of {into}, whose rules it belongs to")
    try:
        rules = _Rules(into)
    except RuleError as error:
        raise StopError(str(error)) from None
    rules.check_name(name)
    code = rules.checked(code.upper()) if code else rules.free_code(family)
    folder = into / (family or rules.family(code))
    texts = {folder / file_name(code, name): RULE}
    trainings = into / ".." / "tests" / "faults"
    if (trainings / "registry.py").is_file():
        texts[trainings / f"{name.replace('-', '_')}.py"] = TRAINING
    for file in texts:
        if file.exists():
            raise StopError(f"{os.path.relpath(file)} is there already")
    return [
        _written(file, text.format(code=code, name=name, since=__version__)) for file, text in texts.items()
    ]


def _written(file: Path, text: str) -> Path:
    file = Path(os.path.relpath(file))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise StopError(f"{file} is there already") from None
    except OSError as error:
        raise StopError(f"{file}: the skeleton cannot be written: {error.strerror}") from None
    return file


class _Rules:
    """The rules beside which a new one will stand: those of a checkout, or somebody's own and the bundled."""

    def __init__(self, into: Path) -> None:
        from accumaudit.engine.catalogue import load_rules, read_folders

        self._is_checkout = (into / "tables.sql").is_file()
        read = read_folders if self._is_checkout else load_rules
        self._rules = read(into) if any(into.rglob("*.sql")) else load_rules()
        inside = {code: rule.file for code, rule in self._rules.items() if rule.file.is_relative_to(into)}
        self._codes = sorted(inside)
        self._families = {
            code[:-2]: file.parent.relative_to(into).as_posix() for code, file in inside.items()
        }
        """By the letters and the first digit of the codes."""

    def check_name(self, name: str) -> None:
        """Raise where another rule has the name."""
        for code, rule in self._rules.items():
            if rule.name == name:
                raise click.UsageError(f"the name {name} belongs to {code} already")

    def checked(self, code: str) -> str:
        """A code that is one, and free."""
        from accumaudit.engine.rule import wrong_code

        wrong = wrong_code(code)
        if wrong is not None:
            raise click.UsageError(wrong)
        if code in self._rules:
            raise click.UsageError(f"the code {code} belongs to {self._rules[code].name} already")
        return code

    def family(self, code: str) -> str:
        """The folder of the codes that begin as this one does."""
        if self._is_checkout and code[:-2] not in self._families:
            raise click.UsageError(f"no family has codes like {code}; name one with --family")
        return self._families.get(code[:-2], ".")

    def free_code(self, family: str | None) -> str:
        """The next code of a family, or of somebody's own rules."""
        starts = tuple(start for start, one in self._families.items() if one == family)
        if self._is_checkout and not starts:
            known = sorted({*self._families.values()})
            what = f"`{family}` is no family" if family else "a rule has a family; name it with --family"
            near = nearest(family or "", known) or f"; there are {', '.join(known)}"
            raise click.UsageError(what + near)
        last = max((code for code in self._codes if code.startswith(starts or "")), default=f"{OWN}000")
        if last.endswith("999"):
            raise click.UsageError(f"no code is free after {last}; name one with --code")
        return self.checked(f"{last[:-3]}{int(last[-3:]) + 1:03}")
