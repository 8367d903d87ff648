"""What a module in this folder says of its fault or its trap, and how its trainings are run."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accumaudit.demo.launching import scenario
from accumaudit.demo.loop import Loop, Settings
from accumaudit.demo.registry import against_advice
from accumaudit.demo.variants import combined
from tests import faults as folder_of_faults
from tests.processes import Processes, resolve
from tests.trainings import environment

if TYPE_CHECKING:
    from types import ModuleType

RUNTIMES: Final[Mapping[str, int]] = {
    "torch": 1,
    "DDP": 2,
    "FSDP1": 2,
    "FSDP2": 2,
    "Trainer": 1,
    "Accelerate": 1,
    "Lightning": 1,
    "DeepSpeed": 1,
}
"""The columns of the scoreboard, and on how many processes a training of each runs where it does not say."""

EQUAL: Final = {"answer_length": 24, "batch_size": 4}
"""Settings with which all micro-steps have as many tokens, and hardly any two the same rows."""

VARIANTS: Final = {
    "FSDP1": ("flat-shards",),
    "FSDP2": ("fully-shard",),
    "Accelerate": ("tests.runtimes.by_hand:Accelerated",),
}
"""What makes the plain loop one of the column: variants of the demo, or loops of the tests' own."""

KINDS: Final[Mapping[str, str]] = {
    "K1": "window size and tail",
    "K2": "token denominator",
    "K3": "ranks and parallel groups in the denominator",
    "K4": "normalised twice",
    "K5": "clipping per micro-step",
    "K6": "clipping scaled gradients",
    "K7": "reduction between ranks",
    "K8": "gradients lost inside the window",
    "K9": "steps inside the window",
    "K10": "cadence of the schedule",
    "K11": "horizon of the schedule",
    "K12": "schedule and skipped steps",
    "K13": "breaks at a resume",
    "K14": "schedule and optimizer apart",
    "K15": "ranks that drift apart",
    "K16": "tokens and samples counted",
    "K17": "step counters",
    "K18": "averages and losses that are not finite",
}
"""The kinds of public reports."""

OWN_LINES: Final = "the faulty lines are the loop's own: not trained apart"
"""Why a fault has no training in a runtime: the lines are the same as in a plain loop."""

PATIENCE: Final = 180.0
"""Seconds that a training may take; it needs some ten, most of them to import a framework."""

Function = Callable[..., None]
"""Trains on one process: `(folder: str, honest: bool)` for a fault, `(folder: str)` for a trap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training of a fault, or of its honest twin, in one runtime."""

    runtime: str
    function: str
    """module:name; called in each of its processes."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    processes: int
    code: str
    """The rule that must find it."""
    first: int | None
    """The first wrong attempt; None where the fault is of the whole run, as a schedule's length is."""
    found: int | None
    """The attempt that the finding must name first; another than `first` needs `why_later`."""
    why_later: str
    also: frozenset[str]
    """Further codes, of any severity, that are true of this training too."""
    severity: str | None
    """Of the finding, where it is not the rule's own."""
    observed: float | None
    """What the finding must have measured."""
    notes: frozenset[str]
    """Notes that are true of the honest twin."""
    twin: str
    """Trainings of a runtime with equal names here have the same twin, which is trained once."""

    def run(self, folder: Path, processes: Processes | None, **arguments: Any) -> None:
        """Train in this process, or on each rank of `processes`."""
        given = {"folder": str(folder), **self.arguments, **arguments}
        if processes is None:
            resolve(self.function)(**given)
        else:
            processes.call(self.function, timeout=PATIENCE, **given)


class Fault:
    """A fault that people reported.

    Args:
        kind: K1 to K18.
        code: the rule that finds it.
        reports: public threads, as owner/repository#number, that tell of this very fault.
        elsewhere: for each runtime without a training, why it has none.
    """

    def __init__(
        self, *, kind: str, code: str, reports: tuple[str, ...], elsewhere: Mapping[str, str]
    ) -> None:
        self.kind = kind
        self.code = code
        self.reports = reports
        self.elsewhere = elsewhere
        self.trainings: dict[str, Training] = {}

    def on(self, runtime: str, *, first: int | None, **how: Any) -> Callable[[Function], Function]:
        """Enter a training; `how` may give any further field of `Training`."""

        def enter(function: Function) -> Function:
            self._enter(runtime, first, f"{function.__module__}:{function.__qualname__}", how)
            return function

        return enter

    def by_demo(
        self,
        runtime: str,
        loop: str | type[Loop],
        *,
        first: int | None,
        twin: str = "plain",
        variants: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> None:
        """Enter a fault of the demo by its name, or a loop of the module's own that does one thing otherwise.

        Args:
            runtime: the column.
            loop: the fault.
            first: the first wrong attempt.
            twin: the variant that the loop is without the fault.
            variants: what both are besides; where it is not said, what makes the loop one of the column.
            settings: of both, where they are not those of the fault, or of the twin of a module's own loop.
            **how: any further field of `Training`.
        """
        both = VARIANTS.get(runtime, ()) if variants is None else tuple(variants)
        named = loop if isinstance(loop, str) else f"{loop.__module__}:{loop.__qualname__}"
        how["arguments"] = {"name": named, "twin": twin, "variants": both, "settings": dict(settings or {})}
        told = [twin, *both, *(f"{key}={value}" for key, value in (settings or {}).items())]
        if isinstance(loop, str) and scenario(loop).settings != scenario(twin).settings:
            told.append(loop)
        how["twin"] = "+".join(told)
        self._enter(runtime, first, f"{__name__}:train_demo", how)

    def _enter(self, runtime: str, first: int | None, function: str, how: dict[str, Any]) -> None:
        assert runtime in RUNTIMES, runtime
        assert runtime not in self.trainings, f"{function}: {runtime} has a training already"
        defaults = {
            "processes": RUNTIMES[runtime],
            "code": self.code,
            "found": first,
            "why_later": "",
            "severity": None,
            "observed": None,
            "twin": function,
        }
        sets = {name: frozenset(how.pop(name, ())) for name in ("also", "notes")}
        self.trainings[runtime] = Training(
            runtime=runtime, function=function, first=first, **{**defaults, **sets, **how}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A right loop that looks like a fault."""

    trap: str
    """T01 to T29."""
    name: str
    what: str
    function: str
    runtime: str
    processes: int
    tempts: tuple[str, ...]
    """Rules that a careless reading would let speak; each must have judged it, or stand in `unjudged`."""
    notes: frozenset[str]
    """Codes of the notes that are true of it."""
    unjudged: Mapping[str, str]
    """Rules of `tempts` that cannot judge it, with the beginning of the reason that is told."""
    log: bool
    """It writes a log as another program would; nothing is attached."""


TRAPS: Final[dict[str, Trap]] = {}
"""By name."""


def trap(
    number: str,
    *,
    on: str,
    tempts: tuple[str, ...],
    processes: int | None = None,
    notes: tuple[str, ...] = (),
    unjudged: Mapping[str, str] | None = None,
    log: bool = False,
) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """Enter a function that trains into a folder; the first line of its docstring says what it is."""

    def enter(function: Callable[[str], None]) -> Callable[[str], None]:
        name = f"{number}-{function.__name__.replace('_', '-')}"
        assert name not in TRAPS, name
        TRAPS[name] = Trap(
            trap=number,
            name=name,
            what=(function.__doc__ or "").strip().partition("\n")[0],
            function=f"{function.__module__}:{function.__qualname__}",
            runtime=on,
            processes=RUNTIMES[on] if processes is None else processes,
            tempts=tempts,
            notes=frozenset(notes),
            unjudged=unjudged or {},
            log=log,
        )
        return function

    return enter


def faults() -> dict[str, Fault]:
    """Every fault of this folder by its name, in the order of the kinds."""
    found = {
        name.replace("_", "-"): module.FAULT
        for name, module in _modules(folder_of_faults)
        if hasattr(module, "FAULT")
    }
    return dict(sorted(found.items(), key=lambda one: (list(KINDS).index(one[1].kind), one[0])))


def what(fault: Fault, name: str) -> str:
    """The first sentence of the docstring of the fault's module."""
    module = import_module(f"{folder_of_faults.__name__}.{name.replace('-', '_')}")
    assert module.FAULT is fault
    return (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def traps() -> dict[str, Trap]:
    """Every trap."""
    dict(_modules(import_module(f"{folder_of_faults.__name__}.traps")))
    return dict(sorted(TRAPS.items()))


def _modules(package: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    for found in pkgutil.iter_modules(package.__path__):
        if not found.ispkg:
            yield found.name, import_module(f"{package.__name__}.{found.name}")


def train_demo(
    folder: str, honest: bool, name: str, twin: str, variants: Sequence[str], settings: Mapping[str, Any]
) -> None:
    """A fault of the demo, or a loop of a module's own over its twin; or the twin, told the same."""
    own = ":" in name
    faulty = scenario(twin if own else name)
    chosen = [name] if not honest else []
    chosen += [twin] if own or honest else []
    traits = [_loop(one) for one in (*chosen, *variants)]
    told = {key: getattr(faulty.settings, key) for key in faulty.settings.__dataclass_fields__}
    for launch in range(faulty.launches):
        with ExitStack() as stack:
            stack.enter_context(environment(ACCUMAUDIT="1", TORCHELASTIC_RESTART_COUNT=str(launch)))
            stack.enter_context(against_advice())
            for trait in traits:
                stack.enter_context(getattr(trait, "surroundings", nullcontext)())
            combined(*traits)(Settings(**{**told, **settings}), Path(folder)).train()


def _loop(name: str) -> type[Loop]:
    """Of the demo by its name, or of a module by module:name."""
    found: type[Loop] = resolve(name) if ":" in name else scenario(name).loop  # type: ignore[assignment]  # a class
    return found
