"""What a post-mortem holds; None is everywhere what the record does not tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison
    from accumaudit.engine.findings import RunReport, Verdict
    from accumaudit.outputs.timeline.model import Section

Role = Literal["cause", "symptom", "record", "cost"]
"""What a fault can do to a training: change its updates, follow from a change, mislead readers, cost time."""

Outcome = Literal["went wrong", "faulty", "rose", "clean", "unknown"]
"""The training itself went wrong (a symptom was found); updates were not those that were meant, and no
symptom shows; the loss ends high, in too few records to judge; no error or warning in what was checked;
nothing could be checked."""

OPTIMIZERS: Final = 8
"""Optimizers of a run that are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Moment:
    """An attempt, in the order of time."""

    launch: int
    attempt_id: int
    optimizer: int = 0
    number: int | None = None
    """Its update; the step, in a foreign log."""
    skipped: bool = False
    """Whether its step was skipped: its number is then that of the update before it."""
    micro_step: int | None = None
    """The micro-steps of its launch up to its end, where several optimizers count attempts of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """How much of a run a fault reached."""

    attempts: int
    """Attempts with the fault; 0 where it is about the whole run."""
    of_attempts: int
    """All that were recorded."""
    tokens: float | None
    """Valid tokens of the faulty attempts that were applied."""
    of_tokens: float | None
    """Those of all applied attempts."""
    size: str | None
    """What the fault did to them, in words with figures; None where the rule gives no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One finding, with what a person asks of it."""

    verdict: Verdict
    """Its finding is not None."""
    role: Role
    first: Moment | None
    """Its first attempt; None where it is about the whole run."""
    last: Moment | None
    lead: int | None
    """Updates from its first to the first symptom's, of the same optimizer; negative where it came after."""
    harm: Harm
    own_fix: tuple[str, str] | None
    """What to do under this run's framework, behind its name."""
    follows: tuple[str, ...] = ()
    """Codes of the rules whose findings follow from this one and are not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A state that was saved."""

    name: str
    """What the loop called it; may be empty."""
    moment: Moment
    """The last attempt before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that changed and is no fault by itself."""

    moment: Moment
    """The first attempt after it."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """What the loss did, as far as the record tells it."""

    records: int
    """Records with a finite loss."""
    first: float
    lowest: float
    lowest_at: Moment
    last: float
    last_at: Moment
    steepest: float | None
    """The largest rise from one record to the next."""
    steepest_at: Moment | None
    """The record after that rise."""
    steepest_after: Moment | None = None
    """The record before it."""
    not_finite: int = 0
    """Records with a loss that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One field over a run: a bounded number of points that keep every peak."""

    name: str
    """As `windows` calls it."""
    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None is a gap."""
    nonfinite: tuple[float, ...] = ()
    """Where the value was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One optimizer's attempts, drawn."""

    optimizer: int
    title: str
    axis: str
    """What x counts: update, step or attempt."""
    attempts: int
    curves: tuple[Curve, ...]
    skipped: tuple[float, ...] = ()
    """Where attempts were skipped, a bounded number."""
    launches: tuple[tuple[float, str], ...] = ()
    """Where a later launch begins, and what is said of it."""
    checkpoints: tuple[tuple[float, str], ...] = ()
    """Where a state was saved, and its name; a bounded number, the last before the first fault among them."""
    places: tuple[tuple[Moment, float], ...] = ()
    """Where the marked moments of this optimizer lie."""

    def place(self, moment: Moment) -> float | None:
        """Where a marked moment lies; None where it is another optimizer's."""
        return dict(self.places).get(moment)

    def curve(self, name: str) -> Curve | None:
        """The curve of this field."""
        return next((one for one in self.curves if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One rank: for each column the share of its attempts in which the rank stands out."""

    rank: int
    shares: tuple[float, ...]
    why: tuple[str, ...]
    """What set it apart, each in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatStrip:
    """Which ranks stand out, and when."""

    starts: tuple[float, ...]
    """Where each column begins, on the axis of the histories."""
    axis: str
    rows: tuple[HeatRow, ...]
    """The ranks that stand out most; none of the others does more."""
    ranks: int
    """All that wrote."""
    quiet: int
    """Ranks that never stand out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Rules that could not judge, for one reason."""

    reason: str
    verdicts: tuple[Verdict, ...]
    remedy: str | None
    """The field, the flag or the declaration that would have shown it; None where nothing would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """One run, in the order in which people ask."""

    run: RunReport
    outcome: Outcome
    verdict: tuple[str, ...]
    """What happened, in two sentences."""
    first_wrong: Suspect | None
    """What has the earliest attempt of all errors and warnings about the training."""
    onset: Suspect | None
    """The first symptom: from here on the training itself looks wrong."""
    suspects: tuple[Suspect, ...]
    """What may be the cause, the strongest first."""
    symptoms: tuple[Suspect, ...]
    others: tuple[Suspect, ...]
    """What misleads readers or costs time, and changes no update."""
    checkpoint: Checkpoint | None
    """The last before the first fault."""
    advice: str
    """From where to resume, in a sentence or two."""
    loss: LossFacts | None
    facts: tuple[tuple[str, str], ...]
    """What the run is: a label and a text each."""
    changes: tuple[Change, ...] = ()
    """The first of what changed and is no fault by itself."""
    around: tuple[Section, ...] = ()
    """The attempts beside the first fault and beside the onset."""
    histories: tuple[History, ...] = ()
    strip: HeatStrip | None = None
    unchecked: tuple[Unchecked, ...] = ()
    quality: tuple[str, ...] = ()
    """What is to be known of the record itself: holes, unreadable lines, what was not recorded."""
    comparison: Comparison | None = None
    """Against another run."""
    marked: tuple[Moment, ...] = field(default=())
    """The moments that charts mark and the table is about: the first fault's and the onset's."""

    def _repr_html_(self) -> str:
        from accumaudit import notebook

        return notebook.post_mortem(self)
